//! Volumes that existed before the Machine and that it uses as disks as they are: one guest has each of them at a time.
//!
//! ```text
//! every domain, running or defined ─┬─ has the volume, or one on top of it ─▶ it is in use
//!                                   └─ has a pool that libvirt does not know ▶ it cannot be known
//! ```

use std::collections::BTreeSet;

use common::render::libvirt::{Disk, Domain, DomainMetadata, PoolVolume, is_volume_of};
use uuid::Uuid;

use crate::access::{AccessError, Connection, DomainDisks, Result};
use crate::images::check::check_standalone;

/// What the other domains of a host have.
pub(crate) struct Others {
    domains: Vec<DomainDisks>,
    /// The folders of pools that libvirt does not have any more may be folders of others.
    hidden: BTreeSet<String>,
}

impl Others {
    /// Reads what all domains but this one have.
    pub(crate) fn read(host: &mut dyn Connection, own: Uuid) -> Result<Self> {
        let mut domains = host.disks_of_all()?;
        domains.retain(|domain| domain.uuid != own);
        let hidden = domains.iter().flat_map(|domain| &domain.missing_pools);
        Ok(Self {
            hidden: hidden.cloned().collect(),
            domains,
        })
    }

    /// Who else has a volume, in words for a Machine of this namespace; `None`: nobody. Each domain could be started at any
    /// time, so one that is off has it, too.
    pub(crate) fn user_of(
        &self,
        host: &mut dyn Connection,
        volume: &PoolVolume,
        namespace: &str,
    ) -> Result<Option<String>> {
        let PoolVolume { pool, volume, .. } = volume;
        let Some(found) = host.volume(pool, volume)? else {
            return Ok(None);
        };
        if let Some(hidden) = self.hidden.first() {
            return Ok(Some(format!(
                "perhaps a domain that has disks in pool '{hidden}', which libvirt does not know any more"
            )));
        }
        let all = host.volumes(pool)?;
        let mut above = all
            .iter()
            .filter(|it| it.backing.as_ref() == Some(&found.path));
        if let Some(overlay) = above.next() {
            return Ok(Some(format!(
                "volume '{}', which is on top of it",
                overlay.name
            )));
        }
        let mut users = self.domains.iter();
        let Some(user) = users.find(|domain| domain.paths.contains(&found.path)) else {
            return Ok(None);
        };
        let metadata = host
            .domain(user.uuid)?
            .and_then(|found| found.state.metadata);
        let metadata = metadata.as_deref().and_then(DomainMetadata::parse);
        // What is in another namespace is confidential.
        let own = metadata.filter(|metadata| metadata.namespace == namespace);
        Ok(Some(own.map_or_else(
            || "another domain of the host".to_owned(),
            |metadata| format!("Machine '{}'", metadata.name),
        )))
    }
}

/// Fails if another domain has one of these disks, or if one of them names other files of the host. What the running guest
/// has already is not looked for: the effect gives it to nobody.
pub(crate) fn check_free<'d>(
    host: &mut dyn Connection,
    own: Uuid,
    owner: &str,
    disks: impl IntoIterator<Item = &'d Disk>,
) -> Result<()> {
    let mut existing = Vec::new();
    for disk in disks
        .into_iter()
        .filter(|disk| disk.is_ours() && !disk.cdrom)
    {
        match &disk.volume {
            Some(volume) if is_volume_of(&volume.volume, owner) => {}
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
    let namespace = found
        .as_ref()
        .and_then(|found| found.state.metadata.as_deref());
    let namespace = namespace
        .and_then(DomainMetadata::parse)
        .unwrap_or_default()
        .namespace;
    let live = found.and_then(|found| found.live);
    let live = live.as_deref().map(parse).transpose()?.unwrap_or_default();
    let has = |volume: &PoolVolume| live.iter().any(|disk| disk.volume.as_ref() == Some(volume));
    existing.retain(|volume| !has(volume));
    let others = Others::read(host, own)?;
    for volume in existing {
        if let Some(user) = others.user_of(host, volume, &namespace)? {
            let PoolVolume { pool, volume, .. } = volume;
            return Err(AccessError::Changed(format!(
                "volume {pool}/{volume} is used by {user}"
            )));
        }
        check_standalone(host, volume)?;
    }
    Ok(())
}

/// The disks that the domain is defined with. A definition that cannot be read may have any.
pub(crate) fn defined_disks(host: &mut dyn Connection, uuid: Uuid) -> Result<Vec<Disk>> {
    match host.domain(uuid)? {
        None => Ok(vec![]),
        Some(found) => parse(&found.inactive),
    }
}

fn parse(text: &str) -> Result<Vec<Disk>> {
    let domain = Domain::parse(text);
    let domain = domain.map_err(|error| AccessError::Changed(format!("the domain: {error}")))?;
    Ok(domain.disks)
}

/// Whether a domain has a disk on a volume that existed before its Machine: one that its metadata does not record.
pub(crate) fn has_existing(domain: &Domain, metadata: &DomainMetadata) -> bool {
    let mut disks = domain
        .disks
        .iter()
        .filter(|disk| disk.is_ours() && !disk.cdrom);
    disks.any(|disk| {
        let volume = disk.volume.as_ref();
        volume.is_some_and(|volume| !is_volume_of(&volume.volume, &metadata.uid))
    })
}
