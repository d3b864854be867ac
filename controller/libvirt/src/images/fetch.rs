//! Fetches an image into the image pool of a host.

use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::quantity::Bytes;
use common::render::libvirt::{VolumeFormat, VolumeSpec, volume_xml};
use controller_core::preconditions::Effect;
use sha2::{Digest as _, Sha256};
use ureq::tls::{RootCerts, TlsConfig};

use super::fetches::Progress;
use super::names::{attempt, hex, is_attempt_of, marker, marker_xml};
use crate::access::{AccessError, Connection, Volume};
use crate::guard::Guard;
use crate::volume_effects::{Removal, check_new, remove_unneeded, remove_volume};

/// Limit until a server sends its response headers. The content has no limit of its own.
const RESPONSE_LIMIT: Duration = Duration::from_secs(30);

/// What to fetch, and where to.
#[derive(Clone, Debug)]
pub(crate) struct FetchRequest {
    /// Image pool of the host.
    pub(crate) pool: String,
    /// Name of the image's volume without the attempt.
    pub(crate) base: String,
    /// Number of this attempt: seconds since 1970.
    pub(crate) number: i64,
    /// Where the image is.
    pub(crate) url: String,
    /// `sha256:` and the digest that the content must have.
    pub(crate) checksum: Option<String>,
}

/// Fetches an image into a volume of a name that was never used. Blocks until it is complete. Attempts that were
/// interrupted are removed first, unless it is a backing file. The guard is checked with every chunk, and before the
/// image is called complete.
pub(crate) fn fetch(
    host: &mut dyn Connection,
    request: &FetchRequest,
    progress: &Progress,
    guard: &Guard,
) -> Result<(), String> {
    let refused = |error: AccessError| error.to_string();
    let (mut body, length) = open(&request.url)?;
    progress.all.store(length, Ordering::Relaxed);
    let pool = request.pool.as_str();
    if remove_incomplete(host, request, guard).map_err(refused)? {
        return Ok(());
    }
    let volume = attempt(&request.base, request.number);
    check_new(host, guard, pool, &volume).map_err(refused)?;
    let xml = volume_xml(&VolumeSpec {
        name: &volume,
        format: VolumeFormat::Raw,
        capacity: Bytes::new(u128::from(length)),
        backing: None,
    });
    host.create_volume(pool, &xml).map_err(refused)?;
    let mut source = CountingReader {
        body: &mut body,
        progress,
        guard,
        digest: Sha256::new(),
        error: None,
    };
    let uploaded = host.upload(pool, &volume, &mut source, length);
    let (digest, error) = (source.digest, source.error);
    if let Some(error) = error {
        return Err(format!("{} was interrupted: {error}", request.url));
    }
    uploaded.map_err(refused)?;
    let digest = hex(digest.finalize().as_slice());
    if let Some(expected) = request
        .checksum
        .as_deref()
        .and_then(|text| text.strip_prefix("sha256:"))
        && !expected.eq_ignore_ascii_case(&digest)
    {
        if let Err(error) = remove_attempt(host, guard, pool, &volume) {
            tracing::warn!(%error, "an image with another checksum is kept");
        }
        return Err(format!(
            "its checksum is sha256:{digest} and not sha256:{expected}: correct image.checksum, or image.url if that is another file"
        ));
    }
    guard.check().map_err(refused)?;
    // libvirt reads the format, and the size that a guest sees, from the header.
    host.refresh(pool).map_err(refused)?;
    host.create_volume(pool, &marker_xml(&volume))
        .map_err(refused)?;
    Ok(())
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

/// Removes the attempt that this job has just made.
fn remove_attempt(
    host: &mut dyn Connection,
    guard: &Guard,
    pool: &str,
    name: &str,
) -> Result<(), AccessError> {
    let removal = Removal {
        pool: pool.to_owned(),
        name: name.to_owned(),
        key: None,
        is_owned: true,
        is_deletable: true,
    };
    remove_volume(host, guard, Effect::RemoveImage, &removal)
}

fn open(url: &str) -> Result<(impl Read + use<>, u64), String> {
    // The certificates the machine trusts: companies serve images under a CA of their own.
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .build();
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .timeout_recv_response(Some(RESPONSE_LIMIT))
        .timeout_connect(Some(RESPONSE_LIMIT))
        .build();
    let answer = ureq::Agent::new_with_config(config).get(url).call();
    let answer = answer.map_err(|error| format!("{url}: {error}"))?;
    let length = answer.body().content_length();
    let length = length.ok_or_else(|| format!("{url}: the server sent no Content-Length"))?;
    Ok((answer.into_body().into_reader(), length))
}

/// Counts and digests what is read.
struct CountingReader<'a, R> {
    body: &'a mut R,
    progress: &'a Progress,
    guard: &'a Guard,
    digest: Sha256,
    error: Option<std::io::Error>,
}

impl<R: Read> Read for CountingReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Err(error) = self.guard.check() {
            self.error = Some(std::io::Error::other(error.to_string()));
            return Err(std::io::ErrorKind::Other.into());
        }
        match self.body.read(buffer) {
            Ok(count) => {
                self.digest.update(&buffer[..count]);
                let count_64 = u64::try_from(count).unwrap_or_default();
                self.progress.done.fetch_add(count_64, Ordering::Relaxed);
                Ok(count)
            }
            Err(error) => {
                let kind = error.kind();
                self.error = Some(error);
                Err(kind.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::access::fake::{FakeLibvirt, FakePool, FakeVolume, HostState, When};
    use crate::access::{Connector as _, Target};

    const POOL: &str = "vms";
    const CONTENT: &[u8] = b"QFI\xfb and what a guest boots from";

    /// Answers one request with a head and a body that may end early.
    fn server(head: &'static str, body: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/image.qcow2", listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                request.push(byte[0]);
            }
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(body).unwrap();
        });
        url
    }

    fn request(number: i64, url: String, checksum: Option<&str>) -> FetchRequest {
        FetchRequest {
            pool: POOL.into(),
            base: "image".into(),
            number,
            url,
            checksum: checksum.map(Into::into),
        }
    }

    fn fetched(host: &FakeLibvirt, request: &FetchRequest) -> Result<(), String> {
        let target = Target {
            uri: String::new(),
            credentials: None,
        };
        let mut connection = host.open(&target).unwrap();
        fetch(
            &mut *connection,
            request,
            &Progress::default(),
            &crate::environment::guard(),
        )
    }

    fn volumes(host: &FakeLibvirt) -> Vec<String> {
        host.state().pools[POOL].volumes.keys().cloned().collect()
    }

    const FIRST: &str = "image.attempt-00000001";
    const FIRST_MARKER: &str = "image.attempt-00000001.complete";
    const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 32\r\nConnection: close\r\n\r\n";

    #[test]
    fn an_image_is_complete_once_its_marker_is_there() {
        let host = FakeLibvirt::new();
        let checksum = format!("sha256:{}", hex(Sha256::digest(CONTENT).as_slice()));
        let request = request(1, server(WHOLE, CONTENT), Some(&checksum));
        assert_eq!(CONTENT.len(), 32);
        fetched(&host, &request).unwrap();
        assert_eq!(volumes(&host), [FIRST, FIRST_MARKER]);
        assert_eq!(host.state().pools[POOL].volumes[FIRST].content, CONTENT);
    }

    #[test]
    fn an_interrupted_fetch_has_no_marker_and_the_next_attempt_has_another_name() {
        let host = FakeLibvirt::new();
        let broken = request(1, server(WHOLE, &CONTENT[..20]), None);
        let why = fetched(&host, &broken).unwrap_err();
        assert!(why.contains("was interrupted"), "{why}");
        assert_eq!(volumes(&host), [FIRST], "its size looks complete");
        fetched(&host, &request(2, server(WHOLE, CONTENT), None)).unwrap();
        let second = "image.attempt-00000002";
        let marker = marker(second);
        assert_eq!(
            volumes(&host),
            [second, &marker],
            "the first one is removed"
        );
        assert_eq!(host.state().pools[POOL].volumes[second].content, CONTENT);
        // The connection ended in the middle.
        let other = FakeLibvirt::new();
        other.fail(
            "upload",
            When::During,
            AccessError::Disconnected("gone".into()),
        );
        fetched(&other, &request(1, server(WHOLE, CONTENT), None)).unwrap_err();
        assert_eq!(volumes(&other), [FIRST]);
    }

    /// A volume of the pool, and an overlay of it in another pool that libvirt knows.
    fn image_with_overlay(host: &FakeLibvirt, name: &str) {
        let mut state = host.state();
        let base = FakeVolume {
            content: CONTENT.to_vec(),
            ..FakeVolume::default()
        };
        let overlay = FakeVolume {
            backing: Some(HostState::path(POOL, name)),
            ..FakeVolume::default()
        };
        let mut other = FakePool::of(1 << 30);
        other.volumes.insert("disk.qcow2".into(), overlay);
        state.pools.insert("other".into(), other);
        let pool = state.pools.get_mut(POOL).unwrap();
        pool.volumes.insert(name.into(), base);
    }

    #[test]
    fn an_image_without_a_marker_is_kept_for_its_overlays_and_fetched_under_another_name() {
        for name in ["image", FIRST] {
            let host = FakeLibvirt::new();
            image_with_overlay(&host, name);
            fetched(&host, &request(2, server(WHOLE, CONTENT), None)).unwrap();
            let all = volumes(&host);
            assert!(all.iter().any(|it| it == name), "{all:?}");
            assert!(all.contains(&marker("image.attempt-00000002")), "{all:?}");
        }
    }

    #[test]
    fn a_fetch_whose_replica_lost_the_lease_ends_before_its_next_change() {
        use std::sync::atomic::AtomicUsize;

        let whole = FakeLibvirt::new();
        fetched(&whole, &request(1, server(WHOLE, CONTENT), None)).unwrap();
        // Number of checks of the guard before the Lease is lost.
        for checks in 0..3 {
            let host = FakeLibvirt::new();
            let target = Target {
                uri: String::new(),
                credentials: None,
            };
            let mut connection = host.open(&target).unwrap();
            let left = AtomicUsize::new(checks);
            let may_act = move || {
                let took = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                });
                took.map(drop)
                    .map_err(|_| AccessError::Cancelled("the Lease is lost".into()))
            };
            let guard = Guard::new(may_act, || None);
            let request = request(1, server(WHOLE, CONTENT), None);
            let why = fetch(&mut *connection, &request, &Progress::default(), &guard).unwrap_err();
            assert!(why.contains("the Lease is lost"), "{checks}: {why}");
            let calls = host.calls();
            assert!(whole.calls().starts_with(&calls), "{checks}: {calls:?}");
            assert!(
                !volumes(&host).contains(&FIRST_MARKER.to_owned()),
                "{checks}"
            );
        }
    }

    #[test]
    fn an_image_of_another_checksum_is_removed() {
        let host = FakeLibvirt::new();
        let wrong = format!("sha256:{}", "0".repeat(64));
        let why = fetched(&host, &request(1, server(WHOLE, CONTENT), Some(&wrong))).unwrap_err();
        assert!(why.contains("correct image.checksum"), "{why}");
        assert_eq!(volumes(&host), [""; 0]);
    }

    #[test]
    fn the_message_of_a_failed_fetch_names_the_address() {
        let host = FakeLibvirt::new();
        let url = server("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"");
        let why = fetched(&host, &request(1, url.clone(), None)).unwrap_err();
        assert!(why.starts_with(&url) && why.contains("404"), "{why}");
        let url = server("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", CONTENT);
        let why = fetched(&host, &request(1, url, None)).unwrap_err();
        assert!(why.contains("sent no Content-Length"), "{why}");
        assert_eq!(host.calls(), [""; 0]);
    }
}
