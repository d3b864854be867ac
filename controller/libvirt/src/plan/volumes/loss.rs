//! Disks that had a volume which is gone.
//!
//! ```text
//! recorded as made, not in the pool ─▶ VolumeLost: nothing is made ─┬─ it is there again ─▶ the Machine continues
//!                                                                   └─ user's annotation ─▶ recreated, once
//! ```
//! A pool whose file system is not mounted is active and empty. A guest on a blank disk would write what disappears at the
//! next mount.
//!
//! A domain is defined only after its volumes were made, so each volume that its metadata records existed. Without a domain
//! the Machine's status says it: a volume has a capacity there only once the host has shown it.

use common::api::normalized::NormalizedDisk;
use common::api::status::VolumeStatus;
use common::names;
use common::render::libvirt::is_disk_of;
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::super::action::Action;
use super::collected::Volumes;
use crate::images::names::disk_of;
use crate::names::domain_of;
use crate::observed::HostView;
use crate::parts::shell_word;

/// Phase of a volume that is lost, as on KubeVirt.
const LOST: &str = "Lost";

/// A volume that was made for a disk and is gone.
pub(super) struct LostVolume {
    pool: String,
    volume: String,
    /// Its capacity, as the status has it.
    capacity: Option<String>,
}

/// The volume that a disk had. The disk has none on the host. `pool`: that of its storage class.
pub(super) fn lost(
    machine: &Machine,
    disk: &NormalizedDisk,
    pool: &str,
    view: &HostView,
) -> Option<LostVolume> {
    let reported = reported(machine, disk);
    let guest = view.guest.as_ref();
    let metadata = guest.and_then(|guest| guest.metadata.as_ref());
    let mut records = metadata.iter().flat_map(|metadata| &metadata.volumes);
    let recorded = records.find(|record| record.disk == disk.name);
    let (pool, volume) = match (recorded, reported) {
        (Some(record), _) => (&*record.pool, &record.volume),
        (None, Some(reported)) => (pool, &reported.claim_name),
        (None, None) => return None,
    };
    Some(LostVolume {
        pool: pool.to_owned(),
        volume: volume.clone(),
        capacity: reported.and_then(|it| it.capacity.clone()),
    })
}

/// The volume of a disk that the status has as made. The name of the disk may have been that of an existing volume.
fn reported<'m>(machine: &'m Machine, disk: &NormalizedDisk) -> Option<&'m VolumeStatus> {
    let domain = domain_of(machine);
    let was_made = |it: &&VolumeStatus| {
        it.name == disk.name
            && is_disk_of(&it.claim_name, &domain)
            && disk_of(&it.claim_name) == Some(&*disk.name)
            && (it.capacity.is_some() || it.phase.as_deref() == Some(LOST))
    };
    machine.status.volumes.iter().find(was_made)
}

/// Whether the user wants this disk to be recreated if it is lost.
pub(super) fn is_to_be_recreated(machine: &Machine, disk: &NormalizedDisk) -> bool {
    let mut named = machine.named_in(names::ANNOTATION_RECREATE_VOLUME);
    named.any(|name| name == disk.name)
}

impl LostVolume {
    /// The condition of the disk.
    pub(super) fn fault(&self, machine: &Machine, disk: &NormalizedDisk, host: &str) -> Fault {
        let Self { pool, volume, .. } = self;
        let word = shell_word(pool);
        let source = match &disk.image {
            Some(_) => "with its image, without anything written since",
            None => "blank",
        };
        Fault::new(
            "VolumeLost",
            format!(
                "volume '{volume}' of disk '{disk}' is no longer in pool '{pool}' of LibvirtHost '{host}': mount the file system of the pool there if it is not mounted, or restore the volume, then run virsh pool-refresh {word}, and the Machine continues; or have the disk recreated, {source}: kubectl annotate machine -n {namespace} {name} {annotation}={disk}",
                disk = disk.name,
                namespace = machine.namespace(),
                name = machine.name(),
                annotation = names::ANNOTATION_RECREATE_VOLUME,
            ),
        )
    }
}

impl Volumes {
    /// Keeps in the status that the volume of a disk was made, until it is there again. Otherwise a domain that vanishes
    /// would leave no record of it.
    pub(super) fn report_lost(&mut self, disk: &NormalizedDisk, lost: &LostVolume) {
        let mut reported = self.reported.iter_mut();
        if let Some(reported) = reported.find(|it| it.name == disk.name) {
            reported.phase = Some(LOST.to_owned());
            reported.capacity.clone_from(&lost.capacity);
            return;
        }
        self.reported.push(VolumeStatus {
            name: disk.name.clone(),
            claim_name: lost.volume.clone(),
            phase: Some(LOST.to_owned()),
            capacity: lost.capacity.clone(),
            progress: None,
        });
    }

    /// Keeps what the status has of a disk about which nothing is known now.
    pub(super) fn keep_reported(&mut self, machine: &Machine, disk: &NormalizedDisk) {
        let mut known = machine.status.volumes.iter();
        self.reported
            .extend(known.find(|known| known.name == disk.name).cloned());
    }

    /// The removal of the annotation that has lost disks recreated: it acts on what is lost now. It stays while a disk that
    /// it names still has to be made; a copy takes several passes.
    pub(in crate::plan) fn answer_to_recreation(&self, machine: &Machine) -> Option<Action> {
        machine.annotation(names::ANNOTATION_RECREATE_VOLUME)?;
        let is_made = |disk: &String| {
            let placed = self.placed.get(disk);
            placed.is_some_and(|placed| {
                self.actions.iter().any(|action| {
                    matches!(action, Action::CreateVolume { pool, name, .. }
                        if (pool, name) == (&placed.pool, &placed.volume))
                })
            })
        };
        let is_answered = self.recreated.iter().all(is_made);
        is_answered.then_some(Action::RemoveAnnotation(names::ANNOTATION_RECREATE_VOLUME))
    }
}
