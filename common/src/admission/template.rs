//! The review of a MachineTemplate: the rules of a Machine's fields, without what a Machine brings.

use std::collections::BTreeMap;

use super::{Request, Verdict, decode, ratchet};
use crate::api::choice::Backend;
use crate::api::machine::MachineSpec;
use crate::api::template::MachineTemplateSpec;
use crate::bounds::TEXT_MAX;
use crate::bounds::VCPUS_MAX;
use crate::catalog::Catalog;
use crate::json::Json;
use crate::normalize::{Base, Intent, Merged, Pins, TemplateChoice};
use crate::rules::{self, limits};
use crate::violation::Findings;

pub(super) fn review(request: &Request<'_>, catalog: &dyn Catalog) -> Verdict {
    let mut findings = Findings::default();
    let wire = decode::object(request.object, &mut findings);
    request.judge_name(&wire.metadata, &mut findings);
    let fields = judge(wire.spec.intent, catalog, &mut findings);
    findings.dedupe();
    if let Some(old) = request.old.filter(|_| !findings.accepted()) {
        let mut known = Findings::default();
        let old = decode::object(old, &mut known);
        let old = judge(old.spec.intent, catalog, &mut known);
        ratchet::ratchet(&mut findings, &fields, &known, &old);
    }
    Verdict {
        findings,
        block: None,
    }
}

/// Judges the spec of a template. Returns the fields of a Machine in it.
fn judge(spec: Json<'_>, catalog: &dyn Catalog, findings: &mut Findings) -> MachineSpec {
    let MachineTemplateSpec {
        description,
        deprecated,
        resources,
        disks,
        networks,
        boot_order,
        domain,
    } = decode::spec(spec, limits::truncate_machine, findings);
    for (field, text) in [
        ("spec.description", description),
        ("spec.deprecated", deprecated),
    ] {
        limits::length(field, text.as_deref(), TEXT_MAX, findings);
    }
    let fields = MachineSpec {
        resources,
        disks,
        networks,
        boot_order,
        domain,
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
        // A template says nothing about the backend: what only one of them can do is judged on the
        // Machine. libvirt is the one that can do more.
        backend: Backend::Libvirt,
        storage_classes: BTreeMap::new(),
    };
    rules::resolve(&intent, &merged, &pins, VCPUS_MAX, findings);
    rules::check_template(&merged, catalog, findings);
    fields
}
