//! Where a Machine runs in relation to others.

use crate::api::choice::GroupScope;
use crate::api::machine::{AntiAffinityGroup, Placement};
use crate::api::normalized::{NormalizedGroup, NormalizedPlacement};
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
        Refuse UnsupportedGroupScope = "What the Machines of a group shall not share is none of what can be."
            because "Only the values that the message lists exist."
            fix "Take one of the values that the message lists."
            crd All,
    }
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
    parts.placement = name.zip(scope).map(|(name, scope)| NormalizedPlacement {
        anti_affinity_group: NormalizedGroup {
            name,
            required: group.required.unwrap_or(false),
            scope,
        },
    });
}
