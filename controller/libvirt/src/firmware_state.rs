//! What becomes of EFI variables and of the TPM when the definition of a domain is removed.

use common::api::choice::{Choice as _, ReclaimPolicy};
use common::render::libvirt::VolumeRecord;
use controller_core::deletion::deletes;

use crate::access::FirmwareState;

/// EFI variables and the content of the TPM are kept if a disk of the Machine is kept: a disk that is encrypted with a
/// key of the TPM cannot be read without it.
///
/// `volumes`: as the deletion of disks reads them. The names of the files contain the Machine's uid, so no other Machine
/// ever uses them by accident.
pub(crate) fn firmware_state(volumes: &[VolumeRecord]) -> FirmwareState {
    let mut disks = volumes.iter();
    let is_kept = |policy: ReclaimPolicy| !deletes(Some(policy.as_str()));
    if disks.any(|disk| is_kept(disk.reclaim_policy)) {
        FirmwareState::Keep
    } else {
        FirmwareState::Remove
    }
}
