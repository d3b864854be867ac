//! Kept volumes of deleted Machines, as the status of the host lists them.

use common::api::left_volumes::KeptVolume;
use controller_core::preconditions::Effect;

use super::Environment;
use crate::access::AccessError;
use crate::hosts::tombstones::add_kept;
use crate::plan::action::KeptOnHost;
use crate::volume_effects::{Removal, remove_volume};

impl Environment {
    pub(super) fn kept_of_former(&self) -> Vec<KeptOnHost> {
        let kept = self.object.status.kept_volumes.iter();
        let on_host = kept.map(|volume| KeptOnHost {
            host: "alpha".into(),
            volume: volume.clone(),
        });
        on_host.collect()
    }

    pub(super) fn record_kept(&mut self, volumes: &[KeptVolume]) -> Result<(), AccessError> {
        let listed = &mut self.object.status.kept_volumes;
        let added = add_kept(listed, volumes).map_err(AccessError::Refused)?;
        *listed = added.listed;
        Ok(())
    }

    pub(super) fn release_kept(&mut self, volume: &KeptVolume) -> Result<(), AccessError> {
        let guard = self.guard_of_remains(&volume.uid);
        let removal = Removal::of_kept(volume);
        let mut host = self.connection()?;
        let removed = remove_volume(&mut *host, &guard, Effect::DeleteVolume, &removal);
        self.share();
        removed?;
        let listed = &mut self.object.status.kept_volumes;
        listed.retain(|listed| listed != volume);
        Ok(())
    }
}
