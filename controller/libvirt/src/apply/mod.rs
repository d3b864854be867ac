//! Carries out the actions of a plan, in order.
//!
//! A call that was not answered in time may have had its effect: the next pass observes the host again and
//! continues from there.

mod applier;
mod copy;
mod fetch;
pub(crate) mod moving;
pub(crate) mod on_host;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::api::left_volumes::{KeptVolume, TombstoneVolume};
use common::names::FIELD_MANAGER;
use controller_core::backend::Failed;
use controller_core::client::{ApiError, Remedy};
use controller_core::machine::{CachedMachine, Machine};
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use controller_core::preconditions::Effect;
use controller_core::reset::REFUSED;
use controller_core::writes::{Written, remove_annotation};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use time::OffsetDateTime;

pub(crate) use applier::Applier;
use applier::{REFRESH, missing};
use copy::CopiedDisk;
use fetch::WantedImage;
use on_host::act;

use crate::access::AccessError;
use crate::failure::failed;
use crate::hosts::connected::ConnectedHost;
use crate::hosts::guards::of_remains;
use crate::hosts::tombstones;
use crate::images::names::base_of;
use crate::libvirt_host::LibvirtHost;
use crate::plan::action::{Action, KeptOnHost};
use crate::plan::delete::waits_for_object;
use crate::plan::disks::to_delete;
use crate::volume_effects::{Removal, remove_volume};

/// Limit of calls that take 3 to 16 ms: definitions, metadata.
const QUICK: Duration = Duration::from_secs(5);
/// Limit of starts, stops, deletions and uploads of a seed. A frozen QEMU took 11.7 s to be ended.
const SLOW: Duration = Duration::from_secs(30);

impl Applier {
    /// Carries out one action; returns what it wrote at the API server.
    pub(crate) async fn apply(
        &self,
        machine: &Machine,
        action: &Action,
    ) -> Result<Option<Written>, Failed> {
        match action {
            Action::Bind { host } => self.bind(machine, host).await,
            Action::MoveTo {
                from,
                record,
                volumes,
            } => self.move_to(machine, from, record, volumes).await,
            Action::Leave {
                from, to, volumes, ..
            } => self.leave(machine, from, to, volumes, action).await,
            Action::RecordOrphan { host, volumes } => {
                self.record_orphan(machine, host, volumes.clone()).await
            }
            Action::RecordKept { host, volumes } => self.record_kept(host, volumes).await,
            Action::ReleaseKept(kept) => self.release_kept(kept).await,
            Action::RemoveAnnotation(name) => {
                Ok(Some(remove_annotation(&self.api, machine, name).await?))
            }
            on_host => {
                if !self.api.may_write() {
                    return Err(ApiError::NotLeading.into());
                }
                let host = self.host_of(machine)?;
                self.on(&host, machine, on_host).await?;
                host.wake.notify_one();
                Ok(None)
            }
        }
    }

    async fn on(
        &self,
        host: &Arc<ConnectedHost>,
        machine: &Machine,
        action: &Action,
    ) -> Result<(), Failed> {
        if let Action::FetchImage {
            volume,
            url,
            checksum,
            secret,
            disk_size,
        } = action
        {
            let wanted = WantedImage {
                base: volume,
                url,
                checksum: checksum.as_deref(),
                secret: secret.as_deref(),
                disk_size: *disk_size,
            };
            return self.begin_fetch(host, machine, &wanted);
        }
        if let Action::CopyVolume {
            pool, name, size, ..
        } = action
        {
            let disk = CopiedDisk {
                volume: (pool.clone(), base_of(name).to_owned()),
                size: u64::try_from(size.get()).unwrap_or(u64::MAX),
            };
            self.begin_copy(host, machine, disk, action.clone());
            return Ok(());
        }
        let (worker, limit) = match action {
            Action::Define(_) | Action::SetMetadata(_) => (&host.host.fast, QUICK),
            Action::DeleteVolume(_)
            | Action::DeleteConsoleLog { .. }
            | Action::CreateSeed { .. }
            | Action::CreateVolume { .. }
            | Action::GrowDisk { .. }
            | Action::GrowVolume(_) => (&host.host.slow, REFRESH),
            _ => (&host.host.slow, SLOW),
        };
        let is_reset = matches!(action, Action::Reset);
        let deletes = matches!(action, Action::DeleteVolume(_));
        let action = action.clone();
        let job = self.job(host, machine, self.guard(host, machine));
        let done = worker
            .call(limit, move |host| act(host, &job, action))
            .await;
        if deletes {
            wait_for_copies(host, &done);
        }
        done.map_err(|error| explained(is_reset, failed(&error)))
    }

    /// Writes the host to the Machine, if the Machine is still the version that was observed, before anything is
    /// sent to the host. A Machine bound twice would run two guests.
    async fn bind(&self, machine: &Machine, host: &str) -> Result<Option<Written>, Failed> {
        let machines: Api<CachedMachine> = Api::namespaced(self.api.client(), machine.namespace());
        let body = json!({
            "metadata": {"uid": machine.uid(), "resourceVersion": machine.metadata.resource_version},
            "status": {"host": host},
        });
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let body = Patch::Merge(&body);
        let made = self
            .api
            .write(machines.patch_status(machine.name(), &params, &body))
            .await?;
        self.reserve(machine, host);
        Ok(Some(Written::of(&made)))
    }

    async fn record_orphan(
        &self,
        machine: &Machine,
        host: &str,
        volumes: Option<Vec<TombstoneVolume>>,
    ) -> Result<Option<Written>, Failed> {
        let host = self.registered(host)?;
        let volumes = volumes.or_else(|| named_volumes(machine, &host));
        let volumes = volumes.map(|volumes| tombstones::with_sizes(machine, host.name(), volumes));
        let now = Now(OffsetDateTime::now_utc());
        tombstones::record(&self.api, &host, machine, volumes, now).await?;
        Ok(None)
    }

    /// The LibvirtHost in whose status something has to be recorded before its last other trace is removed.
    fn registered(&self, host: &str) -> Result<Arc<LibvirtHost>, Failed> {
        self.objects
            .get("", host)
            .ok_or_else(|| Failed::new(Remedy::UserAction, waits_for_object(host)))
    }

    async fn record_kept(
        &self,
        host: &str,
        volumes: &[KeptVolume],
    ) -> Result<Option<Written>, Failed> {
        let host = self.registered(host)?;
        tombstones::record_kept(&self.api, &host, volumes).await?;
        Ok(None)
    }

    /// Deletes a kept volume of a former Machine, on whichever host it is, and then its record.
    async fn release_kept(&self, kept: &KeptOnHost) -> Result<Option<Written>, Failed> {
        let KeptOnHost { host, volume } = kept;
        let object = self.objects.get("", host);
        let connected = self.hosts.get(host);
        let Some((object, connected)) = object.zip(connected) else {
            return Err(missing(host));
        };
        if object.spec.maintenance == Some(true) {
            let message = format!(
                "volume {}/{} is not deleted, because LibvirtHost '{host}' is in maintenance: set spec.maintenance of the host to false",
                volume.pool, volume.volume
            );
            return Err(Failed::new(Remedy::UserAction, message));
        }
        // The domain of the present Machine may be on another host: the volume is none of its.
        let guard = of_remains(
            &self.api,
            &self.objects,
            &self.hosts,
            &connected,
            &volume.uid,
        );
        let removal = Removal::of_kept(volume);
        let slow = &connected.host.slow;
        let removed = slow.call(REFRESH, move |host| {
            remove_volume(host, &guard, Effect::DeleteVolume, &removal)
        });
        let removed = removed.await;
        wait_for_copies(&connected, &removed);
        removed.map_err(|error| failed(&error))?;
        tombstones::remove_kept(&self.api, &object, volume).await?;
        Ok(None)
    }
}

/// Begins no further copies for a while, if a deletion has to wait for those that the host makes.
fn wait_for_copies<T>(host: &ConnectedHost, deleted: &Result<T, AccessError>) {
    if matches!(deleted, Err(AccessError::Busy(_))) {
        host.copies.hold(Instant::now());
    }
}

/// The failure of an action. A reset that the host refuses has a reason of its own: it is not tried again.
pub(crate) fn explained(is_reset: bool, failed: Failed) -> Failed {
    if is_reset && failed.remedy == Remedy::UserAction {
        return Failed {
            reason: Some(REFUSED),
            message: format!("the host did not reset the guest: {}", failed.message),
            ..failed
        };
    }
    failed
}

/// The volumes that the spec of a Machine names on a host; `None`: the metadata of its domain has them. Without the spec of
/// the host, the pools of the disks are not known.
fn named_volumes(machine: &Machine, host: &LibvirtHost) -> Option<Vec<TombstoneVolume>> {
    match &host.unreadable {
        None => to_delete(machine, &host.spec, None),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests;
