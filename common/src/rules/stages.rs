//! Runs the rules of each stage of a review.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::all;
use super::libvirthosts::intent::HostIntent;
use super::rule::{
    Check, ImageRequest, Lookup, MigrationRequest, ObjectName, PolicySubject, Rule, Settings,
    TemplateRequest, Update,
};
use crate::api::kind::ObjectKind;
use crate::api::machine_image::{MachineImageSpec, PinnedImage};
use crate::api::machine_policy::MachinePolicySpec;
use crate::api::network::NetworkConfigurationSpec;
use crate::api::normalized::Normalized;
use crate::catalog::{Catalog, Policy};
use crate::normalize::{Merged, TemplateChoice};
use crate::violation::Findings;

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
    machine: &PolicySubject<'_>,
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

/// Checks the violations of a change of a Machine that is being deleted.
pub(crate) fn check_deletion(findings: &mut Findings) {
    all().for_each(|rule| {
        if let Check::Deletion(check) = rule.check
            && rule.runs(ObjectKind::Machine, true)
        {
            check(findings);
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
