//! The volumes of a Machine: one claim each, which is created, adopted, grown or released.

use std::collections::BTreeSet;

use common::api::choice::Choice as _;
use common::api::normalized::{Normalized, NormalizedDisk};
use common::names;
use common::render::kubevirt::claim as render;
use common::render::kubevirt::{Volume, volumes};

use super::action::{Action, ClaimPatch};
use super::existing::{IN_USE, existing_disks, in_use as in_use_by_another};
use super::guest_size;
use super::import::{self, Stage};
use super::loss::{deleted_before_use, deleted_in_use, is_lost, lost, recreated};
use super::observed::Observed;
use super::release::release_volume;
use super::shared_import;
use super::status::inputs::Sizes;
use super::volume::{Found, Size, in_use, is_left_by_former_machine};
use crate::objects::{Claim, DataVolume, find_condition};
use controller_core::backend::Growth;
use controller_core::conditions::{Fault, Outcome};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// Outcome of planning the volumes.
#[derive(Debug, Default)]
pub(super) struct Storage {
    pub(super) actions: Vec<Action>,
    /// Patches that grow claims. The storage may refuse them, so they come after what the guest needs.
    pub(super) growth: Vec<Action>,
    /// Releases of volumes that the VirtualMachine no longer has.
    pub(super) releases: Vec<Action>,
    /// Whether the guest must not start: an existing or adopted claim that it would get is used by others, or an existing
    /// one is missing.
    pub(super) holds_start: bool,
    /// First reason why a volume cannot be provided; the VirtualMachine is not made or updated then.
    pub(super) outcome: Outcome,
    /// Why a volume cannot be given to the guest yet, usually because its image is being imported. The VirtualMachine
    /// waits for it.
    pub(super) import: Option<Fault>,
    /// Names of the claims that are not bound yet.
    pub(super) pending: Vec<String>,
    /// Volumes that are smaller than desired.
    pub(super) sizes: Sizes,
}

/// While the growth of the Machine is held, no volume is made that the VirtualMachine does not have, and none grows.
pub(super) fn storage(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    growth: Growth<'_>,
) -> Storage {
    let mut storage = Storage::default();
    let is_held = growth != Growth::Permitted;
    // A request acts on what is lost now: it is removed unless a disk that it names still has to be made.
    let mut is_answered = recreated(machine).next().is_some();
    for volume in volumes(machine.name(), block) {
        if is_held && !has(&volume.claim, observed) {
            continue;
        }
        let is_requested = recreated(machine).any(|disk| disk == volume.disk.name);
        match provide(machine, &volume, observed) {
            Ok(found) => {
                storage.actions.extend(found.actions);
                match found.size {
                    Size::Right => {}
                    Size::Grows(..) if is_held => {}
                    Size::Grows(action, message) => {
                        storage.growth.extend(action.map(Action::PatchClaim));
                        storage.sizes.growing.extend(message);
                    }
                    Size::Fixed(fault) => {
                        storage.sizes.cannot_grow.get_or_insert(fault);
                    }
                }
                if let Some(fault) = found.import {
                    storage.importing(fault);
                } else if !found.bound {
                    storage.pending.push(volume.claim);
                }
            }
            Err(fault) => {
                is_answered &= !(is_requested && is_lost(machine, &volume, observed));
                storage.holds_start |= observed.adopted_users.contains_key(&volume.claim);
                storage.outcome.record_first(fault);
            }
        }
    }
    if is_answered {
        storage.actions.push(Action::RemoveRecreateRequest);
    }
    existing_disks(machine, block, observed, &mut storage);
    storage.releases = releases(machine, block, observed);
    storage
}

/// Whether there is a volume of this name, or the VirtualMachine or the guest has had one.
fn has(claim: &str, observed: &Observed) -> bool {
    observed.claims.contains_key(claim)
        || observed.data_volumes.contains_key(claim)
        || in_use(claim, observed)
}

impl Storage {
    /// Of several unfinished imports, a failing one is reported.
    fn importing(&mut self, fault: Fault) {
        let fails = |fault: &Fault| fault.reason() == import::FAILED;
        if self
            .import
            .as_ref()
            .is_none_or(|known| fails(&fault) && !fails(known))
        {
            self.import = Some(fault);
        }
    }
}

fn provide(machine: &Machine, volume: &Volume<'_>, observed: &Observed) -> Result<Found, Fault> {
    let disk = &*volume.disk;
    let importing = observed.data_volumes.get(&volume.claim);
    let importing = importing.map(std::sync::Arc::as_ref);
    if let Some(importing) = importing.filter(|it| !it.belongs_to(machine.name(), machine.uid())) {
        return import::foreign(machine, volume, importing, observed);
    }
    let outdated = importing.filter(|it| import::is_outdated(machine, volume, it, observed));
    if let Some(outdated) = outdated {
        return Ok(import::start_again(machine, volume, outdated, observed));
    }
    let Some(claim) = observed.claims.get(&volume.claim) else {
        if importing.is_some() {
            return Ok(underway(volume, importing, observed, vec![]));
        }
        let is_requested = recreated(machine).any(|name| name == disk.name);
        if is_lost(machine, volume, observed) && !is_requested {
            return Err(lost(machine, volume));
        }
        return make(machine, volume, observed);
    };
    if claim.is_deleting() {
        return deleted_in_use(&disk.name, claim, observed).map_or_else(
            || {
                Ok(Found {
                    import: deleted_before_use(disk, claim, observed),
                    ..Found::default()
                })
            },
            Err,
        );
    }
    if !claim.belongs_to(machine.name(), machine.uid()) {
        if let Some(other) = observed.taken.get(&volume.claim) {
            return Err(taken(volume, other));
        }
        if !can_adopt(machine, disk, claim, observed) {
            return Err(conflict(machine, &volume.claim, disk, claim));
        }
    }
    if let Some(user) = observed.adopted_users.get(&volume.claim) {
        return Err(in_use_by_another(&volume.claim, &disk.name, user));
    }
    let mut actions: Vec<_> = annotate(machine, disk, claim, observed)
        .map(Action::PatchClaim)
        .into_iter()
        .collect();
    match import::stage(claim, importing) {
        Stage::Over => {
            actions.extend(importing.map(import::release).into_iter().flatten());
            Ok(Found {
                actions,
                size: size(disk, claim, observed),
                bound: claim.status.phase == "Bound",
                import: None,
            })
        }
        Stage::WaitsForGuest => Ok(Found {
            actions,
            ..Found::default()
        }),
        Stage::Underway => match importing.and_then(|it| import::failed_import(volume, it)) {
            Some(fault) => Err(fault),
            None => Ok(underway(volume, importing, observed, actions)),
        },
    }
}

fn underway(
    volume: &Volume<'_>,
    importing: Option<&DataVolume>,
    observed: &Observed,
    mut actions: Vec<Action>,
) -> Found {
    actions.extend(shared_import::again(volume, observed));
    Found {
        actions,
        import: Some(import::underway(volume, importing, observed)),
        ..Found::default()
    }
}

/// Creates the claim of a volume, or the DataVolume from which CDI creates it.
fn make(machine: &Machine, volume: &Volume<'_>, observed: &Observed) -> Result<Found, Fault> {
    let disk = &volume.disk;
    if !disk.storage_class.is_empty() && !observed.classes.contains_key(&disk.storage_class) {
        return Err(Fault::new(
            "StorageClassNotFound",
            format!(
                "StorageClass '{}' of disk '{}' not found: create it; the Machine continues automatically when it appears",
                disk.storage_class, disk.name
            ),
        ));
    }
    if disk.image.is_some() {
        return import::begin(machine, volume, observed);
    }
    let desired = render(&machine.identity(&observed.cluster), volume);
    Ok(Found {
        actions: vec![Action::CreateClaim(desired)],
        ..Found::default()
    })
}

/// Whether a claim that is not the Machine's becomes that of the disk, with what is in it.
pub(crate) fn can_adopt(
    machine: &Machine,
    disk: &NormalizedDisk,
    claim: &Claim,
    observed: &Observed,
) -> bool {
    is_left_by_former_machine(claim, machine, disk, observed) && fits(disk, claim)
}

/// Whether a claim can serve the disk: its spec is immutable apart from the size, and a size cannot shrink.
fn fits(disk: &NormalizedDisk, claim: &Claim) -> bool {
    let spec = &claim.spec;
    spec.storage_class_name.as_deref() == Some(disk.storage_class.as_str())
        && spec.volume_mode.as_deref().unwrap_or("Filesystem") == disk.volume_mode.as_str()
        && spec.access_modes == [disk.access_mode.as_str()]
        && spec
            .resources
            .requests
            .storage
            .is_some_and(|size| size <= disk.size)
}

/// The fault of a disk whose claim was kept from a former Machine, and is a disk of another Machine as it is.
fn taken(volume: &Volume<'_>, other: &str) -> Fault {
    Fault::new(
        IN_USE,
        format!(
            "PersistentVolumeClaim {claim} of disk '{disk}' is used as it is by Machine '{other}', which names it in claimName: rename this disk, or remove that one",
            claim = volume.claim,
            disk = volume.disk.name,
        ),
    )
}

fn conflict(machine: &Machine, name: &str, disk: &NormalizedDisk, claim: &Claim) -> Fault {
    let ours = claim.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY);
    let why = match claim.machine().filter(|_| ours) {
        Some(owner) if owner == machine.name() => {
            "was kept from another Machine of this name and differs in class, mode or size"
                .to_owned()
        }
        Some(owner) => format!(
            "belongs to disk '{}' of Machine '{owner}'",
            claim.label(names::LABEL_DISK).unwrap_or_default()
        ),
        None => "exists and was not made for a Machine".to_owned(),
    };
    Fault::new(
        "NameConflict",
        format!(
            "PersistentVolumeClaim '{name}' {why}: give disk '{}' another name, or delete that claim; it is left untouched",
            disk.name
        ),
    )
}

/// The patch that sets the Machine's annotations on a claim; `None` if it has them.
fn annotate(
    machine: &Machine,
    disk: &NormalizedDisk,
    claim: &Claim,
    observed: &Observed,
) -> Option<ClaimPatch> {
    let mut patch = patch_of(claim);
    let wanted = [
        (names::ANNOTATION_MACHINE_UID, machine.uid()),
        (
            names::ANNOTATION_RECLAIM_POLICY,
            disk.reclaim_policy.as_str(),
        ),
    ];
    for (key, value) in wanted {
        if claim.annotation(key) != Some(value) {
            patch.annotations.insert(key, Some(value.to_owned()));
        }
    }
    let is_retained = claim.annotation(names::ANNOTATION_RETAINED_FROM).is_some();
    let unused = [
        (names::ANNOTATION_RETAINED_FROM, is_retained),
        (
            names::ANNOTATION_SIZE_IN_GUEST,
            guest_size::is_outdated(claim, observed),
        ),
    ];
    let unused = unused.into_iter().filter(|(_, is_unused)| *is_unused);
    patch.annotations.extend(unused.map(|(key, _)| (key, None)));
    (!patch.annotations.is_empty()).then_some(patch)
}

/// Compares the size of a claim with that of its disk. Kubernetes grows only a bound claim.
fn size(disk: &NormalizedDisk, claim: &Claim, observed: &Observed) -> Size {
    let requests = claim.spec.resources.requests;
    let Some(requested) = requests.storage.filter(|_| claim.status.phase == "Bound") else {
        return Size::Right;
    };
    let class = &disk.storage_class;
    let lacks = claim.status.capacity.storage.filter(|has| *has < disk.size);
    if requested < disk.size && observed.classes.get(class) == Some(&false) {
        // The storage may have provisioned more than was requested.
        return lacks.map_or(Size::Right, |has| {
            let message = format!(
                "disk '{}' cannot grow from {has} to {}, because StorageClass '{class}' does not allow it: set allowVolumeExpansion: true on the class if its storage can; the volume grows automatically then",
                disk.name, disk.size
            );
            Size::Fixed(Fault::new("VolumeExpansionNotAllowed", message))
        });
    }
    let patch = (requested < disk.size).then(|| {
        let record = guest_size::record(claim, requested, observed);
        let record = record.map(|size| (names::ANNOTATION_SIZE_IN_GUEST, Some(size)));
        ClaimPatch {
            storage: Some(disk.size.to_string()),
            annotations: record.into_iter().collect(),
            ..patch_of(claim)
        }
    });
    let message = lacks.map(|has| {
        let (name, progress) = (claim.name(), progress(claim));
        let size = disk.size;
        format!("PersistentVolumeClaim {name} grows from {has} to {size}{progress}")
    });
    Size::Grows(patch, message)
}

/// Progress of a growing volume. The text of a failure changes with each attempt, so the message refers to the claim's
/// events instead of quoting it.
fn progress(claim: &Claim) -> &'static str {
    let has_condition =
        |kind: &str| find_condition(&claim.status.conditions, kind, "True").is_some();
    if has_condition("ControllerResizeError") || has_condition("NodeResizeError") {
        "; that failed and is tried again, the claim's events say why"
    } else if has_condition("FileSystemResizePending") {
        "; the volume has, its file system follows on the node: restart the guest if it does not"
    } else {
        ""
    }
}

fn patch_of(claim: &Claim) -> ClaimPatch {
    ClaimPatch {
        name: claim.name().to_owned(),
        uid: claim.uid().to_owned(),
        ..ClaimPatch::default()
    }
}

/// Releases volumes that are not in the block, once neither the VirtualMachine nor the guest has them.
fn releases(machine: &Machine, block: &Normalized, observed: &Observed) -> Vec<Action> {
    let wanted = volumes(machine.name(), block).map(|volume| volume.claim);
    let wanted: BTreeSet<_> = wanted.collect();
    let known: BTreeSet<_> = observed
        .claims
        .keys()
        .chain(observed.data_volumes.keys())
        .collect();
    known
        .into_iter()
        .filter(|name| !wanted.contains(*name) && !observed.existing.contains_key(*name))
        .filter(|name| !in_use(name, observed))
        .flat_map(|name| release_volume(machine, name, observed))
        .collect()
}
