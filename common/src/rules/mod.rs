//! The rules: which objects the webhook refuses, and what it warns of.
//!
//! [`ALL`] lists them in the order in which they run. Each entry names the family, the function, the
//! codes, the kinds and stages, and how much of it the CRDs refuse as well. It is in the file of
//! the rule, beside the function and the texts of the codes. Validation, the documentation and the
//! completeness tests read this list; a rule that is not in it does not run.
//!
//! A function of [`rule::Check::Part`] turns its part of a [`Merged`] spec into the typed part of the
//! block; what prevents that becomes a violation. So a value that reached a block has passed every rule
//! about it, and no rule is written twice.
//!
//! `tests/cases` holds a table for each family: objects that are refused with their messages, and
//! objects that are accepted.

mod affinity;
mod block;
mod boot;
mod boot_image;
mod classes;
mod clock;
pub(crate) mod cloud_init;
mod disks;
pub(crate) mod display;
mod existing_claims;
mod firmware;
pub(crate) mod form;
pub(crate) mod growth;
mod guest_os;
pub(crate) mod hardware;
mod health;
mod hosts;
mod image_names;
mod image_url;
mod images;
mod ipam;
mod kubevirt;
mod libvirt;
pub(crate) mod libvirthosts;
pub(crate) mod limits;
pub(crate) mod machine;
mod machineimages;
pub(crate) mod machinepolicies;
mod migration;
mod name_form;
mod names;
mod networkconfigurations;
mod networks;
mod nic_addresses;
mod offered;
mod overrides;
mod placement;
mod policies;
mod probes;
mod quantities;
mod references;
mod room;
pub(crate) mod rule;
mod sizing;
mod state;
mod uniqueness;
pub mod update;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) use block::{block_edited, block_mismatch, block_missing, more_differences};
pub(crate) use classes::{kept as kept_classes, restored as restored_classes};
pub use cloud_init::{CloudInitSchema, SchemaError};
pub(crate) use disks::hotplug::hotpluggable;
pub(crate) use disks::kept_reclaim_policies;
pub(crate) use firmware::kept as kept_defaults;
pub(crate) use image_names::kept as kept_images;
pub use migration::libvirt::{check_shares, obstacle as obstacle_to_move};
pub(crate) use offered::device_kinds;
pub(crate) use rule::{GuestReport, PendingValue};
pub use rule::{MissingNetworks, Rule, RuleStage, Settings};

use crate::api::choice::{Backend, Choice as _, ReclaimPolicy};
use crate::api::kind::ObjectKind;
use crate::api::machine_image::{MachineImageSpec, PinnedImage};
use crate::api::machine_policy::MachinePolicySpec;
use crate::api::network::NetworkConfigurationSpec;
use crate::api::normalized::{BLOCK_VERSION, Normalized, NormalizedPlacement};
use crate::bounds::{POLICY_ITEMS_MAX, VCPUS_MAX};
use crate::catalog::{Catalog, Policy};
use crate::code::Code;
use crate::glob::Glob;
use crate::names::may_carry_annotation;
use crate::normalize::{Base, Intent, Merged, Pins, TemplateChoice, merge};
use crate::violation::{Findings, Reference};
use libvirthosts::intent::HostIntent;
use rule::{
    Check, Governed, ImageRequest, Lookup, MigrationRequest, ObjectName, Parts, Subject,
    TemplateRequest, Update,
};

/// Every rule, file by file, in the order in which they run.
pub const ALL: &[&[Rule]] = &[
    form::RULES,
    quantities::RULES,
    limits::RULES,
    names::RULES,
    references::RULES,
    image_names::RULES,
    classes::RULES,
    libvirt::RULES,
    kubevirt::RULES,
    offered::RULES,
    migration::RULES,
    overrides::RULES,
    hosts::RULES,
    room::RULES,
    uniqueness::RULES,
    existing_claims::RULES,
    cloud_init::RULES,
    machine::RULES,
    placement::RULES,
    affinity::RULES,
    guest_os::RULES,
    sizing::RULES,
    growth::RULES,
    hardware::RULES,
    health::RULES,
    probes::RULES,
    disks::lists::RULES,
    disks::RULES,
    disks::existing::RULES,
    images::RULES,
    networks::RULES,
    nic_addresses::RULES,
    boot::RULES,
    firmware::RULES,
    display::RULES,
    state::RULES,
    clock::RULES,
    update::refused::RULES,
    update::discarded::RULES,
    update::warnings::RULES,
    update::kept::RULES,
    networkconfigurations::RULES,
    ipam::RULES,
    libvirthosts::RULES,
    libvirthosts::hardware::RULES,
    libvirthosts::images::RULES,
    libvirthosts::limits::RULES,
    machinepolicies::RULES,
    machineimages::RULES,
    policies::choices::RULES,
    policies::hardware::RULES,
    policies::limits::RULES,
    policies::networks::RULES,
    policies::placement::RULES,
    policies::quota::RULES,
    block::RULES,
];

/// The families, in the order of the documentation. Each has a table of cases of its name.
pub const FAMILIES: [&str; 23] = [
    "form",
    "references",
    "sizing",
    "hardware",
    "health",
    "disks",
    "networks",
    "boot",
    "firmware",
    "display",
    "machine",
    "migration",
    "overrides",
    "cloud-init",
    "names",
    "networkconfigurations",
    "libvirt",
    "libvirthosts",
    "policies",
    "machinepolicies",
    "machineimages",
    "update",
    "block",
];

/// Every rule. A review goes through all of them six times: with `for_each` this is two plain loops, while `for` asks
/// the flattened iterator for its state at each rule.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    ALL.iter().copied().flatten()
}

/// Every code once, family by family.
pub fn codes() -> Vec<Code> {
    let mut codes: Vec<Code> = Vec::new();
    for family in FAMILIES {
        for code in all().flat_map(|rule| rule.codes) {
            if code.family() == family && !codes.contains(code) {
                codes.push(*code);
            }
        }
    }
    codes
}

/// Checks the name of a new object. A stored object keeps the name that it has.
pub(crate) fn check_name(name: &ObjectName<'_>, findings: &mut Findings) {
    all().for_each(|rule| {
        if let Check::Name(check) = rule.check
            && rule.runs(name.kind, false)
        {
            check(name, findings);
        }
    });
}

/// Checks the annotations that move a guest.
pub(crate) fn check_migration(request: &MigrationRequest<'_>, findings: &mut Findings) {
    all().for_each(|rule| {
        if let Check::Migration(check) = rule.check {
            check(request, findings);
        }
    });
}

/// Looks up the template that a Machine names.
pub(crate) fn choose_template(
    request: &TemplateRequest<'_>,
    findings: &mut Findings,
) -> TemplateChoice {
    let mut choice = TemplateChoice::None;
    all().for_each(|rule| {
        if let Check::Template(check) = rule.check
            && rule.runs(ObjectKind::Machine, false)
        {
            check(request, &mut choice, findings);
        }
    });
    choice
}

/// Looks up the MachineImages that a Machine names, by name of the disk or CD-ROM.
pub(crate) fn choose_images(
    request: &ImageRequest<'_>,
    findings: &mut Findings,
) -> BTreeMap<String, PinnedImage> {
    let mut images = BTreeMap::new();
    all().for_each(|rule| {
        if let Check::Image(check) = rule.check
            && rule.runs(ObjectKind::Machine, false)
        {
            check(request, &mut images, findings);
        }
    });
    images
}

/// Compares a Machine with the catalog and the stored object. Returns the storage classes that the spec
/// leaves open, by name of disk or CD-ROM; those in `kept` are not looked up.
pub(crate) fn look_up(
    lookup: &Lookup<'_>,
    kept: &BTreeMap<String, String>,
    findings: &mut Findings,
) -> BTreeMap<String, String> {
    let mut classes = kept.clone();
    all().for_each(|rule| {
        if let Check::Lookup(check) = rule.check
            && rule.runs(ObjectKind::Machine, !lookup.is_new)
        {
            check(lookup, &mut classes, findings);
        }
    });
    classes
}

/// Compares a Machine with the policies of its namespace.
pub(crate) fn check_policies(
    machine: &Governed<'_>,
    policies: &[Arc<Policy>],
    findings: &mut Findings,
) {
    for policy in policies {
        all().for_each(|rule| {
            if let Check::Policy(check) = rule.check
                && rule.runs(ObjectKind::Machine, machine.stored.is_some())
            {
                check(machine, policy, findings);
            }
        });
    }
}

/// The policies of a namespace. If it is not known which ones hold, the namespace is reported as missing in the
/// catalog, and the caller must not answer.
pub(crate) fn policies_of(
    namespace: &str,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) -> Vec<Arc<Policy>> {
    catalog.policies(namespace).unwrap_or_else(|| {
        findings.miss(Reference::Namespace);
        Vec::new()
    })
}

/// The reclaim policy of disks that name none: that of the first policy that has one, else the setting.
pub(crate) fn default_reclaim_policy(
    policies: &[Arc<Policy>],
    settings: &Settings,
) -> ReclaimPolicy {
    let mut policies = policies.iter();
    let default = policies.find_map(|policy| policy.default_reclaim_policy);
    default.unwrap_or(settings.default_reclaim_policy)
}

/// Patterns for the keys of annotations of a Machine that its guest has, too: those that some policy names and that every
/// policy which names keys has, or a wider one. In order.
pub(crate) fn annotation_keys(policies: &[Arc<Policy>]) -> Vec<String> {
    let lists = policies.iter().filter_map(|it| it.annotations.as_ref());
    let lists: Vec<_> = lists.collect();
    let is_in_all = |key: &str| {
        let mut lists = lists.iter();
        may_carry_annotation(key) && lists.all(|list| list.iter().any(|it| it.includes(key)))
    };
    let keys = lists
        .iter()
        .copied()
        .flatten()
        .filter(|key| is_in_all(key.as_str()));
    let keys: BTreeSet<_> = keys.map(Glob::as_str).collect();
    let keys = keys.into_iter().map(str::to_owned);
    keys.take(POLICY_ITEMS_MAX).collect()
}

/// Computes the block of an intent. Violations are added to `findings`; with any, the block must not be
/// written.
pub fn normalize(intent: &Intent<'_>, pins: &Pins, findings: &mut Findings) -> Option<Normalized> {
    let merged = merge(intent, &pins.template)
        .with_images(&pins.images)
        .with_defaults(pins.defaults);
    let named = merged.user().backend.as_deref().and_then(Backend::parse);
    // An unknown backend is one violation. Rules that depend on the backend then check against the
    // pinned one; their violations are dropped as consequences.
    let backend = named.unwrap_or(pins.backend);
    resolve(intent, &merged, pins, backend, VCPUS_MAX, findings)
}

/// [`normalize`] for an intent that is merged already, with the vCPUs that an administrator allows.
pub(crate) fn resolve(
    intent: &Intent<'_>,
    merged: &Merged<'_>,
    pins: &Pins,
    backend: Backend,
    max_vcpus: u32,
    findings: &mut Findings,
) -> Option<Normalized> {
    let kind = match merged.base() {
        Base::IsTemplate => ObjectKind::MachineTemplate,
        Base::Nothing | Base::Template(..) | Base::Unknown => ObjectKind::Machine,
    };
    let subject = Subject {
        merged,
        pins,
        backend,
        max_vcpus,
    };
    let mut parts = Parts::default();
    all().for_each(|rule| {
        if let Check::Part(check) = rule.check
            && rule.runs(kind, false)
        {
            check(&subject, &mut parts, findings);
        }
    });
    let disks_in_order = merged.disks.iter().filter_map(|item| item.name().value);
    boot::assign_order(disks_in_order, &mut parts);
    Some(Normalized {
        version: BLOCK_VERSION,
        intent_hash: intent.hash.to_owned(),
        template: match &pins.template {
            TemplateChoice::Pinned(pin) => Some(pin.as_ref().clone()),
            TemplateChoice::None | TemplateChoice::Unknown => None,
        },
        annotation_keys: match parts.backend? {
            Backend::Kubevirt => pins.annotation_keys.clone(),
            Backend::Libvirt => Vec::new(),
        },
        backend: parts.backend?,
        placement: NormalizedPlacement {
            affinity: parts.affinity,
            anti_affinity_group: parts.group,
            priority_class_name: parts.priority_class,
            tolerations: parts.tolerations,
            topology_spread_constraints: parts.spread,
        }
        .if_any(),
        overrides: parts.overrides,
        probes: parts.probes.if_any(),
        power_state: parts.power_state?,
        guest_shutdown_stops: merged.user().guest_shutdown_stops.unwrap_or(false),
        cpu: parts.cpu?,
        deletion_protection: merged.deletion_protection(),
        memory: parts.memory?,
        hardware: parts.hardware.if_any(),
        machine_type: parts.machine_type?,
        firmware: parts.firmware?,
        tpm: parts.tpm,
        os: parts.os,
        timezone: parts.timezone,
        termination_grace_period_seconds: parts.grace_period,
        eviction_strategy: parts.eviction_strategy,
        features: parts.features?,
        disks: parts.disks?,
        display: parts.display,
        console: parts.console,
        existing_disks: parts.existing_disks?,
        cdroms: parts.cdroms?,
        networks: parts.networks?,
        node_selector: merged.user().node_selector.clone().unwrap_or_default(),
        watchdog: parts.watchdog,
    })
}

/// Refuses changes of a Machine. Works on a new spec that could be read only in part.
pub(crate) fn check_update(update: &Update<'_>, catalog: &dyn Catalog, findings: &mut Findings) {
    all().for_each(|rule| {
        if let Check::Update(check) = rule.check
            && rule.runs(ObjectKind::Machine, true)
        {
            check(update, catalog, findings);
        }
    });
}

/// Warns of what an accepted new Machine lacks.
pub(crate) fn warn_of_creation(lookup: &Lookup<'_>, findings: &mut Findings) {
    all().for_each(|rule| {
        if let Check::Creation(check) = rule.check
            && rule.runs(ObjectKind::Machine, false)
        {
            check(lookup, findings);
        }
    });
}

/// Warns of changes to the block `new` that do not take effect at once.
pub(crate) fn warn_of_effects(update: &Update<'_>, new: &Normalized, findings: &mut Findings) {
    all().for_each(|rule| {
        if let Check::Effect(check) = rule.check
            && rule.runs(ObjectKind::Machine, true)
        {
            check(update, new, findings);
        }
    });
}

/// Compares the fields of a template with the catalog.
pub(crate) fn check_template(
    merged: &Merged<'_>,
    catalog: &dyn Catalog,
    settings: &Settings,
    findings: &mut Findings,
) {
    all().for_each(|rule| {
        if let Check::Content(check) = rule.check
            && rule.runs(ObjectKind::MachineTemplate, false)
        {
            check(merged, catalog, settings, findings);
        }
    });
}

/// Checks a NetworkConfiguration against the stored one and the policies of its namespace.
pub(crate) fn check_network(
    spec: &NetworkConfigurationSpec,
    old: Option<&NetworkConfigurationSpec>,
    policies: &[Arc<Policy>],
    findings: &mut Findings,
) {
    let runs = |rule: &&Rule| rule.runs(ObjectKind::NetworkConfiguration, old.is_some());
    for rule in all().filter(runs) {
        match rule.check {
            Check::Network(check) => check(spec, old, findings),
            Check::NetworkPolicy(check) => {
                for policy in policies {
                    check(spec, policy, findings);
                }
            }
            _ => {}
        }
    }
}

/// Checks a LibvirtHost against the stored one.
pub(crate) fn check_host(spec: &HostIntent, old: Option<&HostIntent>, findings: &mut Findings) {
    all().for_each(|rule| {
        if let Check::Host(check) = rule.check
            && rule.runs(ObjectKind::LibvirtHost, old.is_some())
        {
            check(spec, old, findings);
        }
    });
}

/// Checks a MachinePolicy. Nothing of it depends on the stored one.
pub(crate) fn check_policy(
    spec: &MachinePolicySpec,
    old: Option<&MachinePolicySpec>,
    findings: &mut Findings,
) {
    all().for_each(|rule| {
        if let Check::MachinePolicy(check) = rule.check
            && rule.runs(ObjectKind::MachinePolicy, old.is_some())
        {
            check(spec, findings);
        }
    });
}

/// Checks a MachineImage. Nothing of it depends on the stored one.
pub(crate) fn check_image(
    spec: &MachineImageSpec,
    old: Option<&MachineImageSpec>,
    findings: &mut Findings,
) {
    all().for_each(|rule| {
        if let Check::MachineImage(check) = rule.check
            && rule.runs(ObjectKind::MachineImage, old.is_some())
        {
            check(spec, findings);
        }
    });
}
