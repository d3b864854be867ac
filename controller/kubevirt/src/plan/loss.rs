//! Disks whose content is lost, or is about to be: their claim is being deleted, or is gone although a guest had it.
//!
//! ```text
//! claim of a running guest is deleted ─▶ PVCDeleting: the content is lost when the guest stops
//! claim is deleted, no guest had it ───▶ PVCDeleting: another one is made once it is gone
//! claim gone, VirtualMachine has it ───▶ PVCLost: nothing is made ─┬─ claim restored ──▶ the Machine continues
//!                                                                  └─ user's annotation ▶ recreated, once
//! ```
//! A VirtualMachine is created after the claims of its disks, so a claim that it has existed once. One that was never
//! bound, or whose import was not complete, had no content of a guest, and is recreated without a question.

use common::api::normalized::NormalizedDisk;
use common::names;
use common::render::kubevirt::Volume;

use super::observed::Observed;
use super::volume::in_use;
use crate::objects::Claim;
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// Phase of a volume whose claim is lost, as Kubernetes calls that of a claim that lost its volume.
pub(super) const LOST: &str = "Lost";

/// Whether the claim of a disk existed, had a volume with its image, and is gone. A medium can be imported again.
pub(super) fn is_lost(machine: &Machine, volume: &Volume<'_>, observed: &Observed) -> bool {
    let is_disk = volume.claim == names::claim(machine.name(), &volume.disk.name);
    let reported = machine.status.volumes.iter();
    let mut reported = reported.filter(|it| it.claim_name == volume.claim);
    // With a progress, the import was not complete: no guest had the volume.
    let was_filled = reported
        .next()
        .is_none_or(|it| it.phase.as_deref() != Some("Pending") && it.progress.is_none());
    let vm = observed.vm.as_deref();
    let ours = vm.filter(|vm| vm.belongs_to(machine.name(), machine.uid()));
    is_disk
        && was_filled
        && ours.is_some_and(|vm| vm.uses(&volume.claim))
        && !observed.claims.contains_key(&volume.claim)
}

/// The disks that the user wants to be recreated.
pub(super) fn recreated(machine: &Machine) -> impl Iterator<Item = &str> {
    machine.named_in(names::ANNOTATION_RECREATE_VOLUME)
}

/// The condition of a disk whose claim is lost.
pub(super) fn lost(machine: &Machine, volume: &Volume<'_>) -> Fault {
    let (claim, disk, name) = (&volume.claim, &volume.disk.name, machine.name());
    let source = match &volume.disk.image {
        Some(_) => "with its image, without anything written since",
        None => "blank",
    };
    Fault::new(
        "PVCLost",
        format!(
            "PersistentVolumeClaim {claim} of disk '{disk}' is gone, and with it what the guest had written: restore a claim of this name from a backup, with the labels {managed_by}={ours}, {machine_label}={name} and {disk_label}={disk}, and the Machine continues; or have the disk recreated, {source}: kubectl annotate machine -n {namespace} {name} {annotation}={disk}",
            managed_by = names::LABEL_MANAGED_BY,
            ours = names::MANAGED_BY,
            machine_label = names::LABEL_MACHINE,
            disk_label = names::LABEL_DISK,
            namespace = machine.namespace(),
            annotation = names::ANNOTATION_RECREATE_VOLUME,
        ),
    )
}

/// Whether a guest has got as far as to have mounted its volumes.
fn runs(observed: &Observed) -> bool {
    let instance = observed.instance.as_deref();
    instance.is_some_and(|instance| !observed.waits_for_node(instance))
}

/// The condition of a disk whose claim is being deleted while a guest has it.
pub(super) fn deleted_in_use(disk: &str, claim: &Claim, observed: &Observed) -> Option<Fault> {
    let has_guest = runs(observed) && in_use(claim.name(), observed);
    let volume = claim.spec.volume_name.as_deref().filter(|_| has_guest)?;
    Some(Fault::new(
        "PVCDeleting",
        format!(
            "PersistentVolumeClaim {claim} of disk '{disk}' was deleted: the running guest keeps it, and all its content is lost as soon as the guest stops or is restarted. A deletion cannot be taken back: copy the content from inside the guest, or keep the volume with: kubectl patch pv {volume} --type merge -p '{{\"spec\":{{\"persistentVolumeReclaimPolicy\":\"Retain\"}}}}'",
            claim = claim.name(),
        ),
    ))
}

/// The condition of a disk that is to get a claim of a name whose former claim is still being deleted, for example with
/// a former Machine of the name. The VirtualMachine does not get it: it would be deleted, and look like a lost disk.
pub(super) fn deleted_before_use(
    disk: &NormalizedDisk,
    claim: &Claim,
    observed: &Observed,
) -> Option<Fault> {
    let instance = observed.instance.as_deref();
    let waits = instance.is_some_and(|instance| observed.waits_for_node(instance));
    (waits || !in_use(claim.name(), observed)).then(|| {
        Fault::new(
            "PVCDeleting",
            format!(
                "the former PersistentVolumeClaim {claim} is being deleted: disk '{disk}' gets its own once that one is gone",
                claim = claim.name(),
                disk = disk.name,
            ),
        )
    })
}
