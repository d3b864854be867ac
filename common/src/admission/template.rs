//! The review of a MachineTemplate: the rules of a Machine's fields, without those about values that
//! only a Machine has.

use std::collections::{BTreeMap, BTreeSet};

use super::{Request, Verdict, decode, ratchet};
use crate::api::choice::{Backend, ReclaimPolicy};
use crate::api::machine::{CloudInit, Display, MachineSpec};
use crate::api::template::MachineTemplateSpec;
use crate::bounds::TEXT_MAX;
use crate::bounds::VCPUS_MAX;
use crate::catalog::Catalog;
use crate::json::Json;
use crate::normalize::{Base, ImageDefaults, Intent, LeftToBackend, Merged, Pins, TemplateChoice};
use crate::rules::{self, Settings, limits};
use crate::violation::Findings;

pub(super) fn review(request: &Request<'_>, catalog: &dyn Catalog, settings: &Settings) -> Verdict {
    let mut findings = Findings::default();
    let raw = decode::object(request.object, &mut findings);
    request.check_name(&raw.metadata, &mut findings);
    let fields = check(raw.spec.intent, catalog, settings, &mut findings);
    if let Some(old) = request.old.filter(|_| !findings.accepted()) {
        let mut old_findings = Findings::default();
        let old = decode::object(old, &mut old_findings);
        let old = check(old.spec.intent, catalog, settings, &mut old_findings);
        ratchet::ratchet(&mut findings, &fields, &old_findings, &old);
    }
    findings.dedupe();
    Verdict {
        findings,
        block: None,
    }
}

/// Checks the spec of a template. Returns its fields as those of a Machine.
fn check(
    spec: Json<'_>,
    catalog: &dyn Catalog,
    settings: &Settings,
    findings: &mut Findings,
) -> MachineSpec {
    let MachineTemplateSpec {
        description,
        deprecated,
        deletion_protection,
        resources,
        devices,
        watchdog,
        probes,
        disks,
        networks,
        boot_order,
        domain,
        os,
        drivers,
        cloud_init,
        display,
        console,
        termination_grace_period_seconds,
        eviction_strategy,
        placement,
    } = decode::spec(spec, limits::truncate_machine, findings);
    for (field, text) in [
        ("spec.description", description),
        ("spec.deprecated", deprecated),
    ] {
        limits::length(field, text.as_deref(), TEXT_MAX, findings);
    }
    let fields = MachineSpec {
        deletion_protection,
        resources,
        devices,
        watchdog,
        probes,
        disks,
        networks,
        boot_order,
        domain,
        cloud_init: cloud_init.as_ref().map(CloudInit::from),
        display: display.map(Display::from),
        console,
        termination_grace_period_seconds,
        eviction_strategy,
        placement,
        os,
        drivers,
        ..MachineSpec::default()
    };
    let intent = Intent {
        spec: &fields,
        template_label: None,
        hash: "",
    };
    let merged = Merged::new(&fields, Base::IsTemplate);
    let pins = Pins {
        template: TemplateChoice::None,
        // A template names no backend. What only one backend supports is checked on the Machine, so
        // the template is checked for libvirt, which supports more.
        backend: Backend::Libvirt,
        storage_classes: BTreeMap::new(),
        reclaim_policy: ReclaimPolicy::Delete,
        reclaim_policies: BTreeMap::new(),
        images: BTreeMap::new(),
        disks_without_serial: BTreeSet::new(),
        hotpluggable: BTreeSet::new(),
        annotation_keys: Vec::new(),
        left_to_backend: LeftToBackend::default(),
        defaults: ImageDefaults::default(),
        device_kinds: BTreeMap::new(),
    };
    rules::resolve(&intent, &merged, &pins, pins.backend, VCPUS_MAX, findings);
    rules::check_template(&merged, catalog, settings, findings);
    fields
}
