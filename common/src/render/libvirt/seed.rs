//! The seed image for cloud-init's data source NoCloud: two or three files in a file system with the
//! label `cidata`; or an image with an answer file of Windows Setup.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::identity::domain_uuid;
use super::iso;
use crate::render::cloud_init::{
    ANSWER_FILE, CloudInitPlan, Contents, SecretKey, SecretValue, meta_data,
};
use crate::render::identity::{Identity, digest};

/// The content of a seed image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed<'a> {
    /// User data. `None` writes an empty file, because NoCloud requires the file.
    pub(super) user_data: Option<&'a [u8]>,
    /// Network configuration. `None` writes no file: cloud-init then uses DHCP on the first card.
    pub(super) network_data: Option<&'a [u8]>,
    /// Meta-data that the user set.
    pub(super) meta_data: &'a BTreeMap<String, String>,
    /// Instance id, unless the user's meta-data has one. cloud-init runs again when it changes.
    pub(super) instance: &'a str,
    /// Host name, unless the user's meta-data has one.
    pub(super) hostname: &'a str,
}

/// The ISO image of a seed. The same seed gives the same bytes.
pub(super) fn seed_iso(seed: &Seed<'_>) -> Vec<u8> {
    let meta_data = meta_data(seed.meta_data, seed.instance, seed.hostname);
    let network = seed.network_data.map(|data| ("network-config", data));
    // ISO 9660 requires the entries of a directory in the order of their names.
    let files: Vec<_> = [("meta-data", meta_data.as_slice())]
        .into_iter()
        .chain(network)
        .chain([("user-data", seed.user_data.unwrap_or_default())])
        .collect();
    iso::image("cidata", &files)
}

/// The seed image of a Machine, with the contents of its Secrets from `read`. `None` if the Machine has no
/// cloud-init data, or if one of the Secrets does not exist.
pub fn seed_image<'a>(
    plan: &'a CloudInitPlan,
    machine: &Identity<'_>,
    read: impl Fn(&SecretKey) -> Option<&'a SecretValue>,
) -> Option<Vec<u8>> {
    let contents = plan.contents(read)?;
    if plan.is_sysprep() {
        let answers = contents.user.unwrap_or_default();
        return Some(iso::image("unattend", &[(ANSWER_FILE, answers)]));
    }
    let instance = instance_id(machine, &contents);
    let Contents {
        user,
        network,
        meta,
        generated,
    } = contents;
    Some(seed_iso(&Seed {
        user_data: user,
        network_data: network.or(generated),
        meta_data: meta.unwrap_or(&BTreeMap::new()),
        instance: &instance.to_string(),
        hostname: machine.name,
    }))
}

/// The instance id: it changes exactly when the Machine's uid or the data for cloud-init change.
fn instance_id(machine: &Identity<'_>, contents: &Contents<'_>) -> Uuid {
    let digest = digest(contents);
    Uuid::new_v5(&domain_uuid(machine.uid), digest.as_bytes())
}
