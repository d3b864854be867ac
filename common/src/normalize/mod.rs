//! The steps before rules read an intent: digest, pins, and the merge with its template.
//!
//! ```text
//! intent + pins ──merge──▶ Merged ──rules::resolve──▶ parts of the block, or violations
//! ```
//!
//! All functions depend on the intent and the pins alone: on no clock, random number or lookup, and not on
//! the Machine's name.

mod hash;
mod merge;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use hash::hash;
pub use hash::intent_hash;
pub use merge::{Base, Filled, Item, Leaf, Merged, Named};

use crate::api::choice::{Backend, DeviceKind, FirmwareType, OsFamily, ReclaimPolicy};
use crate::api::machine::MachineSpec;
use crate::api::machine_image::PinnedImage;
use crate::api::normalized::{Normalized, TemplatePin};
use crate::field_path::FieldPath;
use crate::names;

/// The spec of a Machine as it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Intent<'a> {
    /// The spec without its block.
    pub spec: &'a MachineSpec,
    /// The label that names the template when the spec does not.
    pub template_label: Option<&'a str>,
    /// Digest of spec and label: [`intent_hash`].
    pub hash: &'a str,
}

impl<'a> Intent<'a> {
    /// Name of the template and the path that names it: the field, else the label. An empty label
    /// counts as absent.
    pub fn template(&self) -> Option<(&'a str, FieldPath)> {
        let field = self
            .spec
            .template
            .as_deref()
            .map(|name| (name, FieldPath::TEMPLATE));
        let label = self.template_label.filter(|name| !name.is_empty());
        field.or(label.map(|name| (name, FieldPath::TEMPLATE_LABEL)))
    }
}

/// The template that an intent names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateChoice {
    /// The intent names none.
    None,
    /// The template exists; its name and content.
    Pinned(Box<TemplatePin>),
    /// The template does not exist.
    Unknown,
}

/// Values that an intent does not contain, from the catalog or from the stored block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    /// Name and content of the template.
    pub template: TemplateChoice,
    /// Backend, if the intent names none.
    pub backend: Backend,
    /// Storage classes by name of disk or CD-ROM, if the intent does not name one.
    pub storage_classes: BTreeMap<String, String>,
    /// Reclaim policies by name of disk, if the intent names none.
    pub reclaim_policies: BTreeMap<String, ReclaimPolicy>,
    /// Reclaim policy of other disks, if the intent names none.
    pub reclaim_policy: ReclaimPolicy,
    /// MachineImages by name of the disk or CD-ROM that names them.
    pub images: BTreeMap<String, PinnedImage>,
    /// Names of the disks that have no serial number unless the intent gives one: those of blocks of version 1.
    pub disks_without_serial: BTreeSet<String>,
    /// Names of the disks that KubeVirt may plug into the running guest and out of it, and of the CD-ROM drives whose media
    /// it may change.
    pub hotpluggable: BTreeSet<String>,
    /// What is left to the backend unless the intent says otherwise.
    pub left_to_backend: LeftToBackend,
    /// Defaults that a MachineImage decided when the Machine was made.
    pub defaults: ImageDefaults,
    /// How KubeVirt gives devices of nodes to guests, by name of the resource. Others are PCI devices.
    pub device_kinds: BTreeMap<String, DeviceKind>,
    /// Keys of annotations that the policies of its namespace carry to a guest on KubeVirt.
    pub annotation_keys: Vec<String>,
}

impl Pins {
    /// How KubeVirt gives a device to a guest.
    pub(crate) fn device_kind(&self, resource: &str) -> DeviceKind {
        let kind = self.device_kinds.get(resource);
        kind.copied().unwrap_or(DeviceKind::Pci)
    }
}

/// What blocks of earlier releases do not say, so that the backend decides it. Such Machines keep that: they would wait
/// for a restart after an upgrade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftToBackend {
    /// Whether EFI variables persist, in a block of version 1 with UEFI.
    pub efi_state: bool,
    /// How long the guest has to shut down.
    pub grace_period: bool,
}

impl LeftToBackend {
    /// What a block leaves to the backend; without a block nothing is.
    pub(crate) fn by(block: Option<&Normalized>) -> Self {
        block.map_or_else(Self::default, |block| Self {
            efi_state: block.firmware.kind == FirmwareType::Efi
                && block.firmware.persistent.is_none(),
            grace_period: block.termination_grace_period_seconds.is_none(),
        })
    }
}

/// Defaults that the MachineImage decides which a machine boots from. A Machine keeps them when its boot order or its
/// CD-ROMs change: an installed system does not start on other hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageDefaults {
    /// Family of the operating system, which may be unknown; `None`: the image decides.
    pub os: Option<Option<OsFamily>>,
    /// Whether the firmware is UEFI; `None`: the image decides.
    pub efi: Option<bool>,
}

/// The defaults in a block.
pub(crate) fn defaults_of(block: &Normalized) -> ImageDefaults {
    ImageDefaults {
        os: Some(block.os),
        efi: Some(block.firmware.kind == FirmwareType::Efi),
    }
}

/// The pins in a block.
pub fn pins_of(block: &Normalized) -> Pins {
    let disks = block
        .disks
        .iter()
        .map(|disk| (&disk.name, Some(&disk.storage_class)));
    let cdroms = block
        .cdroms
        .iter()
        .map(|cdrom| (&cdrom.name, cdrom.storage_class.as_ref()));
    let policies = block.disks.iter();
    Pins {
        reclaim_policies: policies
            .map(|disk| (disk.name.clone(), disk.reclaim_policy))
            .collect(),
        reclaim_policy: ReclaimPolicy::Delete,
        images: images_in(block),
        disks_without_serial: disks_without_serial(Some(block)),
        hotpluggable: hotpluggable_in(Some(block)),
        left_to_backend: LeftToBackend::by(Some(block)),
        defaults: defaults_of(block),
        device_kinds: device_kinds(Some(block)),
        annotation_keys: block.annotation_keys.clone(),
        template: match &block.template {
            Some(pin) => TemplateChoice::Pinned(Box::new(pin.clone())),
            None => TemplateChoice::None,
        },
        backend: block.backend,
        storage_classes: disks
            .chain(cdroms)
            .filter_map(|(name, class)| Some((name.clone(), class?.clone())))
            .collect(),
    }
}

/// How a block, if there is one, gives devices of nodes to the guest, by name of the resource.
pub(crate) fn device_kinds(block: Option<&Normalized>) -> BTreeMap<String, DeviceKind> {
    let devices = block.into_iter().flat_map(Normalized::devices);
    devices
        .map(|device| (device.device_name.clone(), device.kind))
        .collect()
}

/// Names of the disks of a block, if there is one, that have no serial number.
pub(crate) fn disks_without_serial(block: Option<&Normalized>) -> BTreeSet<String> {
    let disks = block.into_iter().flat_map(|block| &block.disks);
    let disks = disks.filter(|disk| disk.serial.is_none());
    disks.map(|disk| disk.name.clone()).collect()
}

/// Names of the disks that KubeVirt hot-plugs, and of the drives whose medium it changes live. Empty without a block.
pub(crate) fn hotpluggable_in(block: Option<&Normalized>) -> BTreeSet<String> {
    let disks = block.into_iter().flat_map(|block| &block.disks);
    let disks = disks.filter(|disk| disk.hotpluggable);
    let cdroms = block.into_iter().flat_map(|block| &block.cdroms);
    let cdroms = cdroms.filter(|cdrom| cdrom.hotpluggable);
    let names = disks.map(|disk| &disk.name);
    let names = names.chain(cdroms.map(|cdrom| &cdrom.name));
    names.cloned().collect()
}

/// The MachineImages of a block, by name of the disk or CD-ROM.
pub fn images_in(block: &Normalized) -> BTreeMap<String, PinnedImage> {
    let disks = block.disks.iter();
    let disks = disks.map(|it| (&it.name, it.image.as_ref(), it.image_pin.as_ref()));
    let cdroms = block.cdroms.iter();
    let cdroms = cdroms.map(|it| (&it.name, it.image.as_ref(), it.image_pin.as_ref()));
    disks
        .chain(cdroms)
        .filter_map(|(name, image, pin)| Some((name.clone(), PinnedImage::of(image, pin)?)))
        .collect()
}

/// Merges an intent over the template of its pins. Images that are named have no source yet:
/// [`Merged::with_images`].
pub fn merge<'a>(intent: &Intent<'a>, template: &'a TemplateChoice) -> Merged<'a> {
    let base = match (template, intent.template()) {
        (TemplateChoice::Pinned(pin), Some((_, path))) => Base::Template(&pin.content, path),
        (TemplateChoice::Unknown, _) => Base::Unknown,
        (TemplateChoice::None | TemplateChoice::Pinned(_), _) => Base::Nothing,
    };
    Merged::new(intent.spec, base)
}

/// The storage class that a spec requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassRequest<'a> {
    /// The class of this name.
    Named(&'a str),
    /// No class, written as an empty text.
    NoClass,
    /// The cluster's default class; with `prefer_named`, a class with the name `default` if there is one.
    ClusterDefault {
        /// Whether the spec contains the name `default`.
        prefer_named: bool,
    },
}

impl<'a> ClassRequest<'a> {
    /// The request of the field `storageClass`.
    pub fn of(field: Option<&'a str>) -> Self {
        match field {
            None => Self::ClusterDefault {
                prefer_named: false,
            },
            Some("") => Self::NoClass,
            Some(names::DEFAULT_STORAGE_CLASS) => Self::ClusterDefault { prefer_named: true },
            Some(name) => Self::Named(name),
        }
    }

    /// Whether the class is left to the cluster or the host.
    pub fn is_open(self) -> bool {
        matches!(self, Self::ClusterDefault { .. })
    }

    /// The class for the disk or CD-ROM of this name; `None` if its pin is missing.
    pub fn resolved(self, name: &str, pins: &Pins) -> Option<String> {
        match self {
            Self::Named(class) => Some(class.to_owned()),
            Self::NoClass => Some(String::new()),
            Self::ClusterDefault { .. } => pins.storage_classes.get(name).cloned(),
        }
    }
}
