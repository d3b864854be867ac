//! Copies of images to disks, which run in the background.

use common::api::normalized::NormalizedDisk;
use controller_core::conditions::Fault;

use super::collected::Volumes;
use crate::access::VolumeKey;
use crate::images::fetches::ImageState;
use crate::observed::HostView;

impl Volumes {
    /// Whether a copy of the image to a disk is to be begun as soon as the fair queue permits it. Reports how far it is.
    pub(super) fn may_copy(
        &mut self,
        disk: &NormalizedDisk,
        volume: &VolumeKey,
        view: &HostView,
    ) -> bool {
        let state = view.copies.get(volume);
        if let Some(ImageState::Failed(why)) = state {
            let message = format!(
                "the image of disk '{}' cannot be copied: {why}; it is tried again",
                disk.name
            );
            self.copies
                .record_first(Fault::new("VolumeFailed", message));
            return true;
        }
        let how_far = match state {
            Some(ImageState::Waiting) => "is copied once other images have been copied",
            _ => "is being copied to the volume of the disk",
        };
        let message = format!("the image of disk '{}' {how_far}", disk.name);
        self.import
            .get_or_insert(Fault::new("ImageImporting", message));
        !matches!(state, Some(ImageState::Underway { .. }))
    }
}
