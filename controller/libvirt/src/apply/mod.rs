//! Carries out the actions of a plan, in order.
//!
//! A call that was not answered in time may have had its effect: the next pass observes the host again and
//! continues from there.

mod on_host;

use std::sync::Arc;
use std::time::Duration;

use common::names::FIELD_MANAGER;
use common::render::libvirt::domain_uuid;
use controller_core::backend::Failed;
use controller_core::cache::Cache;
use controller_core::client::{ApiError, GuardedClient, Remedy};
use controller_core::machine::{CachedMachine, Machine, requested_resources};
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use controller_core::triggers::Triggers;
use controller_core::writes::Written;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::{ObjectRef, Store};
use serde_json::json;
use time::OffsetDateTime;

pub(crate) use on_host::{Job, act};

use crate::access::AccessError;
use crate::failure::failed;
use crate::guard::Guard;
use crate::hosts::registry::{ConnectedHost, Hosts};
use crate::hosts::tombstones;
use crate::images::fetch::{FetchRequest, fetch};
use crate::libvirt_host::LibvirtHost;
use crate::plan::action::Action;

/// Limit of calls that take 3 to 16 ms: definitions, metadata, new volumes.
const QUICK: Duration = Duration::from_secs(5);
/// Limit of starts, stops, deletions and uploads of a seed. A frozen QEMU took 11.7 s to be ended.
const SLOW: Duration = Duration::from_secs(30);
/// Limit of what refreshes every pool of a host: libvirt reads the header of each volume.
const REFRESH: Duration = Duration::from_mins(2);
/// Limit of a copy of a large image.
const COPY: Duration = Duration::from_mins(30);
/// Limit of a fetch over a slow line.
const FETCH: Duration = Duration::from_hours(12);

/// Carries out actions.
#[derive(Clone, Debug)]
pub(crate) struct Applier {
    /// The hosts that are polled.
    pub(crate) hosts: Hosts,
    /// LibvirtHosts as the API server has them.
    pub(crate) objects: Cache<LibvirtHost>,
    /// Machines as the API server has them.
    pub(crate) machines: Store<CachedMachine>,
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
            Action::RecordOrphan { host } => self.record_orphan(machine, host).await,
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
        let hint = machine.status.host.as_deref();
        let name = self.hosts.host_of(machine.uid(), hint).unwrap_or_default();
        let found = self.hosts.get(&name);
        found
            .ok_or_else(|| Failed::new(Remedy::Retry, format!("LibvirtHost '{name}' is not there")))
    }

    /// What a job of this Machine on this host asks before each effect.
    fn guard(&self, host: &Arc<ConnectedHost>, machine: &Machine) -> Guard {
        let (api, connected) = (self.api.clone(), host.clone());
        let may_act = move || {
            if !api.may_write() {
                return Err(AccessError::Cancelled(
                    ApiError::NotLeading.to_string() + "; nothing was done",
                ));
            }
            connected.check_open()
        };
        let (hosts, machines) = (self.hosts.clone(), self.machines.clone());
        let (here, uid) = (host.name.clone(), machine.uid().to_owned());
        let cached = ObjectRef::new(machine.name()).within(machine.namespace());
        let bound_elsewhere = move || {
            let cached = machines.get(&cached).filter(|cached| cached.uid() == uid);
            let hint = cached.as_ref().and_then(|cached| cached.binding.as_ref());
            let hint = hint.and_then(|binding| binding.host.as_deref());
            // Between the binding and its arrival in the cache, the cached Machine has no host.
            hosts.host_of(&uid, hint).filter(|other| *other != here)
        };
        Guard::new(may_act, bound_elsewhere)
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
        } = action
        {
            return self.begin_fetch(host, machine, volume, url, checksum.clone());
        }
        let (worker, limit) = match action {
            Action::CopyVolume { .. } => (&host.images.slow, COPY),
            Action::Define(_) | Action::SetMetadata(_) | Action::CreateVolume { .. } => {
                (&host.host.fast, QUICK)
            }
            Action::DeleteVolume(_) | Action::CreateSeed { .. } => (&host.host.slow, REFRESH),
            _ => (&host.host.slow, SLOW),
        };
        let action = action.clone();
        let job = Job {
            uuid: domain_uuid(machine.uid()),
            owner: machine.uid().to_owned(),
            guard: self.guard(host, machine),
        };
        worker
            .call(limit, move |host| act(host, &job, action))
            .await
            .map_err(|error| failed(&error))
    }

    fn begin_fetch(
        &self,
        host: &Arc<ConnectedHost>,
        machine: &Machine,
        volume: &str,
        url: &str,
        checksum: Option<String>,
    ) -> Result<(), Failed> {
        let spec = self.objects.get("", &host.name);
        let pool = spec.and_then(|host| host.spec.image_pool.clone());
        let pool = pool.ok_or_else(|| {
            let message = format!("LibvirtHost '{}' has no imagePool", host.name);
            Failed::new(Remedy::UserAction, message)
        })?;
        let Some(progress) = host.fetches.begin(volume) else {
            return Ok(());
        };
        let request = FetchRequest {
            pool,
            base: volume.to_owned(),
            number: OffsetDateTime::now_utc().unix_timestamp(),
            url: url.to_owned(),
            checksum,
        };
        let guard = self.guard(host, machine);
        let (host, triggers) = (host.clone(), self.triggers.clone());
        let machine = ObjectRef::new(machine.name()).within(machine.namespace());
        tokio::spawn(async move {
            let name = request.base.clone();
            let fetched = host.images.fast.call(FETCH, move |host| {
                Ok(fetch(host, &request, &progress, &guard))
            });
            let outcome = fetched
                .await
                .map_err(|error| error.to_string())
                .and_then(|outcome| outcome);
            match &outcome {
                Ok(()) => tracing::info!(host = host.name, image = name, "the image was fetched"),
                Err(error) => tracing::warn!(
                    host = host.name,
                    image = name,
                    error,
                    "the image was not fetched"
                ),
            }
            host.fetches.end(&name, outcome);
            triggers.send([machine]);
        });
        Ok(())
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
        if let Some(block) = machine.desired() {
            self.hosts
                .promise(machine.uid(), host, requested_resources(block));
        }
        Ok(Some(Written::of(&made)))
    }

    async fn record_orphan(
        &self,
        machine: &Machine,
        host: &str,
    ) -> Result<Option<Written>, Failed> {
        if let Some(host) = self.objects.get("", host) {
            let now = Now(OffsetDateTime::now_utc());
            tombstones::record(&self.api, &host, machine, now).await?;
        }
        Ok(None)
    }
}
