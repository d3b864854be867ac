//! Carries out the actions of a plan, in order.
//!
//! A call that was not answered in time may have had its effect: the next pass observes the host again and
//! continues from there.

mod copy;
mod fetch;
pub(crate) mod moving;
mod on_host;

use std::sync::Arc;
use std::time::Duration;

use common::api::left_volumes::{KeptVolume, TombstoneVolume};
use common::names::{self, FIELD_MANAGER};
use common::render::libvirt::domain_uuid;
use controller_core::backend::Failed;
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::client::{ApiError, GuardedClient, Remedy};
use controller_core::machine::{CachedMachine, Machine, requested_resources};
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use controller_core::preconditions::Effect;
use controller_core::triggers::Triggers;
use controller_core::writes::{Written, remove_annotation};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::ObjectRef;
use serde_json::json;
use time::OffsetDateTime;

use copy::CopiedDisk;
use fetch::WantedImage;
pub(crate) use on_host::{Job, act};

use crate::failure::failed;
use crate::guard::Guard;
use crate::hosts::connected::ConnectedHost;
use crate::hosts::guards::{may_act, spec_pools};
use crate::hosts::registry::Hosts;
use crate::hosts::tombstones;
use crate::images::names::base_of;
use crate::libvirt_host::LibvirtHost;
use crate::plan::action::{Action, KeptOnHost};
use crate::plan::delete::waits_for_object;
use crate::plan::disks::to_delete;
use crate::pool_space::StorageFactor;
use crate::volume_effects::{Removal, remove_volume};

/// Limit of calls that take 3 to 16 ms: definitions, metadata.
const QUICK: Duration = Duration::from_secs(5);
/// Limit of starts, stops, deletions and uploads of a seed. A frozen QEMU took 11.7 s to be ended.
const SLOW: Duration = Duration::from_secs(30);
/// Limit of what refreshes pools of a host: libvirt reads the header of each volume.
const REFRESH: Duration = Duration::from_mins(2);

/// Carries out actions.
#[derive(Clone, Debug)]
pub(crate) struct Applier {
    /// The hosts that are polled.
    pub(crate) hosts: Hosts,
    /// LibvirtHosts as the API server has them.
    pub(crate) objects: Cache<LibvirtHost>,
    /// Objects as the API server has them.
    pub(crate) caches: Caches,
    /// The API server.
    pub(crate) api: GuardedClient,
    /// Triggers passes of Machines.
    pub(crate) triggers: Triggers,
}

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
            Action::ReleaseKept(kept) => self.release_kept(machine, kept).await,
            Action::RemoveDiscardConfirmation => {
                let annotation = names::ANNOTATION_DISCARD_STATE;
                Ok(Some(
                    remove_annotation(&self.api, machine, annotation).await?,
                ))
            }
            Action::RemoveReleaseRequest => {
                let annotation = names::ANNOTATION_RELEASE_VOLUME;
                Ok(Some(
                    remove_annotation(&self.api, machine, annotation).await?,
                ))
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

    /// The host that was observed.
    fn host_of(&self, machine: &Machine) -> Result<Arc<ConnectedHost>, Failed> {
        let name = self.hosts.host_of_machine(machine).unwrap_or_default();
        self.hosts.get(&name).ok_or_else(|| missing(&name))
    }

    /// The guard that a job of this Machine on this host checks before each effect.
    fn guard(&self, host: &Arc<ConnectedHost>, machine: &Machine) -> Guard {
        let (hosts, machines) = (self.hosts.clone(), self.caches.machines.clone());
        let (here, uid) = (host.name.clone(), machine.uid().to_owned());
        let cached = ObjectRef::new(machine.name()).within(machine.namespace());
        let pools = spec_pools(&self.objects, &host.name);
        let bound_elsewhere = move || {
            let cached = machines.get(&cached).filter(|cached| cached.uid() == uid);
            let hint = cached.as_ref().and_then(|cached| cached.binding.as_ref());
            let hint = hint.and_then(|binding| binding.host.as_deref());
            // Between the binding and its arrival in the cache, the cached Machine has no host.
            hosts.host_of(&uid, hint).filter(|other| *other != here)
        };
        Guard::new(may_act(&self.api, host), bound_elsewhere, pools)
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
        let action = action.clone();
        let job = self.job(host, machine, self.guard(host, machine));
        worker
            .call(limit, move |host| act(host, &job, action))
            .await
            .map_err(|error| failed(&error))
    }

    /// A job of a Machine on a host.
    fn job(&self, host: &ConnectedHost, machine: &Machine, guard: Guard) -> Job {
        let object = self.objects.get("", &host.name);
        Job {
            uuid: domain_uuid(machine.uid()),
            owner: machine.uid().to_owned(),
            guard,
            factor: object
                .map(|object| StorageFactor::of(&object.spec))
                .unwrap_or_default(),
            reservations: host.reservations.clone(),
        }
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

    /// Counts the Machine on a host that does not show it yet.
    fn reserve(&self, machine: &Machine, host: &str) {
        if let Some(block) = machine.desired() {
            self.hosts
                .reserve(machine.uid(), host, requested_resources(block));
        }
    }

    async fn record_orphan(
        &self,
        machine: &Machine,
        host: &str,
        volumes: Option<Vec<TombstoneVolume>>,
    ) -> Result<Option<Written>, Failed> {
        let host = self.registered(host)?;
        let volumes = volumes.or_else(|| to_delete(machine, &host.spec, None));
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
    async fn release_kept(
        &self,
        machine: &Machine,
        kept: &KeptOnHost,
    ) -> Result<Option<Written>, Failed> {
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
        let guard = self.guard(&connected, machine);
        let removal = Removal::of_kept(volume);
        let slow = &connected.host.slow;
        slow.call(REFRESH, move |host| {
            remove_volume(host, &guard, Effect::DeleteVolume, &removal)
        })
        .await
        .map_err(|error| failed(&error))?;
        tombstones::forget_kept(&self.api, &object, volume).await?;
        Ok(None)
    }
}

/// The failure of an action on a host that was removed meanwhile.
fn missing(host: &str) -> Failed {
    Failed::new(
        Remedy::Retry,
        format!("LibvirtHost '{host}' does not exist"),
    )
}

#[cfg(test)]
mod tests;
