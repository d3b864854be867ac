//! What cloud-init is given: a small image, made anew whenever its content is another.
//!
//! One whose upload broke off looks complete. So a seed is trusted only when the domain is defined with it; any
//! other is written again, which costs milliseconds.

use std::collections::BTreeMap;

use common::api::normalized::Normalized;
use common::quantity::Bytes;
use common::render::CloudInitPlan;
use common::render::libvirt::{
    SeedRecord, VolumeFormat, VolumeSpec, seed_image, seed_name, volume_xml,
};

use super::volumes::is_defined;
use super::{Action, Observed, Secret, Site};
use crate::placement::storage;
use controller_core::conditions::{Fault, missing_secret};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// The volume of a seed.
pub(crate) fn seed_xml(name: &str, length: u64) -> String {
    volume_xml(&VolumeSpec {
        name,
        format: VolumeFormat::Raw,
        capacity: Bytes::new(u128::from(length)),
        backing: None,
    })
}

/// The seed: as it is, or made anew of what cloud-init is given now.
pub(super) fn seed(
    machine: &Machine,
    block: &Normalized,
    site: &Site,
    observed: &Observed,
) -> Result<(Option<SeedRecord>, Option<Action>), Fault> {
    let plan = &machine.cloud_init;
    if *plan == CloudInitPlan::default() {
        return Ok((None, None));
    }
    let mark = site.guest.as_ref().and_then(|guest| guest.mark.as_ref());
    let known = mark.and_then(|mark| mark.seed.as_ref());
    let digest = plan.digest();
    if let Some(known) = known
        && known.digest == digest
        && !site.seed_is_behind
        && site
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
    let Some(content) = seed_image(plan, &identity, read) else {
        return Ok((None, None));
    };
    let first = block
        .disks
        .first()
        .and_then(|disk| storage(&site.spec, &disk.storage_class));
    let pool = first
        .map(|offer| offer.pool.clone())
        .or_else(|| site.spec.image_pool.clone());
    let Some(pool) = pool else {
        return Err(Fault::new(
            "StorageClassNotFound",
            format!(
                "LibvirtHost '{}' has no pool for cloud-init's data: set imagePool",
                site.host
            ),
        ));
    };
    let name = seed_name(machine.namespace(), machine.name(), machine.uid(), &content);
    let secrets = plan.secret_revisions(&BTreeMap::new(), |secret| {
        Some(read(secret)?.revision.clone())
    });
    let made = SeedRecord {
        pool: pool.clone(),
        volume: name.clone(),
        digest,
        secrets,
    };
    // One that the domain is defined with was complete once; any other may have broken off.
    let there = site.volumes.contains_key(&(pool.clone(), name.clone())) && is_defined(site, &name);
    let action = (!there).then_some(Action::CreateSeed {
        pool,
        name,
        content: Secret(content),
    });
    Ok((Some(made), action))
}
