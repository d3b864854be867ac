//! Warnings before a Machine is deleted: the disks that are destroyed with it.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::decode::Metadata;
use crate::api::choice::{Backend, ReclaimPolicy};
use crate::api::normalized::{Normalized, NormalizedDisk};
use crate::api::status::MachineStatus;
use crate::names;
use crate::violation::Findings;
use crate::words::counted;

/// Most disks that are named one by one. The API server cuts the warnings of a request at 4096 characters.
const NAMED_MAX: usize = 8;

/// A stored Machine. A part that cannot be read gives no warnings: warnings only inform.
#[derive(Deserialize)]
struct Stored<'a> {
    metadata: Metadata,
    #[serde(borrow)]
    spec: Spec<'a>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Spec<'a> {
    #[serde(borrow)]
    normalized: Option<&'a RawValue>,
}

fn read<T: for<'de> Deserialize<'de>>(text: Option<&RawValue>) -> Option<T> {
    serde_json::from_str(text?.get()).ok()
}

/// The warnings of the deletion of a Machine: one for each disk that is destroyed with it. `old`: the stored object, in
/// JSON.
pub fn warn_of_deletion(namespace: &str, old: &str) -> Findings {
    let mut findings = Findings::default();
    let Ok(stored) = serde_json::from_str::<Stored<'_>>(old) else {
        return findings;
    };
    let Some(block) = read::<Normalized>(stored.spec.normalized) else {
        return findings;
    };
    let status: MachineStatus = read(stored.status).unwrap_or_default();
    let name = stored.metadata.name();
    let is_destroyed = |disk: &&NormalizedDisk| disk.reclaim_policy == ReclaimPolicy::Delete;
    let disks: Vec<_> = block.disks.iter().filter(is_destroyed).collect();
    for disk in disks.iter().take(NAMED_MAX) {
        let Some(volume) = volume(name, block.backend, disk, &status) else {
            continue;
        };
        findings.note(&format!(
            "Machine {namespace}/{name}: its deletion destroys disk '{}' ({}, {volume}); reclaimPolicy: Retain keeps it",
            disk.name, disk.size
        ));
    }
    if let Some(more) = disks.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        findings.note(&format!(
            "Machine {namespace}/{name}: its deletion destroys {}",
            counted(more, "more disk")
        ));
    }
    // The firmware state is kept if any disk is kept, also a disk that left the spec.
    let keeps_disk = disks.len() < block.disks.len()
        || !block.existing_disks.is_empty()
        || !status.kept_volumes.is_empty();
    if let Some(state) = state(&block).filter(|_| !keeps_disk) {
        findings.note(&format!(
            "Machine {namespace}/{name}: its deletion destroys {state}; a disk with reclaimPolicy: Retain keeps this, too"
        ));
    }
    findings
}

/// What the firmware and the TPM keep, in words; `None`: nothing.
fn state(block: &Normalized) -> Option<&'static str> {
    match (block.keeps_efi(), block.keeps_tpm()) {
        (false, false) => None,
        (true, false) => Some("its EFI variables"),
        (false, true) => Some("the content of its TPM"),
        (true, true) => Some("its EFI variables and the content of its TPM"),
    }
}

/// The volume of a disk in words; `None`: it was not made yet.
fn volume(
    machine: &str,
    backend: Backend,
    disk: &NormalizedDisk,
    status: &MachineStatus,
) -> Option<String> {
    match backend {
        Backend::Kubevirt => {
            let claim = names::claim(machine, &disk.name);
            Some(format!("PersistentVolumeClaim {claim}"))
        }
        Backend::Libvirt => {
            let host = status.host.as_deref()?;
            let mut volumes = status.volumes.iter();
            let volume = volumes.find(|volume| volume.name == disk.name)?;
            let volume = &volume.claim_name;
            Some(format!("volume {volume} on host {host}"))
        }
    }
}
