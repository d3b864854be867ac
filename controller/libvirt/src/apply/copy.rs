//! Copies images to disks in the background: one for each namespace at a time, for as long as the Machine needs the disk.
//! A copy takes minutes, and a pass that waited for it would keep other Machines waiting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::api::libvirt_host::LibvirtHostSpec;
use controller_core::machine::{CachedMachine, Machine};
use controller_core::objects::Meta as _;
use kube::runtime::reflector::ObjectRef;

use super::applier::Applier;
use super::on_host::act;
use crate::access::{AccessError, VolumeKey};
use crate::guard::{Guard, OtherHosts};
use crate::hosts::connected::ConnectedHost;
use crate::hosts::guards::spec_pools;
use crate::images::fetches::{ImageUse, Request};
use crate::images::names::copy_name;
use crate::plan::action::Action;
use crate::plan::disks::copies;

/// Limit of a copy on slow disks: 2 TiB at 50 MiB/s take 11.7 hours. A copy has no effect after it.
const LIMIT: Duration = Duration::from_hours(12);

/// A disk that is copied from an image.
pub(super) struct CopiedDisk {
    /// Pool and volume without the attempt.
    pub(super) volume: VolumeKey,
    /// Size of the disk, in bytes.
    pub(super) size: u64,
}

impl Applier {
    /// Begins to copy an image to a disk, when the fair queue permits it.
    pub(super) fn begin_copy(
        &self,
        host: &Arc<ConnectedHost>,
        machine: &Machine,
        disk: CopiedDisk,
        action: Action,
    ) {
        let name = copy_name(&disk.volume);
        let asked = Request {
            key: name.clone(),
            secret_version: None,
            namespace: machine.namespace(),
            machine: machine.name(),
            made: ImageUse::Disk(disk.size),
        };
        if host.copies.begin(&asked, Instant::now()).is_none() {
            return;
        }
        let guard = self.copy_guard(host, machine, disk.volume);
        let job = self.job(host, machine, guard);
        let (host, triggers) = (host.clone(), self.triggers.clone());
        let machine = reference(machine);
        tokio::spawn(async move {
            // A connection of its own: a large copy delays no other one.
            let worker = host.host.background_worker();
            let copied = worker.call(LIMIT, move |host| act(host, &job, action));
            let copied = copied.await.map_err(|error| error.to_string());
            let outcome = copied.as_ref().map_err(String::as_str);
            let host_name = &host.name;
            match outcome {
                Ok(()) => {
                    tracing::info!(
                        host = host_name,
                        volume = name.image,
                        "the image was copied"
                    );
                }
                Err(error) => {
                    tracing::warn!(
                        host = host_name,
                        volume = name.image,
                        error,
                        "the image was not copied"
                    );
                }
            }
            host.copies.end(&name, copied, Instant::now());
            host.wake.notify_one();
            triggers.send([machine]);
        });
    }

    /// What a copy asks: what every job of the Machine asks, whether it is within its limit, and whether the Machine still
    /// needs the disk. After a deletion nothing would remove the volume.
    fn copy_guard(&self, host: &Arc<ConnectedHost>, machine: &Machine, volume: VolumeKey) -> Guard {
        let guard = self.guard(host, machine);
        let (machines, objects) = (self.caches.machines.clone(), self.objects.clone());
        let (cached, uid) = (reference(machine), machine.uid().to_owned());
        let pools = spec_pools(&self.objects, &host.name);
        let host = host.name.clone();
        let begun = Instant::now();
        let may_act = move || {
            guard.check()?;
            guard.check_binding()?;
            // The caller stops waiting at the limit, and the thread would go on.
            if begun.elapsed() > LIMIT {
                let message = format!("the copy took longer than {LIMIT:?}");
                return Err(AccessError::Cancelled(message));
            }
            let cached = machines.get(&cached).filter(|cached| cached.uid() == uid);
            let object = objects.get("", &host);
            let is_needed = cached
                .zip(object)
                .is_some_and(|(cached, object)| needs(&cached.decompress(), &object.spec, &volume));
            if is_needed {
                return Ok(());
            }
            Err(AccessError::Cancelled(
                "the Machine does not need the disk any more".into(),
            ))
        };
        Guard::new(may_act, OtherHosts::default, pools)
    }
}

fn needs(machine: &Machine, spec: &LibvirtHostSpec, volume: &VolumeKey) -> bool {
    !machine.is_deleting() && copies(machine, spec).values().any(|it| it == volume)
}

fn reference(machine: &Machine) -> ObjectRef<CachedMachine> {
    ObjectRef::new(machine.name()).within(machine.namespace())
}
