//! Backend, template, storage classes, reclaim policies and hosts that the policies of a namespace allow.

use crate::api::choice::{Backend, Choice as _};
use crate::catalog::{Policy, built_in_names};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{ClassRequest, Leaf};
use crate::rules::rule::{Check, PolicySubject, rules};
use crate::rules::{classes, disks};
use crate::violation::{Findings, Kind, Location, Violation};

use super::images::images;
use super::message::{allows, names_of, not_allowed};

rules! {
    "policies" Check::Policy(backend), on MACHINES, Always {
        Refuse BackendNotAllowed = "A MachinePolicy does not allow the backend of the Machine."
            because "The administrator decides which backends the Machines of a namespace run on."
            fix "Take a backend that the message lists."
            crd Nothing,
    }
    "policies" Check::Policy(template), on MACHINES, Always {
        Refuse TemplateNotAllowed = "A MachinePolicy does not allow the template of the Machine."
            because "The administrator decides which templates the Machines of a namespace use."
            fix "Take a template that the message lists."
            crd Nothing,
        Refuse TemplateRequired = "The Machine names no template, and a MachinePolicy requires one."
            because "The policy requires a template."
            fix "Set `template` to one that the message lists."
            crd Nothing,
    }
    "policies" Check::Policy(storage_classes), on MACHINES, Always {
        Refuse StorageClassNotAllowed = "A MachinePolicy does not allow the storage class of a disk or CD-ROM drive."
            because "The administrator decides which storage the Machines of a namespace use."
            fix "Take a storage class that the message lists."
            crd Nothing,
    }
    "policies" Check::Policy(images), on MACHINES, Always, and [ImageSourceNotAllowed] {}
    "policies" Check::Policy(reclaim_policies), on MACHINES, Always {
        Refuse ReclaimPolicyNotAllowed = "A MachinePolicy does not allow the reclaim policy of a disk."
            because "The administrator decides whether disks of a namespace are deleted or kept with their Machines."
            fix "Take a reclaim policy that the message lists."
            crd Nothing,
    }
    "policies" Check::Policy(hosts), on MACHINES, Always {
        Refuse HostNotAllowed = "The node selector of a Machine on libvirt does not keep it on the hosts that a MachinePolicy allows."
            because "The administrator decides which hosts the Machines of a namespace run on. With these labels in the node selector the controller takes no other host."
            fix "Add the labels that the message names to `nodeSelector`."
            crd Nothing,
    }
}

/// Rule [`Code::BackendNotAllowed`]. A name that is no backend is refused as such.
fn backend(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let leaf = machine
        .merged
        .own("backend", |spec| spec.backend.as_deref());
    let is_backend = leaf.value.is_none_or(|text| Backend::parse(text).is_some());
    if let Some(allowed) = &policy.backends
        && is_backend
        && !allowed.contains(&machine.backend)
    {
        let used = machine.backend.as_str();
        let names = allowed.iter().map(ToString::to_string).collect();
        let allowed = allows(policy, used, names);
        let absent = || format!("the default backend is {used}");
        findings.deny(not_allowed(Code::BackendNotAllowed, leaf, absent, &allowed));
    }
}

/// Rules [`Code::TemplateNotAllowed`] and [`Code::TemplateRequired`]. A template that does not exist is refused as
/// such.
fn template(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let templates = policy.templates.as_deref();
    let allowed = |value: &str| match templates {
        Some(patterns) => {
            let built_in = built_in_names().map(str::to_owned);
            let known = built_in.chain(machine.catalog.template_names());
            allows(
                policy,
                value,
                names_of(patterns, &known.collect::<Vec<_>>()),
            )
        }
        None => format!("policy '{}' allows any", policy.name),
    };
    match machine.template {
        Some((name, path)) => {
            let is_allowed =
                templates.is_none_or(|patterns| patterns.iter().any(|it| it.matches(name)));
            if !is_allowed {
                let code = Code::TemplateNotAllowed;
                let fault = Violation::new(path, code, Kind::Forbidden, allowed(name));
                findings.deny(fault.text(name));
            }
        }
        None if policy.is_template_required && machine.merged.is_complete() => {
            let detail = format!("name a template; {}", allowed(""));
            let (path, code) = (FieldPath::TEMPLATE, Code::TemplateRequired);
            findings.deny(Violation::new(path, code, Kind::Required, detail));
        }
        None => {}
    }
}

/// Rule [`Code::StorageClassNotAllowed`].
fn storage_classes(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let Some(patterns) = &policy.storage_classes else {
        return;
    };
    for (name, leaf) in classes::requests(machine.merged, machine.backend) {
        let request = ClassRequest::of(leaf.value);
        let name = name.value.unwrap_or_default();
        // A disk for which no class was found is refused as such.
        let Some(class) = request.resolved(name, machine.pins) else {
            continue;
        };
        if !patterns.iter().any(|pattern| pattern.matches(&class)) {
            let known = classes::known(machine.merged, machine.backend, machine.catalog);
            let allowed = allows(policy, &class, names_of(patterns, &known));
            // The name `default` is the default class, not a class of that name.
            let leaf = Leaf {
                value: leaf.value.filter(|_| !request.is_open()),
                ..leaf
            };
            let absent = || format!("the default class is '{class}'");
            let code = Code::StorageClassNotAllowed;
            findings.deny(not_allowed(code, leaf, absent, &allowed));
        }
    }
}

/// Rule [`Code::ReclaimPolicyNotAllowed`]. A name that is no reclaim policy is refused as such.
fn reclaim_policies(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let Some(allowed) = &policy.reclaim_policies else {
        return;
    };
    for item in disks::existing::own(machine.merged, machine.backend) {
        let leaf = disks::written_policy(item);
        let reclaim_policy = disks::reclaim_policy(item, machine.pins, &mut Findings::default());
        if let Some(reclaim_policy) = reclaim_policy.filter(|it| !allowed.contains(it)) {
            let used = reclaim_policy.as_str();
            let names = allowed.iter().map(ToString::to_string).collect();
            let allowed = allows(policy, used, names);
            let absent = || format!("the default is {used}");
            let code = Code::ReclaimPolicyNotAllowed;
            findings.deny(not_allowed(code, leaf, absent, &allowed));
        }
    }
}

/// Rule [`Code::HostNotAllowed`].
fn hosts(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    if machine.backend != Backend::Libvirt {
        return;
    }
    let path = FieldPath::field("nodeSelector");
    let selector = machine.merged.user().node_selector.as_ref();
    // A Machine from before the policy keeps its selector: another one may be that of any host.
    let identity = |detail: &str| format!("{detail}: {selector:?}");
    for (key, value) in &policy.host_labels {
        let code = Code::HostNotAllowed;
        let policy = &policy.name;
        match selector.and_then(|selector| selector.get(key)) {
            Some(own) if own == value => {}
            Some(own) => {
                let detail = format!("policy '{policy}' allows hosts with {key}={value} only");
                let location = Location::from(path).key(key);
                let identity = identity(&detail);
                let fault = Violation::new(location, code, Kind::Forbidden, detail);
                findings.deny(fault.text(own).known_as(identity));
            }
            None => {
                let detail = format!(
                    "policy '{policy}' allows hosts with {key}={value} only; add this label"
                );
                let identity = identity(&detail);
                let fault = Violation::new(path, code, Kind::Required, detail);
                findings.deny(fault.known_as(identity));
            }
        }
    }
}
