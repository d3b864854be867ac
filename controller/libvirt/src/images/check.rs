//! Checks an image right before something is made of it: a disk, or a medium in a drive.
//!
//! ```text
//! volume of the image pool ─ first bytes ─▶ header ─┬─ names no other file ─▶ may be used
//!                                                   └─ backing file ─▶ a volume of the same pool, checked as well
//! ```
//! A guest may change the header of its disk at any time, after the check as well. So a volume that any domain can write
//! is no image.
//! A header may name any file of the host. libvirt reports a backing file but no external data file, and probes the
//! format. So the header of every volume is read here: an earlier release fetched images unchecked.

use common::api::choice::Choice as _;
use common::names::CLOUD_INIT_DISK;
use common::quantity::Bytes;
use common::render::libvirt::image_header::{
    Backing, HEAD_BYTES, HeaderError, ImageHeader, Quoted, parse,
};
use common::render::libvirt::{
    AS_THE_GUEST_HAD_IT, Disk, FETCHED_IMAGE, PoolVolume, is_reserved_volume,
};

use crate::access::{AccessError, Connection, Result, Volume};
use crate::parts::shell_word;

/// Most files below an image. Each costs a read, and administrators have one or two.
const CHAIN_MAX: usize = 8;

/// What is said of an image that does not fit its disk; the rest of a sentence about the image.
pub(crate) fn too_large(image: Bytes, disk: Bytes) -> String {
    format!("is {image} large and the disk {disk}: make the disk at least as large as its image")
}

/// Fails unless the volume is an image of the format that the plan has, and every file below it is one of its pool.
pub(crate) fn check_image(host: &mut dyn Connection, image: &PoolVolume) -> Result<()> {
    let pool = image.pool.as_str();
    let domains = host.disks_of_all()?;
    let (mut name, mut expected) = (image.volume.clone(), image.format.as_str().to_owned());
    for _ in 0..=CHAIN_MAX {
        let is_fetched = name.starts_with(FETCHED_IMAGE);
        if is_reserved_volume(&name) && !is_fetched {
            return Err(refused(
                pool,
                &name,
                "is the disk of a Machine and no image",
            ));
        }
        let Some(volume) = host.volume(pool, &name)? else {
            return Err(AccessError::Absent(format!("volume {pool}/{name} is gone")));
        };
        if let Some(domain) = domains.iter().find(|it| it.written.contains(&volume.path)) {
            let why = format!(
                "is a disk that domain {} can write: write it into a volume of its own {AS_THE_GUEST_HAD_IT} and name that, or make the disk <readonly/>, or undefine the domain",
                domain.uuid
            );
            return Err(refused(pool, &name, &why));
        }
        let Some(header) = header(host, pool, &volume)? else {
            return Ok(());
        };
        let format = header.format.as_str();
        if format != expected {
            let why = format!(
                "is {format} by its header, and {expected} by what libvirt last read or the image above it says: let libvirt read it again (virsh pool-refresh {})",
                shell_word(pool)
            );
            return Err(refused(pool, &name, &why));
        }
        let Some(backing) = header.backing.clone() else {
            return Ok(());
        };
        if is_fetched {
            // The author of a fetched image must not read other images of the pool.
            header
                .standalone()
                .map_err(|error| refused(pool, &name, &error.to_string()))?;
        }
        (name, expected) = below(host, pool, &volume, backing)?;
    }
    Err(refused(
        pool,
        &image.volume,
        &format!(
            "has more than {CHAIN_MAX} files below it: write it as one file with 'qemu-img convert'"
        ),
    ))
}

/// Fails unless the medium in a drive is an image.
pub(crate) fn check_medium(host: &mut dyn Connection, disk: &Disk) -> Result<()> {
    match &disk.volume {
        Some(medium) if disk.cdrom && disk.name() != CLOUD_INIT_DISK => check_image(host, medium),
        _ => Ok(()),
    }
}

/// The header of a volume; `None`: libvirt's driver of the pool keeps no content, as its test driver.
fn header(host: &mut dyn Connection, pool: &str, volume: &Volume) -> Result<Option<ImageHeader>> {
    let parsed = file(host, pool, volume)?.map(|file| parse_file(&file));
    let parsed = parsed.transpose();
    parsed.map_err(|error| refused(pool, &volume.name, &error.to_string()))
}

/// The beginning of a volume; `None`: libvirt's driver of the pool keeps no content, as its test driver.
pub(crate) fn file(
    host: &mut dyn Connection,
    pool: &str,
    volume: &Volume,
) -> Result<Option<Vec<u8>>> {
    match host.head(pool, &volume.name, HEAD_BYTES as u64) {
        Err(AccessError::Unsupported(_)) if volume.backing.is_none() => Ok(None),
        head => head.map(Some),
    }
}

/// The header in the beginning of a file.
pub(crate) fn parse_file(head: &[u8]) -> std::result::Result<ImageHeader, HeaderError> {
    // libvirt reports the length of a raw file only. QEMU does not open a file whose tables are beyond its end.
    let length = match head.len() {
        whole if whole < HEAD_BYTES => whole as u64,
        _ => u64::MAX >> 1,
    };
    parse(head, length)
}

/// Name and format of the volume below an image, which has to be in the same pool.
fn below(
    host: &mut dyn Connection,
    pool: &str,
    volume: &Volume,
    backing: Backing,
) -> Result<(String, String)> {
    let folder = volume
        .path
        .rsplit_once('/')
        .map_or("", |(folder, _)| folder);
    let path = match backing.name.strip_prefix('/') {
        Some(_) => backing.name.clone(),
        // QEMU takes it as a path beside the image.
        None => format!("{folder}/{}", backing.name),
    };
    let found = host.volumes(pool)?.into_iter().find(|it| it.path == path);
    match (found, backing.format) {
        (Some(found), Some(format)) => Ok((found.name, format)),
        (Some(_), None) => Err(refused(
            pool,
            &volume.name,
            "has a backing file without a format, which QEMU would probe: record it with 'qemu-img rebase -u -F'",
        )),
        (None, _) => Err(refused(
            pool,
            &volume.name,
            &format!(
                "has the backing file {}, which is no volume of its pool: write it as one file with 'qemu-img convert -O qcow2'",
                Quoted(backing.name)
            ),
        )),
    }
}

fn refused(pool: &str, name: &str, why: &str) -> AccessError {
    AccessError::Refused(format!("image {pool}/{name} {why}"))
}

#[cfg(test)]
pub(crate) mod tests;
