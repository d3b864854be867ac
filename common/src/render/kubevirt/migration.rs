//! A requested migration of a running guest to another node.

use super::identity::{machine_owner, metadata};
use super::types::{Migration, MigrationSpec};
use crate::render::identity::Identity;

/// Label of a node with its name; the value differs from the name on some clouds.
const LABEL_HOSTNAME: &str = "kubernetes.io/hostname";

/// The object with this name that moves the Machine's guest, to this node if one is given. KubeVirt removes all but the
/// last five of a guest that have ended; those go with the Machine.
#[must_use]
pub fn migration(machine: &Identity<'_>, name: &str, node: Option<&str>) -> Migration {
    let mut metadata = metadata(machine, name.to_owned());
    metadata.owner_references.push(machine_owner(machine));
    let node = node.map(|node| (LABEL_HOSTNAME.to_owned(), node.to_owned()));
    Migration {
        api_version: "kubevirt.io/v1".to_owned(),
        kind: "VirtualMachineInstanceMigration".to_owned(),
        metadata,
        spec: MigrationSpec {
            vmi_name: machine.name.to_owned(),
            added_node_selector: node.into_iter().collect(),
        },
    }
}
