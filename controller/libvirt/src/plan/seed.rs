//! The cloud-init seed: a small ISO image, recreated whenever its content changes.
//!
//! libvirt reports the full size of a volume whose upload was interrupted. So only the seed that the domain is
//! defined with is trusted; any other is written to another volume, which costs milliseconds.
//!
//! Network data that follow from the addresses of the cards are no part of the instance id. So they make no new seed while
//! the guest runs: its next start has them, for a cloud-init that is to run again.

use std::collections::BTreeMap;

use common::api::normalized::Normalized;
use common::render::CloudInitPlan;
use common::render::libvirt::{SeedRecord, seed_image, seed_name};

use super::action::{Action, SeedContent};
use super::volumes::pool_not_found;
use crate::observed::{HostView, Observed};
use crate::offers::storage;
use controller_core::conditions::{Fault, missing_secret};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;

/// The seed of a Machine.
#[derive(Debug, Default)]
pub(super) struct Seed {
    /// Seed that the domain is defined with; `None`: the Machine has no cloud-init data, or the seed cannot be made.
    pub(super) desired: Option<SeedRecord>,
    /// Creates it, if it does not exist.
    pub(super) action: Option<Action>,
    /// Why it cannot be made of the current data. With a `desired` seed the guest keeps that one, otherwise there
    /// is no definition without it.
    pub(super) fault: Option<Fault>,
}

/// The seed: the one that the domain has, or another one if cloud-init's data has changed.
pub(super) fn seed(
    machine: &Machine,
    block: &Normalized,
    view: &HostView,
    observed: &Observed,
    now: Now,
) -> Seed {
    match make(machine, block, view, observed, now) {
        Ok((desired, action)) => Seed {
            desired,
            action,
            fault: None,
        },
        Err(fault) => Seed {
            // A Secret that was deleted has no content for a seed; one that cannot be read now has.
            desired: view.seed().filter(|_| observed.contents.is_err()).cloned(),
            action: None,
            fault: Some(fault),
        },
    }
}

fn make(
    machine: &Machine,
    block: &Normalized,
    view: &HostView,
    observed: &Observed,
    now: Now,
) -> Result<(Option<SeedRecord>, Option<Action>), Fault> {
    let plan = &machine.cloud_init;
    let known = view.seed();
    let is_there = |known: &SeedRecord| {
        let volume = (known.pool.clone(), known.volume.clone());
        view.volumes.contains_key(&volume) || view.unreadable_pools.contains_key(&known.pool)
    };
    let is_usable = known.is_none_or(|known| !view.seed_is_behind && is_there(known));
    if is_usable && view.has_seed_of(machine) {
        return Ok((known.cloned(), None));
    }
    if *plan == CloudInitPlan::default() {
        return Ok((None, None));
    }
    let contents = match &observed.contents {
        Ok(contents) => contents,
        Err(why) => return Err(unreadable_secret(why)),
    };
    if let Some(fault) = missing_secret(machine, contents) {
        return Err(fault);
    }
    let read = |secret: &_| contents.get(secret)?.as_ref();
    let identity = machine.identity(&observed.cluster);
    let Some(content) = seed_image(plan, &identity, read) else {
        return Ok((None, None));
    };
    let first = block
        .disks
        .first()
        .and_then(|disk| storage(&view.spec, &disk.storage_class));
    let pool = first
        .map(|offer| offer.pool.clone())
        .or_else(|| view.spec.image_pool.clone());
    let Some(pool) = pool else {
        return Err(Fault::new(
            "StorageClassNotFound",
            format!(
                "LibvirtHost '{}' has no pool for cloud-init's data: set imagePool",
                view.host
            ),
        ));
    };
    if let Some(why) = view.unreadable_pools.get(&pool) {
        return Err(pool_not_found("cloud-init's data", &view.host, why));
    }
    let name = seed_name(machine.namespace(), machine.name(), machine.uid(), &content);
    let name = attempt(&name, now);
    let secrets = plan.secret_revisions(&BTreeMap::new(), |secret| {
        Some(read(secret)?.revision.clone())
    });
    let made = SeedRecord {
        pool: pool.clone(),
        volume: name.clone(),
        digest: plan.digest(),
        user_digest: Some(plan.without_generated().digest()),
        secrets,
    };
    let action = Action::CreateSeed {
        pool,
        name,
        current: known.map(|known| known.volume.clone()),
        content: SeedContent(content),
    };
    Ok((Some(made), Some(action)))
}

/// The fault of Secrets that could not be read from the API server.
fn unreadable_secret(why: &str) -> Fault {
    let message = format!(
        "the Secrets that spec.cloudInit names cannot be read ({why}); they are read again soon. If the message contains 'forbidden', give the controller's ServiceAccount the permission to get them"
    );
    Fault::new("CloudInitSecretNotFound", message)
}

/// Name of the volume of one attempt to write a seed. It still ends as every seed does.
fn attempt(name: &str, now: Now) -> String {
    let stem = name.strip_suffix(".iso").unwrap_or(name);
    format!("{stem}-{:08x}.iso", now.0.unix_timestamp())
}
