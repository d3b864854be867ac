//! What cloud-init is given: a small image, made anew whenever its content is another.
//!
//! One whose upload broke off looks complete. So a seed is trusted only when the domain is defined with it; any
//! other is written again, which costs milliseconds.

use std::collections::BTreeMap;

use common::api::normalized::Normalized;
use common::render::kubevirt::CloudInitPlan;
use common::render::libvirt::{SeedMark, seed_name, seed_of};

use super::action::{Action, SeedContent};
use super::volumes::is_defined;
use crate::observed::{HostView, Observed};
use crate::offers::storage;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::status::{Fault, missing_secret};

/// The seed: as it is, or made anew of what cloud-init is given now.
pub(super) fn seed(
    machine: &Machine,
    block: &Normalized,
    view: &HostView,
    observed: &Observed,
) -> Result<(Option<SeedMark>, Option<Action>), Fault> {
    let plan = &machine.cloud_init;
    if *plan == CloudInitPlan::default() {
        return Ok((None, None));
    }
    let mark = view
        .guest
        .as_ref()
        .and_then(|guest| guest.metadata.as_ref());
    let known = mark.and_then(|mark| mark.seed.as_ref());
    let digest = plan.digest();
    if let Some(known) = known
        && known.digest == digest
        && !view.seed_is_behind
        && view
            .volumes
            .contains_key(&(known.pool.clone(), known.volume.clone()))
    {
        return Ok((Some(known.clone()), None));
    }
    if let Some(fault) = missing_secret(machine, &observed.contents) {
        return Err(fault);
    }
    let read = |secret: &_| observed.contents.get(secret)?.as_ref();
    let identity = machine.identity(&observed.cluster);
    let Some(content) = seed_of(plan, &identity, read) else {
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
    let name = seed_name(machine.namespace(), machine.name(), machine.uid(), &content);
    let secrets = plan.marks(&BTreeMap::new(), |secret| Some(read(secret)?.mark.clone()));
    let made = SeedMark {
        pool: pool.clone(),
        volume: name.clone(),
        digest,
        secrets,
    };
    // One that the domain is defined with was complete once; any other may have broken off.
    let there = view.volumes.contains_key(&(pool.clone(), name.clone())) && is_defined(view, &name);
    let action = (!there).then_some(Action::CreateSeed {
        pool,
        name,
        content: SeedContent(content),
    });
    Ok((Some(made), action))
}
