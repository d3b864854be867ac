//! Where a Machine runs: in relation to others, on which tainted nodes, and with which priority.

use crate::api::choice::{GroupScope, TolerationOperator};
use crate::api::machine::{AntiAffinityGroup, Placement, Toleration};
use crate::api::normalized::{NormalizedGroup, NormalizedToleration};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Leaf, Merged};
use crate::violation::{Findings, Kind, Violation};

use super::form;
use super::rule::{Check, Parts, Subject, rules};

rules! {
    "machine" Check::Part(group), on MACHINES_AND_TEMPLATES, Always, and [InvalidObjectName] {
        Refuse GroupNameRequired = "A group of Machines that are kept apart has no name."
            because "The Machines of a namespace that give the same name are kept apart."
            fix "Add `name`."
            crd All,
        Refuse UnsupportedGroupScope = "The scope of a group does not exist."
            because "Only the values that the message lists exist."
            fix "Take one of the values that the message lists."
            crd All,
    }
    "machine" Check::Part(priority_class), on MACHINES_AND_TEMPLATES, Always, and [InvalidObjectName] {}
    "machine" Check::Part(tolerations), on MACHINES_AND_TEMPLATES, Always, and [InvalidLabel] {
        Refuse UnsupportedTolerationOperator = "The operator of a toleration does not exist."
            because "Only the values that the message lists exist."
            fix "Take one of the values that the message lists."
            crd All,
        Refuse UnsupportedTaintEffect = "The effect of a tolerated taint does not exist."
            because "Only the values that the message lists exist."
            fix "Take one of the values that the message lists, or drop `effect` to tolerate each."
            crd All,
        Refuse InvalidToleration = "The fields of a toleration contradict each other."
            because "Kubernetes refuses the pod of the guest."
            fix "Correct the field as the message says."
            crd All,
    }
}

/// The PriorityClass that the Machine names, else that of the template.
pub(super) fn requested_priority_class<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    let class = |placement: &'a Placement| placement.priority_class_name.as_deref();
    merged.pick(
        "placement.priorityClassName",
        |spec| spec.placement.as_ref().and_then(class),
        |content| content.placement.as_ref().and_then(class),
    )
}

/// Rule [`Code::InvalidObjectName`].
fn priority_class(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let leaf = requested_priority_class(subject.merged);
    form::object_name(leaf, findings);
    parts.priority_class = leaf.value.map(str::to_owned);
}

/// The group that the Machine names, else that of the template: as a whole.
pub(super) fn requested_group<'a>(merged: &Merged<'a>) -> Leaf<&'a AntiAffinityGroup> {
    let group = |placement: &'a Placement| placement.anti_affinity_group.as_ref();
    merged.pick(
        "placement.antiAffinityGroup",
        |spec| spec.placement.as_ref().and_then(group),
        |content| content.placement.as_ref().and_then(group),
    )
}

/// Rules [`Code::GroupNameRequired`] and [`Code::UnsupportedGroupScope`].
fn group(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let leaf = requested_group(subject.merged);
    let Some(group) = leaf.value else { return };
    let at = |field: &'static str| {
        if leaf.path.is_from_user() {
            FieldPath::field(field)
        } else {
            leaf.path
        }
    };
    let name = match group.name.as_deref() {
        None | Some("") => {
            let path = at("placement.antiAffinityGroup.name");
            let detail = "name the group; every Machine of the namespace that names it is in it";
            let code = Code::GroupNameRequired;
            findings.deny(Violation::new(path, code, Kind::Required, detail));
            None
        }
        Some(name) if !form::is_label(name) => {
            let path = at("placement.antiAffinityGroup.name");
            findings.deny(form::invalid_object_label(path, name));
            None
        }
        Some(name) => Some(name.to_owned()),
    };
    let scope = Leaf {
        value: group.scope.as_deref(),
        path: at("placement.antiAffinityGroup.scope"),
    };
    let code = Code::UnsupportedGroupScope;
    let scope = form::choice(scope, GroupScope::Host, code, findings);
    parts.group = name.zip(scope).map(|(name, scope)| NormalizedGroup {
        name,
        required: group.required.unwrap_or(false),
        scope,
    });
}

/// The list of tolerations, as it is named in paths.
const TOLERATIONS: &str = "placement.tolerations";

/// The tolerations that the Machine names, else those of the template: as a whole.
pub(super) fn requested_tolerations<'a>(merged: &Merged<'a>) -> Leaf<&'a [Toleration]> {
    let tolerations = |placement: &'a Placement| placement.tolerations.as_deref();
    merged.pick(
        TOLERATIONS,
        |spec| spec.placement.as_ref().and_then(tolerations),
        |content| content.placement.as_ref().and_then(tolerations),
    )
}

/// Rules [`Code::UnsupportedTolerationOperator`], [`Code::UnsupportedTaintEffect`] and [`Code::InvalidToleration`].
fn tolerations(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let leaf = requested_tolerations(subject.merged);
    for (index, item) in leaf.value.into_iter().flatten().enumerate() {
        let at = |field: &'static str| toleration_path(leaf.path, index, field);
        parts.tolerations.extend(toleration(item, at, findings));
    }
}

/// The field of the toleration with this index, or the template that the list at `path` is from.
pub(super) fn toleration_path(path: FieldPath, index: usize, field: &'static str) -> FieldPath {
    if path.is_from_user() {
        FieldPath::item(TOLERATIONS, index, field)
    } else {
        path
    }
}

fn toleration(
    item: &Toleration,
    at: impl Fn(&'static str) -> FieldPath,
    findings: &mut Findings,
) -> Option<NormalizedToleration> {
    let choice = |field: &'static str, value| Leaf {
        value,
        path: at(field),
    };
    let operator = form::choice(
        choice("operator", item.operator.as_deref()),
        TolerationOperator::Equal,
        Code::UnsupportedTolerationOperator,
        findings,
    );
    let effect = choice("effect", item.effect.as_deref());
    let effect = form::given_choice(effect, Code::UnsupportedTaintEffect, findings);
    let key = item.key.clone().filter(|key| !key.is_empty());
    let value = item.value.clone().filter(|value| !value.is_empty());
    if let Some(key) = &key {
        form::label_key(at("key"), key, findings);
    }
    if let Some(value) = &value {
        form::label_value(at("value").into(), value, findings);
    }
    let mut refuse = |field, kind, detail| {
        let code = Code::InvalidToleration;
        findings.deny(Violation::new(at(field), code, kind, detail));
    };
    if key.is_none() && operator == Some(TolerationOperator::Equal) {
        refuse(
            "key",
            Kind::Required,
            "name the key of the taint, or tolerate every taint with 'operator: Exists'",
        );
    }
    if value.is_some() && operator == Some(TolerationOperator::Exists) {
        refuse(
            "value",
            Kind::Invalid,
            "'operator: Exists' tolerates any value; drop value, or use 'operator: Equal'",
        );
    }
    if item.toleration_seconds.is_some() && item.effect.as_deref() != Some("NoExecute") {
        refuse(
            "tolerationSeconds",
            Kind::Invalid,
            "only a taint with 'effect: NoExecute' makes a guest leave its node; set that, or drop tolerationSeconds",
        );
    }
    Some(NormalizedToleration {
        effect,
        key,
        operator: operator?,
        toleration_seconds: item.toleration_seconds,
        value,
    })
}
