//! Images: fetched once for each host into its image pool, and shared by every disk that stands on them.
//!
//! ```text
//! url ─ GET ─▶ this program ─ upload ─▶ volume ─ checksum right? ─▶ marker beside it
//! ```
//! A volume whose upload broke off has the right size and looks complete, so only the marker says that it is.
//! One without is deleted and fetched again. Images stay: deleting one that an overlay stands on would destroy
//! that disk, and libvirt asks nobody.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::api::machine::Image;
use common::quantity::Bytes;
use common::render::libvirt::{VolumeFormat, VolumeSpec, volume_xml};
use sha2::{Digest as _, Sha256};
use ureq::tls::{RootCerts, TlsConfig};

use super::access::{AccessError, Connection};

/// Digits of an image's digest in the name of its volume.
const DIGITS: usize = 24;
/// The end of a marker's name.
const MARKER: &str = ".complete";
/// Until a server has answered. The content may take as long as it takes.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The pause after a fetch that failed, and after each further one twice that: an image of another checksum is
/// gigabytes each time.
const PAUSE_MIN: Duration = Duration::from_secs(30);
/// Whoever mends a server waits no longer than this.
const PAUSE_MAX: Duration = Duration::from_mins(15);

/// How far an image is on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageState {
    Absent,
    Underway { progress: String },
    Failed(String),
    Complete { format: VolumeFormat },
}

/// Name of the volume of an image: its own, or one that its source decides.
pub(crate) fn image_volume(image: &Image) -> String {
    if let Some(volume) = &image.volume {
        return volume.clone();
    }
    let source = [image.url.as_deref(), image.checksum.as_deref()].map(Option::unwrap_or_default);
    let mut digits = hex(Sha256::digest(source.join("\n")).as_slice());
    digits.truncate(DIGITS);
    format!("vitistack-image-{digits}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Name of the marker that a volume is complete.
pub(crate) fn marker(volume: &str) -> String {
    format!("{volume}{MARKER}")
}

pub(crate) fn is_marker(volume: &str) -> bool {
    volume.ends_with(MARKER)
}

/// What a marker is made with: one byte, which the pool's smallest unit is enough for.
pub(crate) fn marker_xml(volume: &str) -> String {
    volume_xml(&VolumeSpec {
        name: &marker(volume),
        format: VolumeFormat::Raw,
        capacity: Bytes::new(1),
        backing: None,
    })
}

/// The images that are being fetched for one host, and those that could not be. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fetches(Arc<Mutex<HashMap<String, Fetch>>>);

#[derive(Clone, Debug)]
enum Fetch {
    /// What is told of an attempt after one that failed is still why that failed.
    Underway(Arc<Progress>, Option<Failure>),
    Failed(Failure),
}

#[derive(Clone, Debug)]
struct Failure {
    why: String,
    since: Instant,
    /// Until the next attempt.
    pause: Duration,
}

/// Bytes so far, and of how many.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    done: AtomicU64,
    all: AtomicU64,
}

impl Progress {
    /// In steps of five per cent: a status is not written more often.
    fn told(&self) -> String {
        let (done, all) = (
            self.done.load(Ordering::Relaxed),
            self.all.load(Ordering::Relaxed),
        );
        let percent = done
            .saturating_mul(100)
            .checked_div(all)
            .unwrap_or_default();
        format!("{}%", percent / 5 * 5)
    }
}

impl Fetches {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Fetch>> {
        // The map is whole after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far a fetch is; `None` when there is none.
    pub(crate) fn state(&self, volume: &str) -> Option<ImageState> {
        Some(match self.lock().get(volume)? {
            Fetch::Underway(progress, None) => ImageState::Underway {
                progress: progress.told(),
            },
            Fetch::Underway(_, Some(failure)) | Fetch::Failed(failure) => {
                ImageState::Failed(failure.why.clone())
            }
        })
    }

    /// Begins a fetch; `None` when one is under way, or the last one failed a short while ago.
    pub(crate) fn begin(&self, volume: &str) -> Option<Arc<Progress>> {
        let mut fetches = self.lock();
        let failure = match fetches.get(volume) {
            Some(Fetch::Underway(..)) => return None,
            Some(Fetch::Failed(failure)) if failure.since.elapsed() < failure.pause => return None,
            Some(Fetch::Failed(failure)) => Some(failure.clone()),
            None => None,
        };
        let progress = Arc::new(Progress::default());
        fetches.insert(
            volume.to_owned(),
            Fetch::Underway(progress.clone(), failure),
        );
        Some(progress)
    }

    pub(crate) fn end(&self, volume: &str, outcome: Result<(), String>) {
        let mut fetches = self.lock();
        let before = match fetches.remove(volume) {
            Some(Fetch::Underway(_, failure)) => failure,
            Some(Fetch::Failed(failure)) => Some(failure),
            None => None,
        };
        if let Err(why) = outcome {
            let pause = before.map_or(PAUSE_MIN, |before| (before.pause * 2).min(PAUSE_MAX));
            let since = Instant::now();
            let failure = Failure { why, since, pause };
            fetches.insert(volume.to_owned(), Fetch::Failed(failure));
        }
    }
}

/// What to fetch, and where to.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) pool: String,
    pub(crate) volume: String,
    pub(crate) url: String,
    pub(crate) checksum: Option<String>,
}

/// Fetches an image. Blocks until it is there. `may_write` is asked before it is called complete: another
/// replica may have begun anew meanwhile.
pub(crate) fn fetch(
    host: &mut dyn Connection,
    order: &Order,
    progress: &Progress,
    may_write: impl Fn() -> bool,
) -> Result<(), String> {
    let refused = |error: AccessError| error.to_string();
    let (mut body, length) = open(&order.url)?;
    progress.all.store(length, Ordering::Relaxed);
    let (pool, volume) = (order.pool.as_str(), order.volume.as_str());
    host.delete_volume(pool, &marker(volume)).map_err(refused)?;
    host.delete_volume(pool, volume).map_err(refused)?;
    let xml = volume_xml(&VolumeSpec {
        name: volume,
        format: VolumeFormat::Raw,
        capacity: Bytes::new(u128::from(length)),
        backing: None,
    });
    host.create_volume(pool, &xml).map_err(refused)?;
    let mut source = Counted {
        body: &mut body,
        progress,
        digest: Sha256::new(),
        error: None,
    };
    let uploaded = host.upload(pool, volume, &mut source, length);
    let (digest, error) = (source.digest, source.error);
    if let Some(error) = error {
        return Err(format!("{} broke off: {error}", order.url));
    }
    uploaded.map_err(refused)?;
    let digest = hex(digest.finalize().as_slice());
    if let Some(wished) = order
        .checksum
        .as_deref()
        .and_then(|text| text.strip_prefix("sha256:"))
        && !wished.eq_ignore_ascii_case(&digest)
    {
        host.delete_volume(pool, volume).map_err(refused)?;
        return Err(format!(
            "its checksum is sha256:{digest} and not sha256:{wished}: correct image.checksum, or image.url if that is another file"
        ));
    }
    if !may_write() {
        return Err("another replica of the controller acts now".into());
    }
    // libvirt reads the format and the size that a guest sees.
    host.refresh(pool).map_err(refused)?;
    host.create_volume(pool, &marker_xml(volume))
        .map_err(refused)?;
    Ok(())
}

fn open(url: &str) -> Result<(impl Read + use<>, u64), String> {
    // The certificates the machine trusts: companies serve images under a CA of their own.
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .build();
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .timeout_recv_response(Some(ANSWER_LIMIT))
        .timeout_connect(Some(ANSWER_LIMIT))
        .build();
    let answer = ureq::Agent::new_with_config(config).get(url).call();
    let answer = answer.map_err(|error| format!("{url}: {error}"))?;
    let length = answer.body().content_length();
    let length = length.ok_or_else(|| format!("{url}: the server does not tell how long it is"))?;
    Ok((answer.into_body().into_reader(), length))
}

/// Counts and digests what passes.
struct Counted<'a, R> {
    body: &'a mut R,
    progress: &'a Progress,
    digest: Sha256,
    error: Option<std::io::Error>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
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
    use crate::access::fake::{FakeLibvirt, When};
    use crate::access::{Connector as _, Target};

    const POOL: &str = "vms";
    const CONTENT: &[u8] = b"QFI\xfb and what a guest boots from";

    /// Answers one request: with a head, and a body that may break off.
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

    fn order(url: String, checksum: Option<&str>) -> Order {
        Order {
            pool: POOL.into(),
            volume: "image".into(),
            url,
            checksum: checksum.map(Into::into),
        }
    }

    fn fetched(host: &FakeLibvirt, order: &Order) -> Result<(), String> {
        let target = Target {
            uri: String::new(),
            credentials: None,
        };
        let mut connection = host.open(&target).unwrap();
        fetch(&mut *connection, order, &Progress::default(), || true)
    }

    fn volumes(host: &FakeLibvirt) -> Vec<String> {
        host.world().pools[POOL].volumes.keys().cloned().collect()
    }

    const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 32\r\nConnection: close\r\n\r\n";

    #[test]
    fn an_image_is_complete_when_all_of_it_is_there() {
        let host = FakeLibvirt::new();
        let checksum = format!("sha256:{}", hex(Sha256::digest(CONTENT).as_slice()));
        let order = order(server(WHOLE, CONTENT), Some(&checksum));
        assert_eq!(CONTENT.len(), 32);
        fetched(&host, &order).unwrap();
        assert_eq!(volumes(&host), ["image", "image.complete"]);
        assert_eq!(host.world().pools[POOL].volumes["image"].content, CONTENT);
    }

    #[test]
    fn one_that_breaks_off_has_no_marker_and_is_fetched_again() {
        let host = FakeLibvirt::new();
        let broken = order(server(WHOLE, &CONTENT[..20]), None);
        let why = fetched(&host, &broken).unwrap_err();
        assert!(why.contains("broke off"), "{why}");
        assert_eq!(volumes(&host), ["image"], "it looks complete");
        fetched(&host, &order(server(WHOLE, CONTENT), None)).unwrap();
        assert_eq!(volumes(&host), ["image", "image.complete"]);
        assert_eq!(host.world().pools[POOL].volumes["image"].content, CONTENT);
        // The host ended in the middle.
        let other = FakeLibvirt::new();
        other.fail(
            "upload",
            When::During,
            AccessError::Disconnected("gone".into()),
        );
        fetched(&other, &order(server(WHOLE, CONTENT), None)).unwrap_err();
        assert_eq!(volumes(&other), ["image"]);
    }

    #[test]
    fn one_of_another_checksum_is_not_kept() {
        let host = FakeLibvirt::new();
        let wrong = format!("sha256:{}", "0".repeat(64));
        let why = fetched(&host, &order(server(WHOLE, CONTENT), Some(&wrong))).unwrap_err();
        assert!(why.contains("correct image.checksum"), "{why}");
        assert_eq!(volumes(&host), [""; 0]);
    }

    #[test]
    fn a_server_that_has_none_is_told_with_its_address() {
        let host = FakeLibvirt::new();
        let url = server("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"");
        let why = fetched(&host, &order(url.clone(), None)).unwrap_err();
        assert!(why.starts_with(&url) && why.contains("404"), "{why}");
        let url = server("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", CONTENT);
        let why = fetched(&host, &order(url, None)).unwrap_err();
        assert!(why.contains("does not tell how long it is"), "{why}");
        assert_eq!(host.calls(), [""; 0]);
    }

    #[test]
    fn a_fetch_that_failed_is_tried_again_after_a_while_and_told_meanwhile() {
        let fetches = Fetches::default();
        let pause = |fetches: &Fetches| match &fetches.lock()["image"] {
            Fetch::Failed(failure) => failure.pause,
            Fetch::Underway(..) => Duration::ZERO,
        };
        assert!(fetches.begin("image").is_some());
        assert!(fetches.begin("image").is_none(), "one at a time");
        let failed = ImageState::Failed("no route".into());
        for expected in [PAUSE_MIN, PAUSE_MIN * 2, PAUSE_MIN * 4] {
            fetches.end("image", Err("no route".into()));
            assert_eq!(pause(&fetches), expected);
            assert_eq!(fetches.state("image"), Some(failed.clone()));
            assert!(fetches.begin("image").is_none(), "it waits");
            if let Some(Fetch::Failed(failure)) = fetches.lock().get_mut("image") {
                failure.since = Instant::now().checked_sub(expected).unwrap();
            }
            assert!(fetches.begin("image").is_some());
            assert_eq!(fetches.state("image"), Some(failed.clone()), "still why");
        }
        fetches.end("image", Ok(()));
        assert_eq!(fetches.state("image"), None);
    }

    #[test]
    fn another_source_is_another_volume() {
        let of = |url: &str, checksum: Option<&str>| {
            image_volume(&Image {
                url: Some(url.into()),
                checksum: checksum.map(Into::into),
                ..Image::default()
            })
        };
        let plain = of("https://a/b", None);
        assert!(plain.starts_with("vitistack-image-") && plain.len() == 16 + DIGITS);
        assert_ne!(plain, of("https://a/b", Some("sha256:1")));
        assert_ne!(plain, of("https://a/c", None));
        assert_eq!(plain, of("https://a/b", None));
    }
}
