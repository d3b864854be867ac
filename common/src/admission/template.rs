//! The review of a MachineTemplate: the rules of a Machine's fields, without what a Machine brings.

use std::collections::BTreeMap;

use super::{Request, Verdict, decode};
use crate::api::choice::Backend;
use crate::api::machine::MachineSpec;
use crate::api::schema::TEXT_MAX;
use crate::api::template::MachineTemplateSpec;
use crate::catalog::Catalog;
use crate::normalize::{self, Base, Intent, Merged, Pins, TemplateChoice};
use crate::rules::sizing::VCPUS_MAX;
use crate::rules::{self, limits, references};
use crate::violation::Findings;

pub(super) fn review(request: &Request<'_>, catalog: &dyn Catalog) -> Verdict {
    let mut findings = Findings::default();
    let wire = decode::object(request.object, &mut findings);
    let spec: MachineTemplateSpec = decode::spec(wire.spec, &mut findings);
    request.judge_name(&wire.metadata, &mut findings);
    if request.old.is_none() {
        rules::names::template(wire.metadata.name(), &mut findings);
    }
    limits::length(
        "spec.description",
        spec.description.as_deref(),
        TEXT_MAX,
        &mut findings,
    );
    limits::length(
        "spec.deprecated",
        spec.deprecated.as_deref(),
        TEXT_MAX,
        &mut findings,
    );
    let MachineTemplateSpec {
        description: _,
        deprecated: _,
        resources,
        disks,
        networks,
        boot_order,
        domain,
    } = spec;
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
    normalize::resolve(&intent, &merged, &pins, VCPUS_MAX, &mut findings);
    references::template_storage_classes(&merged, catalog, &mut findings);
    findings.settle();
    Verdict {
        findings,
        block: None,
    }
}
