//! Existing volumes that a guest cannot be given.

use uuid::Uuid;

use super::answer::HostAnswer;
use crate::access::{AccessError, Connection, VolumeKey};
use crate::existing_disks::Others;

impl HostAnswer {
    /// Why the guest does not get existing volumes that it does not have while it runs.
    pub(super) fn read_unusable(
        &mut self,
        host: &mut dyn Connection,
        uuid: Uuid,
        existing: &[VolumeKey],
        namespace: &str,
    ) -> Result<(), AccessError> {
        let guest = self.guest.as_ref();
        let running = guest.and_then(|guest| guest.running.as_ref());
        let has = |(pool, name): &VolumeKey| {
            let mut disks = running.into_iter().flat_map(|domain| &domain.disks);
            disks.any(|disk| {
                let volume = disk.volume.as_ref();
                volume.is_some_and(|it| it.pool == *pool && it.volume == *name)
            })
        };
        let volumes: Vec<_> = existing
            .iter()
            .filter(|key| !has(key))
            .filter_map(|key| Some((key, self.volumes.get(key)?)))
            .collect();
        if volumes.is_empty() {
            return Ok(());
        }
        let others = Others::last_read(host, uuid)?;
        for (key, volume) in volumes {
            // Looked for again right before the guest gets the volume, and an error is reported there.
            match others.fault(host, (&key.0, volume), namespace) {
                Err(error) if error.is_of_host() => return Err(error),
                fault => self
                    .unusable
                    .extend(fault.ok().flatten().map(|fault| (key.clone(), fault))),
            }
        }
        Ok(())
    }
}
