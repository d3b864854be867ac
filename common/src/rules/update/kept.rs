//! Warnings of disks that leave the spec. Their volumes are kept, so that neither a typo in a name nor another template
//! destroys data.

use crate::api::choice::Backend;
use crate::api::normalized::Normalized;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::names;
use crate::rules::rule::{Check, Update, rules};
use crate::violation::Findings;

rules! {
    "update" Check::Effect(kept_disks), on MACHINES, Update {
        Warn DiskKept = "A disk leaves the spec; its volume is kept with its data."
            because "`reclaimPolicy` is about the deletion of the Machine. A disk that is removed or renamed, by hand or through another template, is never destroyed."
            fix "Add a disk of the same name to use the volume again, or delete the volume with the command in the warning."
            crd Nothing scope Change,
    }
}

/// Rule [`Code::DiskKept`]: disks of the stored block that `new` does not have.
fn kept_disks(update: &Update<'_>, new: &Normalized, findings: &mut Findings) {
    let (namespace, machine) = (update.machine.namespace, update.machine.name);
    let stays = |name: &str| new.disks.iter().any(|disk| disk.name == name);
    for disk in update.old.disks.iter().filter(|disk| !stays(&disk.name)) {
        let (path, name, size) = (FieldPath::field("disks"), &disk.name, disk.size);
        let command = match update.backend {
            Backend::Kubevirt => {
                let claim = names::claim(machine, name);
                format!("kubectl delete pvc -n {namespace} {claim}")
            }
            // The annotation would delete the volume of a former Machine of the name.
            Backend::Libvirt if !update.made_volumes.contains(name) => {
                let text = format!(
                    "{path}: '{name}' ({size}) leaves the spec, and status.volumes has no volume of it; one that is made meanwhile is kept, and status.keptVolumes lists it"
                );
                findings.warn(Code::DiskKept, &text);
                continue;
            }
            Backend::Libvirt => {
                let annotation = names::ANNOTATION_RELEASE_VOLUME;
                format!("kubectl annotate machine -n {namespace} {machine} {annotation}={name}")
            }
        };
        let text = format!(
            "{path}: '{name}' ({size}) leaves the spec, its volume is kept; to delete it: {command}"
        );
        findings.warn(Code::DiskKept, &text);
    }
}
