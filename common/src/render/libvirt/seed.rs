//! What cloud-init reads: the data source NoCloud, three files on a volume named `cidata`.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::identity::domain_uuid;
use super::iso;
use crate::render::cloud_init::{CloudInitPlan, Contents, Reading, SecretKey, meta_data};
use crate::render::identity::{Identity, digest};

/// What a seed holds.
#[derive(Clone, Copy, Debug)]
pub struct Seed<'a> {
    /// The user data. NoCloud needs the file, even when it has nothing to say.
    pub user_data: Option<&'a [u8]>,
    /// The network configuration. Absent: cloud-init asks for an address on the first card.
    pub network_data: Option<&'a [u8]>,
    /// The user's own metadata.
    pub meta_data: &'a BTreeMap<String, String>,
    /// Which instance this is, unless the user's metadata says so. cloud-init acts anew on another one.
    pub instance: &'a str,
    /// Name of the guest, unless the user's metadata says so.
    pub hostname: &'a str,
}

/// The image of the volume. The same seed gives the same bytes.
pub fn seed_iso(seed: &Seed<'_>) -> Vec<u8> {
    let meta_data = meta_data(seed.meta_data, seed.instance, seed.hostname);
    let network = seed.network_data.map(|data| ("network-config", data));
    // A directory is in the order of its names.
    let files: Vec<_> = [("meta-data", meta_data.as_slice())]
        .into_iter()
        .chain(network)
        .chain([("user-data", seed.user_data.unwrap_or_default())])
        .collect();
    iso::image("cidata", &files)
}

/// The seed of what a Machine gives cloud-init, with the contents of its Secrets as `read`. `None`: it
/// gives nothing, or one of the Secrets is not there.
pub fn seed_of<'a>(
    plan: &'a CloudInitPlan,
    machine: &Identity<'_>,
    read: impl Fn(&SecretKey) -> Option<&'a Reading>,
) -> Option<Vec<u8>> {
    let contents = plan.contents(read)?;
    let instance = instance(machine, &contents);
    let Contents {
        user,
        network,
        meta,
    } = contents;
    Some(seed_iso(&Seed {
        user_data: user,
        network_data: network,
        meta_data: meta.unwrap_or(&BTreeMap::new()),
        instance: &instance.to_string(),
        hostname: machine.name,
    }))
}

/// Another instance exactly when the Machine or what its user gives cloud-init is another.
fn instance(machine: &Identity<'_>, contents: &Contents<'_>) -> Uuid {
    let digest = digest(contents);
    Uuid::new_v5(&domain_uuid(machine.uid), digest.as_bytes())
}
