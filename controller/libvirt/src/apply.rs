//! Carries out the actions of a plan on a host, in order.
//!
//! A call whose answer did not come in time may have had its effect: the next pass looks, and goes on from
//! there. Nothing here is taken for done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::render::libvirt::{DomainMetadata, LiveUpdate, domain_uuid};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use time::OffsetDateTime;
use uuid::Uuid;

use super::access::{AccessError, Connection, Shutdown};
use super::hosts::{Attended, put_status, tombstone};
use super::images::{Order, fetch, marker_xml};
use super::plan::Action;
use super::{Libvirt, failed};
use controller_core::backend::Failed;
use controller_core::client::{ApiError, Remedy};
use controller_core::machine::{CachedMachine, Machine, requested_resources};
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use controller_core::writes::Written;

/// Definitions, marks, small volumes: 3 to 16 ms.
const QUICK: Duration = Duration::from_secs(5);
/// Starts, stops, clones, uploads of a seed. A frozen QEMU took 11.7 s to be ended.
const SLOW: Duration = Duration::from_secs(30);
/// A copy of a large image.
const COPY: Duration = Duration::from_mins(30);
/// An image over a slow line.
const FETCH: Duration = Duration::from_hours(12);

impl Libvirt {
    /// Carries out one action; tells what it wrote at the API server.
    pub(super) async fn carry_out(
        &self,
        machine: &Machine,
        action: &Action,
    ) -> Result<Option<Written>, Failed> {
        match action {
            Action::Bind { host } => self.bind(machine, host).await,
            Action::Bury { host } => self.bury(machine, host).await,
            on_host => {
                // Another replica may have become the one that acts.
                if !self.api.may_write() {
                    return Err(ApiError::NotLeading.into());
                }
                let host = machine.status.host.as_deref().unwrap_or_default();
                let host = self.host_of(machine, host)?;
                self.on(&host, machine, on_host).await?;
                host.nudge.notify_one();
                Ok(None)
            }
        }
    }

    fn host_of(&self, machine: &Machine, name: &str) -> Result<Arc<Attended>, Failed> {
        let found = self.hosts.get(name).or_else(|| {
            let name = self
                .hosts
                .with_domain(domain_uuid(machine.uid()), machine.uid())?;
            self.hosts.get(&name)
        });
        found
            .ok_or_else(|| Failed::new(Remedy::Retry, format!("LibvirtHost '{name}' is not there")))
    }

    async fn on(
        &self,
        host: &Arc<Attended>,
        machine: &Machine,
        action: &Action,
    ) -> Result<(), Failed> {
        let uuid = domain_uuid(machine.uid());
        let owner = machine.uid().to_owned();
        if let Action::FetchImage {
            volume,
            url,
            checksum,
        } = action
        {
            return self.begin_fetch(host, machine, volume, url, checksum.clone());
        }
        let (lane, limit) = match action {
            Action::CopyVolume { .. } => (&host.images.slow, COPY),
            Action::Define(_) | Action::SetMark(_) | Action::CreateVolume { .. } => {
                (&host.host.fast, QUICK)
            }
            _ => (&host.host.slow, SLOW),
        };
        let action = action.clone();
        lane.call(limit, move |host| act(host, uuid, &owner, action))
            .await
            .map_err(|error| failed(&error))
    }

    fn begin_fetch(
        &self,
        host: &Arc<Attended>,
        machine: &Machine,
        volume: &str,
        url: &str,
        checksum: Option<String>,
    ) -> Result<(), Failed> {
        let Some(progress) = host.fetches.begin(volume) else {
            return Ok(());
        };
        let spec = self.objects.get("", &host.name);
        let pool = spec.and_then(|host| host.spec.image_pool.clone());
        let pool = pool.ok_or_else(|| {
            let told = format!("LibvirtHost '{}' has no imagePool", host.name);
            Failed::new(Remedy::UserAction, told)
        })?;
        let order = Order {
            pool,
            volume: volume.to_owned(),
            url: url.to_owned(),
            checksum,
        };
        let (host, api, triggers) = (host.clone(), self.api.clone(), self.triggers.clone());
        let machine =
            kube::runtime::reflector::ObjectRef::new(machine.name()).within(machine.namespace());
        tokio::spawn(async move {
            let name = order.volume.clone();
            let told = host.images.fast.call(FETCH, move |host| {
                Ok(fetch(host, &order, &progress, || api.may_write()))
            });
            let outcome = told
                .await
                .map_err(|error| error.to_string())
                .and_then(|outcome| outcome);
            match &outcome {
                Ok(()) => tracing::info!(host = host.name, image = name, "the image is there"),
                Err(error) => tracing::warn!(
                    host = host.name,
                    image = name,
                    error,
                    "the image cannot be fetched"
                ),
            }
            host.fetches.end(&name, outcome);
            triggers.send([machine]);
        });
        Ok(())
    }

    /// Writes the host onto the Machine as it was seen, before anything is sent there. Two hosts with a guest
    /// of the same disks would be the end of these.
    async fn bind(&self, machine: &Machine, host: &str) -> Result<Option<Written>, Failed> {
        let machines: Api<CachedMachine> = Api::namespaced(self.api.client(), machine.namespace());
        let body = json!({
            "metadata": {"uid": machine.uid(), "resourceVersion": machine.metadata.resource_version},
            "status": {"host": host},
        });
        let params = PatchParams {
            field_manager: Some(common::names::FIELD_MANAGER.to_owned()),
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

    async fn bury(&self, machine: &Machine, host: &str) -> Result<Option<Written>, Failed> {
        let Some(host) = self.objects.get("", host) else {
            return Ok(None);
        };
        let mut status = host.status.clone();
        if status
            .tombstones
            .iter()
            .all(|known| known.uid != machine.uid())
        {
            let name = format!("{}/{}", machine.namespace(), machine.name());
            status.tombstones.push(tombstone(
                &name,
                machine.uid(),
                Now(OffsetDateTime::now_utc()),
            ));
            put_status(&self.api, &host, &status).await?;
        }
        Ok(None)
    }
}

/// What one action does at a host.
pub(super) fn act(
    host: &mut dyn Connection,
    uuid: Uuid,
    owner: &str,
    action: Action,
) -> Result<(), AccessError> {
    match action {
        Action::CreateVolume { pool, xml, .. } => host.create_volume(&pool, &xml).map(drop),
        Action::CopyVolume {
            pool,
            name,
            xml,
            image,
        } => {
            // What is there without its marker is a copy that broke off.
            host.delete_volume(&pool, &name)?;
            host.copy_volume(&pool, &xml, (&image.0, &image.1))?;
            host.create_volume(&pool, &marker_xml(&name)).map(drop)
        }
        Action::GrowDisk { target, bytes } => host.resize_disk(uuid, &target, bytes),
        Action::GrowVolume { pool, name, bytes } => host.resize_volume(&pool, &name, bytes),
        Action::CreateSeed {
            pool,
            name,
            content,
        } => {
            let length = u64::try_from(content.0.len()).unwrap_or(u64::MAX);
            host.delete_volume(&pool, &name)?;
            host.create_volume(&pool, &super::plan::seed_xml(&name, length))?;
            host.upload(&pool, &name, &mut content.0.as_slice(), length)
        }
        Action::Define(domain) => {
            ours_or_none(host, uuid, owner)?;
            host.define(&domain.xml())
        }
        Action::SetMark(mark) => {
            ours(host, uuid, owner)?;
            host.set_mark(uuid, Some(&mark.xml()))
        }
        Action::Plug(live) => {
            ours(host, uuid, owner)?;
            plug(host, uuid, &live)
        }
        Action::Start { reset_nvram } => {
            ours(host, uuid, owner)?;
            host.start(uuid, reset_nvram)
        }
        Action::AskToStop { agent } => {
            ours(host, uuid, owner)?;
            if agent && host.shutdown(uuid, Shutdown::Agent).is_ok() {
                return Ok(());
            }
            host.shutdown(uuid, Shutdown::Acpi)
        }
        Action::Destroy => {
            ours(host, uuid, owner)?;
            host.destroy(uuid)
        }
        Action::Undefine => {
            ours(host, uuid, owner)?;
            host.undefine(uuid)
        }
        Action::DeleteVolume { pool, name } => remove_volume(host, &pool, &name),
        Action::Bind { .. } | Action::Bury { .. } | Action::FetchImage { .. } => Ok(()),
    }
}

/// Makes sure that the domain is the Machine's before anything is done to it.
fn ours(host: &mut dyn Connection, uuid: Uuid, owner: &str) -> Result<(), AccessError> {
    match host.domain(uuid)? {
        None => Err(AccessError::Absent("the domain is gone".into())),
        Some(found) => {
            let mark = found.state.mark.as_deref().and_then(DomainMetadata::parse);
            if mark.is_some_and(|mark| mark.uid == owner) {
                Ok(())
            } else {
                Err(AccessError::Refused(
                    "a domain of the Machine's uuid does not carry its mark".into(),
                ))
            }
        }
    }
}

fn ours_or_none(host: &mut dyn Connection, uuid: Uuid, owner: &str) -> Result<(), AccessError> {
    match ours(host, uuid, owner) {
        Err(AccessError::Absent(_)) => Ok(()),
        other => other,
    }
}

fn plug(host: &mut dyn Connection, uuid: Uuid, live: &LiveUpdate) -> Result<(), AccessError> {
    match live {
        LiveUpdate::AttachDisk(disk) => host.attach(uuid, &disk.xml()),
        LiveUpdate::DetachDisk(disk) => host.detach(uuid, &disk.xml()),
        LiveUpdate::AttachNic(nic) => host.attach(uuid, &nic.xml()),
        LiveUpdate::DetachNic(nic) => host.detach(uuid, &nic.xml()),
        LiveUpdate::ChangeMedium(disk) => host.update(uuid, &disk.xml()),
        LiveUpdate::SetVcpus(count) => host.set_vcpus(uuid, *count),
        LiveUpdate::SetMemory(kib) => host.set_memory(uuid, *kib),
    }
}

/// Deletes a volume once it is certain that no domain and no other volume refers to it: libvirt itself deletes
/// the disk of a running guest, and an image under its overlays.
pub(super) fn remove_volume(
    host: &mut dyn Connection,
    pool: &str,
    name: &str,
) -> Result<(), AccessError> {
    let Some(volume) = host.volume(pool, name)? else {
        return Ok(());
    };
    let used: BTreeSet<_> = host
        .disks_of_all()?
        .into_iter()
        .flat_map(|(_, paths)| paths)
        .collect();
    let beneath = host
        .volumes(pool)?
        .into_iter()
        .filter_map(|other| other.backing);
    if used.contains(&volume.path) || beneath.into_iter().any(|path| path == volume.path) {
        return Err(AccessError::Refused(format!(
            "volume {pool}/{name} is not deleted, because a domain or another volume refers to it: remove that first"
        )));
    }
    host.delete_volume(pool, name)
}
