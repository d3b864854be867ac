//! The volumes of a Machine: a claim each, made, adopted, grown, and let go.

use std::collections::BTreeSet;

use common::api::choice::Choice as _;
use common::api::normalized::{Normalized, NormalizedDisk};
use common::names;
use common::render::kubevirt::claim as render;
use common::render::kubevirt::{Volume, volumes};

use super::delete::farewell;
use super::import::{self, Stage};
use super::{Action, ClaimPatch, Observed};
use crate::objects::data_volume::DataVolume;
use crate::objects::{Claim, told};
use controller_core::conditions::{Fault, Outcome};
use controller_core::machine::Machine;
use controller_core::objects::Meta;

/// What is to be done about the disks.
#[derive(Debug, Default)]
pub(super) struct Storage {
    pub(super) actions: Vec<Action>,
    /// Sizes to grow. The storage may refuse, and nothing else depends on it.
    pub(super) growth: Vec<Action>,
    /// What can only be done once the VirtualMachine is as it should be.
    pub(super) farewells: Vec<Action>,
    /// Whether the VirtualMachine has the claims it names.
    pub(super) outcome: Outcome,
    /// What is told of an image that is not there yet. The VirtualMachine waits for it.
    pub(super) import: Option<Fault>,
    /// Names of the claims that are not bound yet.
    pub(super) pending: Vec<String>,
    /// What is told of volumes that do not have their size yet.
    pub(super) sizes: Sizes,
}

/// Volumes that are smaller than they are to be. Nothing waits for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    /// One that cannot grow.
    pub(super) fixed: Option<Fault>,
    /// Those that grow, and how far they are.
    pub(super) growing: Vec<String>,
}

pub(super) fn storage(machine: &Machine, block: &Normalized, observed: &Observed) -> Storage {
    let mut storage = Storage::default();
    for volume in volumes(machine.name(), block) {
        match provide(machine, &volume, observed) {
            Ok(found) => {
                storage.actions.extend(found.actions);
                match found.size {
                    Size::Right => {}
                    Size::Grows(action, told) => {
                        storage.growth.extend(action.map(Action::PatchClaim));
                        storage.sizes.growing.extend(told);
                    }
                    Size::Fixed(told) => {
                        storage.sizes.fixed.get_or_insert(told);
                    }
                }
                if let Some(told) = found.import {
                    storage.importing(told);
                } else if !found.bound {
                    storage.pending.push(volume.claim);
                }
            }
            Err(fault) => storage.outcome.worsen(fault),
        }
    }
    storage.farewells = farewells(machine, block, observed);
    storage
}

impl Storage {
    /// Of several imports, one that fails is told.
    fn importing(&mut self, told: Fault) {
        let fails = |told: &Fault| told.reason() == import::FAILED;
        if self
            .import
            .as_ref()
            .is_none_or(|known| fails(&told) && !fails(known))
        {
            self.import = Some(told);
        }
    }
}

/// What there is of a volume, and what is to be done about it.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) actions: Vec<Action>,
    pub(super) size: Size,
    pub(super) bound: bool,
    /// What is told of an image that is not there yet.
    pub(super) import: Option<Fault>,
}

/// How the size of a volume compares with that of its disk.
#[derive(Debug, Default)]
pub(super) enum Size {
    #[default]
    Right,
    /// It is asked to grow where it was not yet, and told of until it has.
    Grows(Option<ClaimPatch>, Option<String>),
    /// It is too small for good.
    Fixed(Fault),
}

fn provide(machine: &Machine, volume: &Volume<'_>, observed: &Observed) -> Result<Found, Fault> {
    let disk = &*volume.disk;
    let importing = observed.data_volumes.get(&volume.claim);
    let importing = importing.map(std::sync::Arc::as_ref);
    if let Some(importing) = importing.filter(|it| !it.belongs_to(machine.name(), machine.uid())) {
        return import::foreign(machine, volume, importing, observed);
    }
    let Some(claim) = observed.claims.get(&volume.claim) else {
        if importing.is_some() {
            return Ok(underway(volume, importing, observed, vec![]));
        }
        return make(machine, volume, observed);
    };
    if claim.is_deleting() {
        return Ok(Found::default());
    }
    let adoptable = || is_left_over(&**claim, machine, disk, observed) && fits(disk, claim);
    if !claim.belongs_to(machine.name(), machine.uid()) && !adoptable() {
        return Err(conflict(machine, &volume.claim, disk, claim));
    }
    let mut actions: Vec<_> = mark(machine, disk, claim)
        .map(Action::PatchClaim)
        .into_iter()
        .collect();
    match import::stage(claim, importing) {
        Stage::Over => {
            actions.extend(importing.and_then(import::release));
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
        Stage::Underway => match importing.and_then(|it| import::given_up(volume, it)) {
            Some(fault) => Err(fault),
            None => Ok(underway(volume, importing, observed, actions)),
        },
    }
}

fn underway(
    volume: &Volume<'_>,
    importing: Option<&DataVolume>,
    observed: &Observed,
    actions: Vec<Action>,
) -> Found {
    Found {
        actions,
        import: Some(import::underway(volume, importing, observed)),
        ..Found::default()
    }
}

/// Makes the claim of a volume, or has CDI make one.
fn make(machine: &Machine, volume: &Volume<'_>, observed: &Observed) -> Result<Found, Fault> {
    let disk = &volume.disk;
    if !disk.storage_class.is_empty() && !observed.classes.contains_key(&disk.storage_class) {
        return Err(Fault::new(
            "StorageClassNotFound",
            format!(
                "StorageClass '{}' of disk '{}' not found: create it; the Machine goes on by itself when it appears",
                disk.storage_class, disk.name
            ),
        ));
    }
    if disk.image.is_some() {
        return import::begin(machine, volume, observed);
    }
    let wish = render(&machine.identity(&observed.cluster), volume);
    Ok(Found {
        actions: vec![Action::CreateClaim(wish)],
        ..Found::default()
    })
}

/// Whether something was made for a Machine and a disk of these names, and no living Machine has it.
pub(super) fn is_left_over(
    object: &impl Meta,
    machine: &Machine,
    disk: &NormalizedDisk,
    observed: &Observed,
) -> bool {
    let named = object.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY)
        && object.machine() == Some(machine.name())
        && object.label(names::LABEL_DISK) == Some(disk.name.as_str());
    let free = object
        .machine_uid()
        .is_none_or(|uid| !observed.living.contains(uid));
    named && free
}

/// Whether a claim can be what the disk wishes: everything but the size is immutable, and a size
/// cannot shrink.
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
            "PersistentVolumeClaim '{name}' {why}: rename disk '{}', or delete or rename that claim; it is left untouched",
            disk.name
        ),
    )
}

/// Marks that a claim of ours lacks.
fn mark(machine: &Machine, disk: &NormalizedDisk, claim: &Claim) -> Option<ClaimPatch> {
    let mut patch = patch_of(claim);
    let wished = [
        (names::ANNOTATION_MACHINE_UID, machine.uid()),
        (
            names::ANNOTATION_RECLAIM_POLICY,
            disk.reclaim_policy.as_str(),
        ),
    ];
    for (key, value) in wished {
        if claim.annotation(key) != Some(value) {
            patch.annotations.insert(key, Some(value.to_owned()));
        }
    }
    if claim.annotation(names::ANNOTATION_RETAINED_FROM).is_some() {
        patch
            .annotations
            .insert(names::ANNOTATION_RETAINED_FROM, None);
    }
    (!patch.annotations.is_empty()).then_some(patch)
}

/// What is to be done about the size of a claim. Kubernetes grows only one that is bound.
fn size(disk: &NormalizedDisk, claim: &Claim, observed: &Observed) -> Size {
    let requests = claim.spec.resources.requests;
    let Some(asked) = requests.storage.filter(|_| claim.status.phase == "Bound") else {
        return Size::Right;
    };
    let class = &disk.storage_class;
    let lacks = claim.status.capacity.storage.filter(|has| *has < disk.size);
    if asked < disk.size && observed.classes.get(class) == Some(&false) {
        // Storage may have given more than it was asked for.
        return lacks.map_or(Size::Right, |has| {
            let told = format!(
                "disk '{}' cannot grow from {has} to {}, because StorageClass '{class}' does not allow it: set allowVolumeExpansion: true on the class if its storage can; the volume grows by itself then",
                disk.name, disk.size
            );
            Size::Fixed(Fault::new("VolumeExpansionNotAllowed", told))
        });
    }
    let patch = (asked < disk.size).then(|| ClaimPatch {
        storage: Some(disk.size.to_string()),
        ..patch_of(claim)
    });
    let told = lacks.map(|has| {
        let (name, progress) = (claim.name(), progress(claim));
        let size = disk.size;
        format!("PersistentVolumeClaim {name} grows from {has} to {size}{progress}")
    });
    Size::Grows(patch, told)
}

/// How far a volume is that grows. What a failure says is in the events of the claim, and another text
/// with every attempt.
fn progress(claim: &Claim) -> &'static str {
    let is_told = |kind: &str| told(&claim.status.conditions, kind, "True").is_some();
    if is_told("ControllerResizeError") || is_told("NodeResizeError") {
        "; that failed and is tried again, the claim's events tell why"
    } else if is_told("FileSystemResizePending") {
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

/// Volumes that are no longer wished, once neither the VirtualMachine nor the guest has them.
fn farewells(machine: &Machine, block: &Normalized, observed: &Observed) -> Vec<Action> {
    let wished = volumes(machine.name(), block).map(|volume| volume.claim);
    let wished: BTreeSet<_> = wished.collect();
    let known: BTreeSet<_> = observed
        .claims
        .keys()
        .chain(observed.data_volumes.keys())
        .collect();
    known
        .into_iter()
        .filter(|name| !wished.contains(*name) && !in_use(name, observed))
        .flat_map(|name| {
            let actions = farewell(machine, name, observed);
            let confirm = (!actions.is_empty()).then(|| Action::ConfirmUnused {
                claim: Some(name.clone()),
            });
            confirm.into_iter().chain(actions)
        })
        .collect()
}

pub(super) fn in_use(claim: &str, observed: &Observed) -> bool {
    let (vm, instance) = (&observed.vm, &observed.instance);
    vm.as_ref().is_some_and(|vm| vm.uses(claim))
        || instance
            .as_ref()
            .is_some_and(|instance| instance.uses(claim))
}
