//! How far the images are that a Machine needs.

use std::collections::BTreeMap;

use common::api::machine::Image;
use common::render::libvirt::VolumeFormat;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use crate::access::Volume;
use crate::images::fetches::{FetchKey, Fetches, ImageState};
use crate::images::names::{image_volume, is_attempt_of, marker};
use crate::observed::HostView;
use crate::offers::images;
use crate::plan::disks::is_defined;

/// How far the images are that a Machine needs.
pub(super) fn images_of(
    machine: &Machine,
    view: &HostView,
    fetches: &Fetches,
) -> BTreeMap<String, ImageState> {
    let pool = view.spec.image_pool.clone().unwrap_or_default();
    let find = |name: &str| view.volumes.get(&(pool.clone(), name.to_owned()));
    let state = |image: &Image| {
        let base = image_volume(image, &machine.namespace_uid);
        let complete = |name: &str| Some(found_image(name, find(name)?));
        let state = if image.volume.is_some() {
            complete(&base)
        } else {
            let in_pool = view.volumes.keys().filter(|(of, _)| *of == pool);
            let attempts = in_pool
                .map(|(_, name)| name)
                .filter(|name| is_attempt_of(name, &base) && find(&marker(name)).is_some());
            // The attempt that the domain has is kept, whichever other attempts are complete.
            let used = attempts.clone().find(|name| is_defined(view, name));
            used.or_else(|| attempts.clone().next())
                .and_then(|name| complete(name))
        };
        let state = state.or_else(|| {
            let fetch = FetchKey {
                image: base.clone(),
                secret: image.secret_ref.as_ref().and_then(|it| it.name.clone()),
            };
            fetches.state(&fetch, machine.namespace(), machine.name())
        });
        (base, state.unwrap_or(ImageState::Absent))
    };
    let block = machine.desired().into_iter();
    block.flat_map(images).map(state).collect()
}

fn found_image(name: &str, volume: &Volume) -> ImageState {
    ImageState::Complete {
        volume: name.to_owned(),
        format: format_of(volume),
    }
}

fn format_of(volume: &Volume) -> VolumeFormat {
    if volume.format == "qcow2" {
        VolumeFormat::Qcow2
    } else {
        VolumeFormat::Raw
    }
}
