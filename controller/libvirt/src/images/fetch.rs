//! Fetches an image into the image pool of a host.

use std::io::Read as _;

use common::bounds::MEDIUM_MAX;
use common::image_source::redacted;
use common::quantity::Bytes;
use common::render::libvirt::image_header::{HEAD_BYTES, ImageHeader, parse};
use common::render::libvirt::{VolumeSpec, volume_xml};
use controller_core::preconditions::Effect;

use super::check::too_large;
use super::credentials::Credentials;
use super::download::{Download, Source, open};
use super::fetches::{FetchPermit, ImageUse};
use super::names::{attempt, is_attempt_of, marker, marker_xml};
use super::reader::{MinimumRate, Reader, read_head};
use crate::access::{AccessError, Connection, Volume};
use crate::guard::Guard;
use crate::pool_space::refresh;
use crate::volume_effects::{Removal, check_new, remove_unneeded, remove_volume};

/// What to fetch, and where to.
#[derive(Clone)]
pub(crate) struct FetchRequest {
    /// Image pool of the host.
    pub(crate) pool: String,
    /// Name of the image's volume without the attempt.
    pub(crate) base: String,
    /// Number of this attempt: seconds since 1970.
    pub(crate) number: i64,
    /// Where the image is. No message shows it as it is: it may have a password or a token.
    pub(crate) url: String,
    /// `sha256:` and the digest that the content must have.
    pub(crate) checksum: Option<String>,
    /// For the server of the URL.
    pub(crate) credentials: Option<Credentials>,
    /// `imageSources` of the host.
    pub(crate) sources: Option<Vec<String>>,
    /// What is made of the image.
    pub(crate) made: ImageUse,
}

/// Fetches an image into a volume of a name that was never used. Blocks until it is complete. Attempts that were
/// interrupted are removed first, unless a volume has one as its backing file. Nothing is uploaded before the header
/// was parsed. The guard is asked with every chunk, and before the image is called complete.
pub(crate) fn fetch(
    host: &mut dyn Connection,
    request: &FetchRequest,
    permit: &FetchPermit,
    guard: &Guard,
) -> Result<(), String> {
    let refused = |error: AccessError| error.to_string();
    let shown = redacted(&request.url);
    let pool = request.pool.as_str();
    if remove_incomplete(host, request, guard).map_err(refused)? {
        return Ok(());
    }
    let Download { body, length } = open(Source {
        url: &request.url,
        allowed: request.sources.as_deref(),
        credentials: request.credentials.as_ref(),
    })?;
    check_length(length, request.made).map_err(|why| format!("{shown} {why}"))?;
    check_room(host, pool, length, permit.announce(length))?;
    let mut source = Reader::new(body, MinimumRate::default(), permit.progress(), guard);
    let head = read_head(&mut source, HEAD_BYTES);
    let head = head.map_err(|error| source.failure(&shown).unwrap_or_else(|| error.to_string()))?;
    let header =
        check_header(&head, length, request.made).map_err(|why| format!("{shown} {why}"))?;
    let volume = attempt(&request.base, request.number);
    check_new(host, guard, pool, &volume).map_err(refused)?;
    let xml = volume_xml(&VolumeSpec {
        name: &volume,
        format: header.format,
        capacity: Bytes::new(u128::from(header.virtual_size)),
        backing: None,
    });
    host.create_volume(pool, &xml).map_err(refused)?;
    let mut content = head.as_slice().chain(&mut source);
    let uploaded = host.upload(pool, &volume, &mut content, length);
    let failure = source
        .failure(&shown)
        .or_else(|| uploaded.err().map(refused));
    if let Some(why) = failure {
        // Only another fetch of this image would remove it, and its source may never be named again.
        discard(host, guard, pool, &volume);
        return Err(why);
    }
    let digest = source.digest();
    if let Some(expected) = request
        .checksum
        .as_deref()
        .and_then(|text| text.strip_prefix("sha256:"))
        && !expected.eq_ignore_ascii_case(&digest)
    {
        discard(host, guard, pool, &volume);
        return Err(format!(
            "its checksum is sha256:{digest} and not sha256:{expected}: correct image.checksum, or image.url if that is another file"
        ));
    }
    guard.check().map_err(refused)?;
    // libvirt then reports what the file has on disk. While it copies another image in this pool it does not read the pool again;
    // format and size are known, because the volume was made with those of the header.
    refresh(host, pool).map_err(refused)?;
    host.create_volume(pool, &marker_xml(&volume))
        .map_err(refused)?;
    Ok(())
}

/// Removes the attempt that this job has just made, if the host and the Lease allow it.
fn discard(host: &mut dyn Connection, guard: &Guard, pool: &str, volume: &str) {
    let removal = Removal {
        pool: pool.to_owned(),
        name: volume.to_owned(),
        key: None,
        is_owned: true,
        is_deletable: true,
    };
    if let Err(error) = remove_volume(host, guard, Effect::RemoveImage, &removal) {
        tracing::warn!(%error, pool, volume, "an incomplete image is kept");
    }
}

/// Fails if a file has more bytes than what is made of it can need; the error is the rest of a sentence about it. No more
/// than the announced length is read afterwards.
///
/// A file of a disk has the disk's content and, if it is qcow2, metadata. Of these the tables that map clusters and count
/// references take most: 8 bytes each for a cluster, that is 1/32 of the disk with the smallest clusters of 512 bytes, and
/// less than 1/4000 with the usual 64 KiB. 1/8 leaves room for bitmaps of backups, and 64 MiB for what does not depend on
/// the size (QEMU, docs/interop/qcow2.rst).
fn check_length(length: u64, made: ImageUse) -> Result<(), String> {
    let length = u128::from(length);
    let (most, what, fix) = match made {
        ImageUse::Disk(size) => (
            u128::from(size) + u128::from(size / 8) + (64 << 20),
            "the image of this disk",
            "make the disk larger, or write the image again with 'qemu-img convert -O qcow2', which leaves out what is unused",
        ),
        ImageUse::Medium(most) if most < MEDIUM_MAX => (
            most,
            "a medium of this namespace",
            "use a smaller file: a MachinePolicy limits disks and media",
        ),
        ImageUse::Medium(most) => (most, "a medium", "use a smaller file, or a disk"),
    };
    if length <= most {
        return Ok(());
    }
    let (has, most) = (Bytes::new(length), Bytes::new(most));
    Err(format!(
        "has {has} of content, and {what} may have {most}: {fix}"
    ))
}

/// Fails if the pool has no room for the file beside what other fetches are about to write, in bytes.
fn check_room(
    host: &mut dyn Connection,
    pool: &str,
    length: u64,
    announced: u64,
) -> Result<(), String> {
    let refused = |error: AccessError| error.to_string();
    refresh(host, pool).map_err(refused)?;
    let pools = host.pools().map_err(refused)?;
    let Some(found) = pools.iter().find(|it| it.name == pool) else {
        return Ok(());
    };
    let room = found.available.saturating_sub(announced);
    if length <= room {
        return Ok(());
    }
    let bytes = |count: u64| Bytes::new(u128::from(count));
    let others = match announced {
        0 => String::new(),
        _ => format!(" beside {} that are being fetched", bytes(announced)),
    };
    Err(format!(
        "it has {}, and the image pool '{pool}' has room for {}{others}: enlarge the pool, or delete images there that nothing uses",
        bytes(length),
        bytes(room)
    ))
}

/// The header of an image that needs no other file and fits the disk; the error is the rest of a sentence about it.
fn check_header(head: &[u8], length: u64, made: ImageUse) -> Result<ImageHeader, String> {
    let header = parse(head, length).and_then(ImageHeader::standalone);
    let header = header.map_err(|error| error.to_string())?;
    match made {
        ImageUse::Disk(size) if header.virtual_size > size => Err(too_large(
            Bytes::new(u128::from(header.virtual_size)),
            Bytes::new(u128::from(size)),
        )),
        ImageUse::Medium(most) if u128::from(header.virtual_size) > most => Err(format!(
            "is {} large, and a medium may be {}: use a smaller one",
            Bytes::new(u128::from(header.virtual_size)),
            Bytes::new(most)
        )),
        _ => Ok(header),
    }
}

/// Removes attempts without a marker. Returns whether one is complete, so that no other is needed.
fn remove_incomplete(
    host: &mut dyn Connection,
    request: &FetchRequest,
    guard: &Guard,
) -> Result<bool, AccessError> {
    let pool = request.pool.as_str();
    let volumes = host.volumes(pool)?;
    let is_complete = |it: &&Volume| volumes.iter().any(|other| other.name == marker(&it.name));
    let attempts = volumes
        .iter()
        .filter(|volume| is_attempt_of(&volume.name, &request.base));
    let attempts: Vec<_> = attempts.collect();
    let complete = attempts.iter().position(is_complete);
    let incomplete = attempts.into_iter().take(complete.unwrap_or(usize::MAX));
    // Guests use the image, whose marker was lost, as a backing file; or a pool cannot be read.
    for why in remove_unneeded(host, guard, Effect::RemoveImage, pool, incomplete)? {
        tracing::warn!(why, "an incomplete image is kept");
    }
    Ok(complete.is_some())
}

#[cfg(test)]
mod tests;
