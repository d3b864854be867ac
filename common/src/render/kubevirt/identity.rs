//! Metadata of the objects in the cluster.

use super::types::{Metadata, OwnerReference};
use crate::names;
use crate::render::identity::Identity;

/// Metadata of an object made for the Machine, without an owner.
pub(super) fn metadata(machine: &Identity<'_>, name: String) -> Metadata {
    Metadata {
        name,
        namespace: machine.namespace.to_owned(),
        labels: machine.labels(),
        annotations: [(
            names::ANNOTATION_MACHINE_UID.to_owned(),
            machine.uid.to_owned(),
        )]
        .into(),
        ..Metadata::default()
    }
}

/// The Machine as an owner.
pub(super) fn machine_owner(machine: &Identity<'_>) -> OwnerReference {
    owner("Machine", machine.name, machine.uid)
}

/// An object of this product as an owner.
pub(super) fn owner(kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: format!("{}/{}", names::GROUP, names::VERSION),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: true,
    }
}
