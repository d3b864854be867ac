//! What the images of a Machine need of a host: a pool, and permission to fetch from their sources.

use std::sync::Arc;

use crate::api::machine::Image;
use crate::api::normalized::Normalized;
use crate::catalog::{HostRow, Need};
use crate::code::Code;
use crate::normalize::{Filled, Item};
use crate::normalize::{Leaf, Merged};
use crate::violation::{Findings, Kind, Violation};
use crate::words::name_list;

use super::requirement::Requirement;

/// The needs of the images of disks and CD-ROMs.
pub(super) fn requirements<'a>(merged: &'a Merged<'_>) -> Vec<Requirement<'a>> {
    let leaves = |field: &'static str| -> Vec<Leaf<&'a Image>> {
        let disks = merged.disks.iter().map(|item| image(item, field));
        let cdroms = merged.cdroms.iter().map(|item| image(item, field));
        disks.chain(cdroms).collect()
    };
    let pool = leaves("image").into_iter().filter_map(|leaf| {
        leaf.value?;
        Some((Need::Images, leaf.path))
    });
    let sources = leaves("image.url")
        .into_iter()
        .filter_map(|leaf| Some((Need::source(leaf.value?)?, leaf.path)));
    pool.chain(sources)
        .map(|(need, path)| Requirement {
            need,
            path,
            value: None,
        })
        .collect()
}

/// The image of an item with its source, and the path of its field; of a MachineImage, the path of its name.
fn image<'a, T: Filled>(item: &Item<'a, T>, field: &'static str) -> Leaf<&'a Image> {
    let named = item.image_name();
    let path = match named.value {
        Some(_) => named.path,
        None => item.path(field, |item| item.written_image().is_some()),
    };
    Leaf {
        value: item.image(),
        path,
    }
}

/// The needs of the images of a block.
pub(super) fn needs_of(block: &Normalized) -> Vec<Need<'_>> {
    let disks = block.disks.iter().filter_map(|disk| disk.image.as_ref());
    let cdroms = block.cdroms.iter();
    let images = disks.chain(cdroms.filter_map(|cdrom| cdrom.image.as_ref()));
    images
        .flat_map(|image| [Some(Need::Images), Need::source(image)])
        .flatten()
        .collect()
}

/// Rule [`Code::NoImagePool`].
pub(super) fn no_pool(requirement: &Requirement<'_>, findings: &mut Findings) {
    let detail = "no LibvirtHost has an imagePool, where images are kept; add one to a LibvirtHost, or drop the image";
    let fault = Violation::new(requirement.path, Code::NoImagePool, Kind::Forbidden, detail);
    findings.deny(fault);
}

/// Rule [`Code::ImageSourceNotAllowed`].
pub(super) fn source_not_allowed(
    requirement: &Requirement<'_>,
    hosts: &[Arc<HostRow>],
    findings: &mut Findings,
) {
    let with_pool: Vec<_> = hosts.iter().filter(|host| host.image_pool).collect();
    // Without any pool for images, that is reported.
    if with_pool.is_empty() {
        return;
    }
    let mut allowed: Vec<String> = Vec::new();
    for host in with_pool {
        match &host.image_sources {
            Some(sources) => allowed.extend(sources.iter().cloned()),
            None => allowed.push("any server with a public address".to_owned()),
        }
    }
    let detail = format!(
        "no LibvirtHost fetches images from there; allowed: {}. Take one of these, or add the prefix of the URL to imageSources of a LibvirtHost",
        name_list(allowed)
    );
    let code = Code::ImageSourceNotAllowed;
    findings.deny(requirement.fault(code, Kind::Invalid, detail));
}
