//! Volumes that existed before the Machine and that it uses as disks as they are: one guest has each of them at a time.
//!
//! ```text
//! pool ── a folder of this host, which no other pool has ─┐
//! volume ── qcow2, names no other file ───────────────────┤
//! every domain, running or defined ── does not use it ────┼─▶ the guest gets it
//! every volume of the host ── is no overlay of it ────────┘
//! ```
//! A guest can write anything into a raw disk, the header of a qcow2 image as well. So no message proposes a command that
//! would read a header and open the files that it names.

use common::api::choice::Choice as _;
use common::render::libvirt::image_header::{HeaderError, ImageHeader};
use common::render::libvirt::{Disk, Domain, DomainMetadata, PoolVolume, domain_name, is_disk_of};
use uuid::Uuid;

use crate::access::{AccessError, Connection, DomainDisks, Pool, Result, Volume};
use crate::domain_effects::parsed;
use crate::guard::Guard;
use crate::images::check::{file, parse_file};
use crate::parts::{existing_pool_fault, pool_fault};
use crate::volume_effects::read_all_pools;

/// The format of existing volumes, as libvirt names it.
const FORMAT: &str = "qcow2";

/// Why the guest does not get a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// Somebody else has it: who, in words for a Machine of its namespace.
    InUse(String),
    /// A guest cannot use it: what it is, after the name of the volume.
    Unfit(String),
}

/// What a volume is compared with: the other domains of the host, and all its pools and volumes.
pub(crate) struct Others {
    pools: Vec<Pool>,
    domains: Vec<DomainDisks>,
    volumes: Vec<Volume>,
}

impl Others {
    /// As libvirt has last read the pools. Those that cannot be read are left out.
    pub(crate) fn last_read(host: &mut dyn Connection, own: Uuid) -> Result<Self> {
        let pools = host.pools()?;
        let mut volumes = Vec::new();
        for pool in pools
            .iter()
            .filter(|pool| pool_fault(&pools, &pool.name).is_none())
        {
            match host.volumes(&pool.name) {
                Err(error) if error.is_of_host() => return Err(error),
                found => volumes.extend(found.unwrap_or_default()),
            }
        }
        Self::new(host, own, pools, volumes)
    }

    /// As they are now. Refused if a pool cannot be read: an overlay may be in it.
    fn now(host: &mut dyn Connection, own: Uuid, guard: &Guard) -> Result<Self> {
        let volumes = read_all_pools(host, guard)?.into_iter();
        let volumes = volumes.map(|(_, volume)| volume).collect();
        let pools = host.pools()?;
        Self::new(host, own, pools, volumes)
    }

    fn new(
        host: &mut dyn Connection,
        own: Uuid,
        pools: Vec<Pool>,
        volumes: Vec<Volume>,
    ) -> Result<Self> {
        let mut domains = host.disks_of_all()?;
        domains.retain(|domain| domain.uuid != own);
        Ok(Self {
            pools,
            domains,
            volumes,
        })
    }

    /// Why the guest of a Machine in this namespace does not get a volume; `None`: it may. The volume is there.
    pub(crate) fn fault(
        &self,
        host: &mut dyn Connection,
        (pool, volume): (&str, &Volume),
        namespace: &str,
    ) -> Result<Option<Unusable>> {
        let unfit = match existing_pool_fault(&self.pools, pool) {
            Some(why) => Some(format!("cannot be used: {why}")),
            None => unfit(host, pool, volume)?,
        };
        match unfit {
            Some(why) => Ok(Some(Unusable::Unfit(why))),
            None => Ok(self.user_of(host, volume, namespace)?.map(Unusable::InUse)),
        }
    }

    /// Who else has a volume; `None`: nobody. Each domain could be started at any time, so one that is off has it, too.
    fn user_of(
        &self,
        host: &mut dyn Connection,
        volume: &Volume,
        namespace: &str,
    ) -> Result<Option<String>> {
        let path = &volume.path;
        if self
            .volumes
            .iter()
            .any(|it| it.backing.as_ref() == Some(path))
        {
            return Ok(Some("an overlay of it on the host".to_owned()));
        }
        let mut domains = self.domains.iter();
        if let Some(user) = domains.find(|domain| domain.paths.contains(path)) {
            let found = host.domain(user.uuid)?;
            let metadata = found.and_then(|found| found.state.metadata);
            let metadata = metadata.as_deref().and_then(DomainMetadata::parse);
            // What is in another namespace is confidential.
            let own = metadata.filter(|metadata| metadata.namespace == namespace);
            return Ok(Some(own.map_or_else(
                || "another domain of the host".to_owned(),
                |metadata| format!("Machine '{}'", metadata.name),
            )));
        }
        // A folder may be that of another pool.
        let mut domains = self.domains.iter();
        let hides = domains.any(|domain| !domain.missing_pools.is_empty());
        Ok(hides.then(|| {
            "perhaps a domain with disks in a pool that libvirt does not have any more".to_owned()
        }))
    }
}

/// What makes a disk of a guest one that a Machine can name. Without `-f` the header is believed, which a guest may have
/// written.
const REWRITE: &str = "write the disk into a file of its own, in the format in which its last domain had it (qemu-img convert -f raw -O qcow2 for a raw disk)";

/// Why the volume cannot be a disk of any guest; `None`: it is a qcow2 file, and its header refers to no other file.
fn unfit(host: &mut dyn Connection, pool: &str, volume: &Volume) -> Result<Option<String>> {
    if volume.format != FORMAT {
        return Ok(Some(not_qcow2(&volume.format)));
    }
    let Some(file) = file(host, pool, volume)? else {
        return Ok(None);
    };
    let header = parse_file(&file).and_then(ImageHeader::standalone);
    let what = match header {
        Ok(header) if header.format.as_str() == FORMAT => return Ok(None),
        Ok(header) => return Ok(Some(not_qcow2(header.format.as_str()))),
        Err(HeaderError::BackingFile(name)) => format!("names the file {name} in its header"),
        Err(HeaderError::DataFile | HeaderError::BackingFileName) => {
            "names another file in its header".to_owned()
        }
        Err(_) => "has no valid header of a qcow2 file".to_owned(),
    };
    Ok(Some(format!(
        "{what}, and a guest may have written that: {REWRITE}"
    )))
}

fn not_qcow2(format: &str) -> String {
    format!(
        "is {format} and not qcow2, and what a guest writes into it could change what it is: {REWRITE}"
    )
}

/// Fails if the guest may not get one of these disks. What the running guest has already is not looked for: the effect
/// gives it to nobody.
pub(crate) fn check_free<'d>(
    host: &mut dyn Connection,
    guard: &Guard,
    (own, domain): (Uuid, &str),
    disks: impl IntoIterator<Item = &'d Disk>,
) -> Result<()> {
    let mut existing = Vec::new();
    for disk in disks.into_iter().filter(|disk| disk.is_our_disk()) {
        match &disk.volume {
            Some(volume) if is_disk_of(&volume.volume, domain) => {}
            Some(volume) => existing.push(volume),
            None => {
                let name = disk.name();
                let why = format!("disk '{name}' of the definition is no volume of a pool");
                return Err(AccessError::Changed(why));
            }
        }
    }
    if existing.is_empty() {
        return Ok(());
    }
    let found = host.domain(own)?;
    let metadata = found
        .as_ref()
        .and_then(|found| found.state.metadata.as_deref());
    let metadata = metadata.and_then(DomainMetadata::parse);
    let namespace = metadata.unwrap_or_default().namespace;
    let live = found.and_then(|found| found.live);
    let live = live.as_deref().map(parsed).transpose()?;
    let live = live.map(|domain| domain.disks).unwrap_or_default();
    let has = |volume: &PoolVolume| live.iter().any(|disk| disk.volume.as_ref() == Some(volume));
    existing.retain(|volume| !has(volume));
    if existing.is_empty() {
        return Ok(());
    }
    let others = Others::now(host, own, guard)?;
    for PoolVolume { pool, volume, .. } in existing {
        let Some(found) = host.volume(pool, volume)? else {
            let gone = format!("volume {pool}/{volume} is gone");
            return Err(AccessError::Absent(gone));
        };
        match others.fault(host, (pool, &found), &namespace)? {
            None => {}
            Some(Unusable::InUse(user)) => {
                let why = format!("volume {pool}/{volume} is used by {user}");
                return Err(AccessError::Changed(why));
            }
            Some(Unusable::Unfit(why)) => {
                return Err(AccessError::Refused(format!(
                    "volume {pool}/{volume} {why}"
                )));
            }
        }
    }
    Ok(())
}

/// Whether a domain has a disk on a volume that existed before its Machine: one that was not made as a disk of it.
pub(crate) fn has_existing(domain: &Domain, metadata: &DomainMetadata) -> bool {
    let disks = domain.disks.iter().filter(|disk| disk.is_our_disk());
    let mut volumes = disks.filter_map(|disk| disk.volume.as_ref());
    let owner = domain_name(&metadata.namespace, &metadata.name, &metadata.uid);
    volumes.any(|volume| !is_disk_of(&volume.volume, &owner))
}
