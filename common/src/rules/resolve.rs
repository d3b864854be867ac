//! Computes the block of an intent from the parts that the rules read.

use super::rule::{Check, Parts, Subject};
use super::{all, boot};
use crate::api::choice::{Backend, Choice as _};
use crate::api::kind::ObjectKind;
use crate::api::normalized::{BLOCK_VERSION, Normalized, NormalizedPlacement};
use crate::bounds::VCPUS_MAX;
use crate::normalize::{Base, Intent, Merged, Pins, TemplateChoice, merge};
use crate::violation::Findings;

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
