//! MachineImages that a Machine names, looked up in the catalog.
//!
//! An image that the same disk named before is not looked up: the disk keeps the source that it was filled from.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::machine_image::PinnedImage;
use crate::catalog::Catalog;
use crate::code::Code;
use crate::normalize::{Filled, Item, Leaf, Merged};
use crate::violation::{Findings, Kind, Reference, Violation};
use crate::words::{did_you_mean, nearest_first};

use super::form;
use super::rule::{Check, ImageRequest, Settings, rules};

rules! {
    "references" Check::Image(images), on MACHINES, Always {
        Refuse ImageNotFound = "The MachineImage does not exist."
            because "Without it the disk has no content, and the guest would not boot."
            fix "Take one of the names that the message lists, or apply the MachineImage first."
            crd Nothing,
        Warn ImageDeprecated = "The MachineImage should no longer be used."
            because "The administrator recommends another one to all users; the image still works."
            fix "Follow the administrator's text in the message."
            crd Nothing,
    }
    "references" Check::Content(template_images), on TEMPLATES, Always {
        Warn TemplateImageNotFound = "A MachineTemplate names a MachineImage that does not exist."
            because "Machines with this template are refused until the image exists, or name another one."
            fix "Correct the name, or apply the MachineImage."
            crd Nothing,
    }
}

/// Rules [`Code::ImageNotFound`] and [`Code::ImageDeprecated`].
fn images(
    request: &ImageRequest<'_>,
    images: &mut BTreeMap<String, PinnedImage>,
    findings: &mut Findings,
) {
    let mut lookup = Lookup {
        request,
        images,
        warned: BTreeSet::new(),
    };
    for item in &request.merged.disks {
        lookup.item(item, findings);
    }
    for item in &request.merged.cdroms {
        lookup.item(item, findings);
    }
}

struct Lookup<'r, 'a> {
    request: &'r ImageRequest<'a>,
    images: &'r mut BTreeMap<String, PinnedImage>,
    /// Deprecated images that were reported.
    warned: BTreeSet<&'r str>,
}

impl<'r, 'a: 'r> Lookup<'r, 'a> {
    fn item<T: Filled>(&mut self, item: &Item<'r, T>, findings: &mut Findings) {
        let leaf = item.image_name();
        let (Some(image), Some(disk)) = (leaf.value, item.name().value) else {
            return;
        };
        if !form::is_object_name(image) {
            return;
        }
        if let Some(kept) = self.request.kept.get(disk) {
            self.images.insert(disk.to_owned(), kept.clone());
            return;
        }
        let Some(row) = self.request.catalog.image(image) else {
            findings.deny(not_found(image, leaf, self.request.catalog));
            findings.miss(Reference::Image(image.to_owned()));
            return;
        };
        if let Some(text) = &row.deprecated
            && self.warned.insert(image)
        {
            let text = format!("image '{image}' is deprecated: {text}");
            findings.warn(Code::ImageDeprecated, &text);
        }
        self.images.insert(disk.to_owned(), row.pinned.clone());
    }
}

fn not_found(name: &str, leaf: Leaf<&str>, catalog: &dyn Catalog) -> Violation {
    let known = catalog.image_names();
    let nearest = did_you_mean(name, known.iter().map(String::as_str));
    let detail = if known.is_empty() {
        "the cluster has no MachineImages".to_owned()
    } else {
        format!(
            "{nearest}known images: {}",
            nearest_first(name, known.clone())
        )
    };
    Violation::new(leaf.path, Code::ImageNotFound, Kind::NotFound, detail).text(name)
}

/// Images by name of the disk or CD-ROM, from the stored block: of those that name the same image as before.
pub(crate) fn kept(
    merged: &Merged<'_>,
    stored: BTreeMap<String, PinnedImage>,
) -> BTreeMap<String, PinnedImage> {
    let disks = merged.disks.iter();
    let disks = disks.map(|item| (item.name().value, item.image_name().value));
    let cdroms = merged.cdroms.iter();
    let cdroms = cdroms.map(|item| (item.name().value, item.image_name().value));
    let named: BTreeMap<_, _> = disks
        .chain(cdroms)
        .filter_map(|(item, image)| item.zip(image))
        .collect();
    let mut kept = stored;
    kept.retain(|item, pinned| named.get(item.as_str()).copied() == pinned.image.name.as_deref());
    kept
}

/// Rule [`Code::TemplateImageNotFound`].
fn template_images(
    merged: &Merged<'_>,
    catalog: &dyn Catalog,
    _: &Settings,
    findings: &mut Findings,
) {
    for item in &merged.disks {
        let leaf = item.image_name();
        let name = leaf.value.filter(|name| form::is_object_name(name));
        let Some(name) = name.filter(|name| catalog.image(name).is_none()) else {
            continue;
        };
        let known = catalog.image_names();
        let nearest = did_you_mean(name, known.iter().map(String::as_str));
        findings.miss(Reference::Image(name.to_owned()));
        let text = format!(
            "{}: MachineImage '{name}' does not exist yet; {nearest}",
            leaf.path
        );
        findings.warn(
            Code::TemplateImageNotFound,
            text.trim_end_matches([' ', ';']),
        );
    }
}
