//! What one action does on a host.

use common::quantity::Bytes;
use common::render::libvirt::{Live, Mark, VolumeFormat, VolumeWish, volume_xml};
use uuid::Uuid;

use crate::access::{AccessError, Connection, Shutdown};
use crate::images::names::marker_xml;
use crate::plan::action::Action;
use crate::removal::remove_volume;

/// What one action does at a host.
pub(crate) fn act(
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
            host.create_volume(&pool, &seed_xml(&name, length))?;
            host.upload(&pool, &name, &mut content.0.as_slice(), length)
        }
        Action::Define(domain) => {
            ours_or_none(host, uuid, owner)?;
            host.define(&domain.xml())
        }
        Action::SetMetadata(metadata) => {
            ours(host, uuid, owner)?;
            host.set_metadata(uuid, Some(&metadata.xml()))
        }
        Action::HotPlug(change) => {
            ours(host, uuid, owner)?;
            hot_plug(host, uuid, &change)
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
        Action::Bind { .. } | Action::RecordOrphan { .. } | Action::FetchImage { .. } => Ok(()),
    }
}

/// Makes sure that the domain is the Machine's before anything is done to it.
fn ours(host: &mut dyn Connection, uuid: Uuid, owner: &str) -> Result<(), AccessError> {
    match host.domain(uuid)? {
        None => Err(AccessError::Absent("the domain is gone".into())),
        Some(found) => {
            let mark = found.state.mark.as_deref().and_then(Mark::parse);
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

fn hot_plug(host: &mut dyn Connection, uuid: Uuid, change: &Live) -> Result<(), AccessError> {
    match change {
        Live::AttachDisk(disk) => host.attach(uuid, &disk.xml()),
        Live::DetachDisk(disk) => host.detach(uuid, &disk.xml()),
        Live::AttachNic(nic) => host.attach(uuid, &nic.xml()),
        Live::DetachNic(nic) => host.detach(uuid, &nic.xml()),
        Live::ChangeMedium(disk) => host.update(uuid, &disk.xml()),
        Live::SetVcpus(count) => host.set_vcpus(uuid, *count),
        Live::SetMemory(kib) => host.set_memory(uuid, *kib),
    }
}

/// The volume of a seed.
fn seed_xml(name: &str, length: u64) -> String {
    volume_xml(&VolumeWish {
        name,
        format: VolumeFormat::Raw,
        capacity: Bytes::new(u128::from(length)),
        backing: None,
    })
}
