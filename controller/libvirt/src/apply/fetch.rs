//! Fetches images in the background: one for each namespace at a time, for as long as a Machine needs it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::bounds::MEDIUM_MAX;
use controller_core::backend::Failed;
use controller_core::client::Remedy;
use controller_core::machine::{CachedMachine, Machine};
use controller_core::objects::Meta as _;
use kube::runtime::reflector::{ObjectRef, Store};
use time::OffsetDateTime;

use super::applier::Applier;
use crate::access::{AccessError, Result};
use crate::guard::{Guard, OtherHosts};
use crate::hosts::connected::ConnectedHost;
use crate::hosts::guards::spec_pools;
use crate::images::abandoned::FETCH_LIMIT;
use crate::images::credentials;
use crate::images::fetch::{FetchRequest, fetch};
use crate::images::fetches::{FetchKey, Fetches, ImageUse, Request};
use crate::images::names::image_volume;
use crate::offers::images;

/// Pause between two looks at the Machines that need an image. Each decompresses them.
const NEED_INTERVAL: Duration = Duration::from_secs(10);

/// An image that a plan requests.
pub(super) struct WantedImage<'a> {
    /// Name of the image's volume without the attempt.
    pub(super) base: &'a str,
    pub(super) url: &'a str,
    pub(super) checksum: Option<&'a str>,
    /// Secret of the Machine's namespace with the credentials for the URL.
    pub(super) secret: Option<&'a str>,
    /// Size of the disk that is made of it, in bytes; `None`: it is a medium.
    pub(super) disk_size: Option<u64>,
}

impl Applier {
    /// Begins to fetch an image, when the fair queue permits it.
    pub(super) fn begin_fetch(
        &self,
        host: &Arc<ConnectedHost>,
        machine: &Machine,
        wanted: &WantedImage<'_>,
    ) -> Result<(), Failed> {
        let object = self.objects.get("", &host.name);
        let spec = object.as_ref().map(|object| &object.spec);
        let pool = spec.and_then(|spec| spec.image_pool.clone());
        let pool = pool.ok_or_else(|| {
            let message = format!("LibvirtHost '{}' has no imagePool", host.name);
            Failed::new(Remedy::UserAction, message)
        })?;
        if wanted.secret.is_some() && machine.namespace_uid.is_empty() {
            // The name of its volume would not be that of this namespace alone.
            let message = format!(
                "namespace '{}' has not been reported yet",
                machine.namespace()
            );
            return Err(Failed::new(Remedy::Reobserve, message));
        }
        let key = FetchKey {
            image: wanted.base.to_owned(),
            secret: wanted.secret.map(str::to_owned),
        };
        let secret = wanted.secret;
        let version =
            secret.and_then(|name| self.caches.secret_versions.get(machine.namespace(), name));
        let limit = self.caches.largest_disk(machine.namespace());
        let most = limit.map_or(MEDIUM_MAX, |limit| limit.get().min(MEDIUM_MAX));
        let made = wanted
            .disk_size
            .map_or(ImageUse::Medium(most), ImageUse::Disk);
        let asked = Request {
            key: key.clone(),
            secret_version: version.as_deref(),
            namespace: machine.namespace(),
            machine: machine.name(),
            made,
        };
        let Some(permit) = host.fetches.begin(&asked, Instant::now()) else {
            return Ok(());
        };
        let mut request = FetchRequest {
            pool,
            base: wanted.base.to_owned(),
            number: OffsetDateTime::now_utc().unix_timestamp(),
            url: wanted.url.to_owned(),
            checksum: wanted.checksum.map(str::to_owned),
            credentials: None,
            sources: spec.and_then(|spec| spec.image_sources.clone()),
            made,
        };
        let guard = self.fetch_guard(host, machine, &key);
        let (host, triggers) = (host.clone(), self.triggers.clone());
        let (api, namespace) = (self.api.clone(), machine.namespace().to_owned());
        tokio::spawn(async move {
            let name = request.base.clone();
            // A connection of its own: a slow server delays no other fetch.
            let worker = host.host.background_worker();
            let outcome = async {
                if let Some(secret) = &key.secret {
                    request.credentials = Some(credentials::read(&api, &namespace, secret).await?);
                }
                let fetched = worker.call(FETCH_LIMIT, move |host| {
                    Ok(fetch(host, &request, &permit, &guard))
                });
                fetched.await.map_err(|error| error.to_string())?
            };
            let outcome = outcome.await;
            match &outcome {
                Ok(()) => tracing::info!(host = host.name, image = name, "the image was fetched"),
                Err(error) => tracing::warn!(
                    host = host.name,
                    image = name,
                    error,
                    "the image was not fetched"
                ),
            }
            let needed_by = host.fetches.needed_by(&key);
            host.fetches.end(&key, outcome, Instant::now());
            triggers.send(references(needed_by));
        });
        Ok(())
    }

    /// What a fetch asks: what every job of the Machine asks, whether it is within its limit, and whether a Machine
    /// still needs the image.
    fn fetch_guard(&self, host: &Arc<ConnectedHost>, machine: &Machine, key: &FetchKey) -> Guard {
        let guard = self.guard(host, machine);
        let (fetches, machines) = (host.fetches.clone(), self.caches.machines.clone());
        let (key, checked) = (key.clone(), Mutex::new(Instant::now()));
        let namespace_uid = machine.namespace_uid.clone();
        let begun = Instant::now();
        let may_act = move || {
            guard.check()?;
            // The caller stops waiting at the limit, and the thread would go on.
            if begun.elapsed() > FETCH_LIMIT {
                let message = format!("the fetch took longer than {FETCH_LIMIT:?}");
                return Err(AccessError::Cancelled(message));
            }
            let mut checked = checked.lock().unwrap_or_else(PoisonError::into_inner);
            if checked.elapsed() < NEED_INTERVAL {
                return Ok(());
            }
            *checked = Instant::now();
            check_need(&fetches, &machines, &key, &namespace_uid)
        };
        // An image belongs to no Machine, so none of its effects depends on a binding.
        let pools = spec_pools(&self.objects, &host.name);
        Guard::new(may_act, OtherHosts::default, pools)
    }
}

/// `namespace_uid`: of the Machine that the fetch was begun for. All that need a private image are in its namespace.
fn check_need(
    fetches: &Fetches,
    machines: &Store<CachedMachine>,
    key: &FetchKey,
    namespace_uid: &str,
) -> Result<()> {
    let needs = |machine: &Machine| {
        let block = machine.desired().filter(|_| !machine.is_deleting());
        block.is_some_and(|block| {
            images(block).any(|image| image_volume(image, namespace_uid) == key.image)
        })
    };
    let mut asked = references(fetches.needed_by(key)).into_iter();
    let is_needed = asked.any(|machine| {
        let cached = machines.get(&machine);
        cached.is_some_and(|cached| needs(&cached.decompress()))
    });
    if is_needed {
        return Ok(());
    }
    Err(AccessError::Cancelled(
        "no Machine needs the image any more".into(),
    ))
}

fn references(machines: BTreeSet<(String, String)>) -> Vec<ObjectRef<CachedMachine>> {
    let reference = |(namespace, name): (String, String)| ObjectRef::new(&name).within(&namespace);
    machines.into_iter().map(reference).collect()
}
