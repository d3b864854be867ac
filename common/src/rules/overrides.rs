//! Fields of KubeVirt's VirtualMachine that a Machine sets beside its own.

use std::collections::BTreeMap;

use jsonschema::paths::LocationSegment;
use serde_json::{Map, Value};

use crate::api::choice::Backend;
use crate::api::machine::{MachineSpec, OpenObject};
use crate::api::normalized::Normalized;
use crate::bounds::{LABEL_KEY_MAX, OVERRIDES_MAX};
use crate::catalog::{Policy, SchemaMismatch};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::merge_patch;
use crate::violation::{Findings, Kind, Location, Violation};
use crate::words::{did_you_mean, nearest_first, shortened};

use super::cloud_init::messages::predicate;
use super::libvirt;
use super::rule::{Check, Lookup, Parts, PolicySubject, Subject, rules};

rules! {
    "overrides" Check::Part(form), on MACHINES, Always {
        Refuse InvalidOverride = "Overrides set nothing, remove a field, or set too many."
            because "An override only sets values: what it removes would be a field that the operator needs."
            fix "Write the fields with the values that they are to have."
            crd Nothing,
        Refuse OverrideOfModelledField = "An override sets a field that the Machine itself has, or that the operator needs."
            because "Two authors of one field would undo each other's values."
            fix "Set the field of the Machine that the message names, or drop the override."
            crd Nothing,
    }
    "overrides" Check::Lookup(fits), on MACHINES, Always {
        Refuse OverrideDoesNotFit = "VirtualMachines of this cluster have no such field, or it cannot have the value."
            because "The API server drops an unknown field without reporting it, and refuses a wrong value."
            fix "Correct the field as the message says; `kubectl explain vm.spec.template.spec` lists all of them."
            crd Nothing,
    }
    "overrides" Check::Lookup(needs_kubevirt), on MACHINES, Always {
        Refuse OverridesNeedKubevirt = "A Machine on libvirt overrides fields of a VirtualMachine."
            because "There is no VirtualMachine on libvirt."
            fix "Drop `backendOverrides.kubevirt`, or use `backend: kubevirt`."
            crd Some,
    }
    "overrides" Check::Lookup(permitted), on MACHINES, Always {
        Refuse OverrideNotAllowed = "No MachinePolicy of the namespace allows the override."
            because "Fields of a VirtualMachine can reach the host: an administrator names those that the Machines of a namespace may set."
            fix "Drop the override, or ask an administrator to add the field to `hardware.overrides` of a MachinePolicy."
            crd Nothing,
    }
    "overrides" Check::Policy(allowed), on MACHINES, Always, and [OverrideNotAllowed] {}
}

/// Fields of a VirtualMachine that this operator writes or needs, and the field of the Machine that decides each.
const MODELLED: [(&str, &str); 48] = [
    ("apiVersion", ""),
    ("kind", ""),
    ("metadata", "metadata.labels"),
    ("status", ""),
    ("spec.running", "spec.powerState"),
    ("spec.runStrategy", "spec.powerState"),
    ("spec.dataVolumeTemplates", "spec.disks"),
    ("spec.instancetype", "spec.template"),
    ("spec.preference", "spec.template"),
    ("spec.updateVolumesStrategy", "spec.disks"),
    ("spec.template.metadata.annotations", "metadata.annotations"),
    ("spec.template.metadata", "metadata.labels"),
    ("spec.template.spec.affinity", "spec.placement.affinity"),
    ("spec.template.spec.architecture", ""),
    ("spec.template.spec.domain.clock", "spec.domain.clock"),
    ("spec.template.spec.domain.cpu.cores", "spec.resources.cpu"),
    (
        "spec.template.spec.domain.cpu.dedicatedCpuPlacement",
        "spec.resources.cpu.dedicated",
    ),
    (
        "spec.template.spec.domain.cpu.maxSockets",
        "spec.resources.cpu",
    ),
    (
        "spec.template.spec.domain.cpu.model",
        "spec.resources.cpu.model",
    ),
    (
        "spec.template.spec.domain.cpu.sockets",
        "spec.resources.cpu",
    ),
    (
        "spec.template.spec.domain.cpu.threads",
        "spec.resources.cpu",
    ),
    (
        "spec.template.spec.domain.devices.autoattachGraphicsDevice",
        "spec.display",
    ),
    ("spec.template.spec.domain.devices.disks", "spec.disks"),
    ("spec.template.spec.domain.devices.gpus", "spec.devices"),
    (
        "spec.template.spec.domain.devices.hostDevices",
        "spec.devices",
    ),
    (
        "spec.template.spec.domain.devices.interfaces",
        "spec.networks",
    ),
    (
        "spec.template.spec.domain.devices.logSerialConsole",
        "spec.console",
    ),
    (
        "spec.template.spec.domain.devices.tpm",
        "spec.domain.devices.tpm",
    ),
    ("spec.template.spec.domain.devices.video", "spec.display"),
    (
        "spec.template.spec.domain.devices.watchdog",
        "spec.watchdog",
    ),
    ("spec.template.spec.domain.devices", ""),
    ("spec.template.spec.domain.features", "spec.domain.features"),
    ("spec.template.spec.domain.firmware", "spec.domain.firmware"),
    ("spec.template.spec.domain.machine", "spec.domain.machine"),
    ("spec.template.spec.domain.memory", "spec.resources.memory"),
    ("spec.template.spec.domain.resources", "spec.resources"),
    ("spec.template.spec.accessCredentials", "spec.cloudInit"),
    (
        "spec.template.spec.evictionStrategy",
        "spec.evictionStrategy",
    ),
    ("spec.template.spec.livenessProbe", "spec.probes.liveness"),
    ("spec.template.spec.networks", "spec.networks"),
    ("spec.template.spec.nodeSelector", "spec.nodeSelector"),
    (
        "spec.template.spec.priorityClassName",
        "spec.placement.priorityClassName",
    ),
    ("spec.template.spec.readinessProbe", "spec.probes.readiness"),
    (
        "spec.template.spec.terminationGracePeriodSeconds",
        "spec.terminationGracePeriodSeconds",
    ),
    (
        "spec.template.spec.tolerations",
        "spec.placement.tolerations",
    ),
    (
        "spec.template.spec.topologySpreadConstraints",
        "spec.placement.topologySpreadConstraints",
    ),
    ("spec.template.spec.volumes", "spec.disks"),
    ("spec.template.spec.hostname", ""),
];

/// Devices that the Machine does not have and that no other field decides.
const OPEN_DEVICES: [&str; 5] = [
    "spec.template.spec.domain.devices.blockMultiQueue",
    "spec.template.spec.domain.devices.disableHotplug",
    "spec.template.spec.domain.devices.downwardMetrics",
    "spec.template.spec.domain.devices.panicDevices",
    "spec.template.spec.domain.devices.sound",
];

/// Where the overrides are.
const OVERRIDES: FieldPath = FieldPath::field("backendOverrides.kubevirt");

fn requested(spec: &MachineSpec) -> Option<&Map<String, Value>> {
    let overrides = spec.backend_overrides.as_ref()?.kubevirt.as_ref()?;
    Some(&overrides.0)
}

/// The location of a value in the Machine. Names that no field has, such as one with dots, are in brackets.
fn location(path: &[&str]) -> Location {
    path.iter()
        .fold(Location::from(OVERRIDES), |at, field| below(at, field))
}

/// A field of an object. One whose name is too long is left out, as other keys are.
fn below(at: Location, field: &str) -> Location {
    let lengths = 1..=LABEL_KEY_MAX;
    if lengths.contains(&field.len()) && field.bytes().all(|it| it.is_ascii_alphanumeric()) {
        at.member(field)
    } else {
        at.key(field)
    }
}

/// Whether a path is that of `field`, or of a field in it.
fn is_in(path: &str, field: &str) -> bool {
    let rest = path.strip_prefix(field);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Rules [`Code::InvalidOverride`] and [`Code::OverrideOfModelledField`].
fn form(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let Some(patch) = requested(subject.merged.user()) else {
        return;
    };
    let values = merge_patch::values(patch);
    if values.len() > OVERRIDES_MAX {
        let count = values.len();
        let detail = format!("sets {count} values; at most {OVERRIDES_MAX} are allowed");
        let code = Code::InvalidOverride;
        findings.deny(Violation::new(OVERRIDES, code, Kind::TooMany, detail));
        return;
    }
    for (path, value) in &values {
        if value.is_null() {
            let detail = "removes the field; an override only sets values";
            let code = Code::InvalidOverride;
            findings.deny(Violation::new(location(path), code, Kind::Invalid, detail));
        }
        modelled(path, findings);
    }
    if !values.is_empty() {
        parts.overrides = Some(OpenObject(patch.clone()));
    }
}

/// Who decides a field of the VirtualMachine instead of an override.
enum Decides {
    /// This field of the Machine.
    Field(&'static str),
    /// The operator, which needs it.
    Operator,
    /// Several fields of the Machine, whose values an override would replace.
    Several,
}

/// Who decides the field with this path; `None`: an override may set it.
fn modelled_by(path: &[&str]) -> Option<Decides> {
    let written = path.join(".");
    if OPEN_DEVICES.iter().any(|device| is_in(&written, device)) {
        return None;
    }
    let mut fields = MODELLED.iter();
    match fields.find(|(field, _)| is_in(&written, field)) {
        Some((_, "")) => Some(Decides::Operator),
        Some((_, of_machine)) => Some(Decides::Field(of_machine)),
        None => MODELLED
            .iter()
            .any(|(field, _)| is_in(field, &written))
            .then_some(Decides::Several),
    }
}

/// The values that [`form`] does not refuse, with their paths.
fn open_values(patch: &Map<String, Value>) -> impl Iterator<Item = (Vec<&str>, &Value)> {
    let values = merge_patch::values(patch);
    let values = Some(values).filter(|values| values.len() <= OVERRIDES_MAX);
    values
        .into_iter()
        .flatten()
        .filter(|(path, value)| !value.is_null() && modelled_by(path).is_none())
}

/// Rule [`Code::OverrideOfModelledField`].
fn modelled(path: &[&str], findings: &mut Findings) {
    if let Some(decides) = modelled_by(path) {
        let detail = match decides {
            Decides::Field(field) => {
                format!(
                    "{field} of the Machine decides this field; set that, and drop the override"
                )
            }
            Decides::Operator => "the operator needs this field; drop the override".to_owned(),
            Decides::Several => {
                "several fields of the Machine decide what is in it; set single fields in it"
                    .to_owned()
            }
        };
        let code = Code::OverrideOfModelledField;
        findings.deny(Violation::new(
            location(path),
            code,
            Kind::Forbidden,
            detail,
        ));
    }
}

/// Rule [`Code::OverrideDoesNotFit`]. What the stored block has already is not checked again.
fn fits(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let Some(patch) = requested(lookup.merged.user()) else {
        return;
    };
    let stored = lookup.stored.and_then(Normalized::overrides);
    if lookup.backend != Backend::Kubevirt || stored == Some(patch) {
        return;
    }
    let Some(schema) = lookup.catalog.vm_schema() else {
        return;
    };
    for (path, value) in open_values(patch) {
        let mut location = location(&path);
        let detail = match schema.mismatch(&path, value) {
            None => continue,
            Some(SchemaMismatch::UnknownField {
                field,
                within,
                known,
            }) => {
                let nearest = did_you_mean(&field, known.iter().map(String::as_str));
                let known = nearest_first(&field, known);
                let field = shortened(&field);
                let place = if within.is_empty() {
                    "here".to_owned()
                } else {
                    format!("in {}", shortened(&within))
                };
                format!(
                    "VirtualMachines have no field '{field}' {place}; {nearest}known fields: {known}"
                )
            }
            Some(SchemaMismatch::Value(error)) => {
                for segment in error.instance_path() {
                    location = match segment {
                        LocationSegment::Property(name) => below(location, &name),
                        LocationSegment::Index(index) => location.key(&index.to_string()),
                    };
                }
                predicate(&error, None, "must")
            }
        };
        let code = Code::OverrideDoesNotFit;
        findings.deny(Violation::new(location, code, Kind::Invalid, detail));
    }
}

/// Rule [`Code::OverridesNeedKubevirt`].
fn needs_kubevirt(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    if requested(lookup.merged.user()).is_some() {
        let why = "there is no VirtualMachine on libvirt; drop it";
        libvirt::refuse(
            lookup,
            OVERRIDES,
            Code::OverridesNeedKubevirt,
            why,
            findings,
        );
    }
}

/// Rule [`Code::OverrideNotAllowed`] where no policy names any field.
fn permitted(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let patch = requested(lookup.merged.user());
    let Some(patch) = patch.filter(|_| lookup.backend == Backend::Kubevirt) else {
        return;
    };
    // A namespace of which it is not known which policies hold is reported as missing.
    let policies = lookup.catalog.policies(lookup.machine.namespace);
    let names_some = |policy: &Policy| policy.hardware.overrides.is_some();
    if policies.is_some_and(|policies| !policies.iter().any(|policy| names_some(policy))) {
        let detail = "no MachinePolicy of this namespace allows overrides (hardware.overrides); drop it, or ask an administrator";
        for (path, value) in open_values(patch) {
            findings.deny(not_allowed(&path, value, detail));
        }
    }
}

/// The fault of a value at `path` that no policy allows. Another value there is another fault: an override that the
/// stored Machine has may stay or be removed, but not be replaced by another value.
fn not_allowed(path: &[&str], value: &Value, detail: &str) -> Violation {
    let code = Code::OverrideNotAllowed;
    let fault = Violation::new(location(path), code, Kind::Forbidden, detail);
    fault.known_as(format!("{detail}: {value}"))
}

/// Rule [`Code::OverrideNotAllowed`].
fn allowed(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let Some(patch) = requested(machine.merged.user()) else {
        return;
    };
    let Some(fields) = &policy.hardware.overrides else {
        return;
    };
    for (path, value) in open_values(patch) {
        let written = path.join(".");
        if !fields.iter().any(|field| is_in(&written, field)) {
            let names = nearest_first(&written, fields.clone());
            let detail = format!("policy '{}' allows {names}", policy.name);
            findings.deny(not_allowed(&path, value, &detail));
        }
    }
}
