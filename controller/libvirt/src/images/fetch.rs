//! Fetches an image into the image pool of a host.

use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::quantity::Bytes;
use common::render::libvirt::{VolumeFormat, VolumeWish, volume_xml};
use sha2::{Digest as _, Sha256};
use ureq::tls::{RootCerts, TlsConfig};

use super::fetches::Progress;
use super::names::{hex, marker, marker_xml};
use crate::access::{AccessError, Connection};

/// Limit until a server sends its response headers. The content has no limit of its own.
const RESPONSE_LIMIT: Duration = Duration::from_secs(30);

/// What to fetch, and where to.
#[derive(Clone, Debug)]
pub(crate) struct FetchRequest {
    pub(crate) pool: String,
    pub(crate) volume: String,
    pub(crate) url: String,
    pub(crate) checksum: Option<String>,
}

/// Fetches an image. Blocks until it is there. `may_write` is asked before it is called complete: another
/// replica may have begun anew meanwhile.
pub(crate) fn fetch(
    host: &mut dyn Connection,
    request: &FetchRequest,
    progress: &Progress,
    may_write: impl Fn() -> bool,
) -> Result<(), String> {
    let refused = |error: AccessError| error.to_string();
    let (mut body, length) = open(&request.url)?;
    progress.all.store(length, Ordering::Relaxed);
    let (pool, volume) = (request.pool.as_str(), request.volume.as_str());
    host.delete_volume(pool, &marker(volume)).map_err(refused)?;
    host.delete_volume(pool, volume).map_err(refused)?;
    let xml = volume_xml(&VolumeWish {
        name: volume,
        format: VolumeFormat::Raw,
        capacity: Bytes::new(u128::from(length)),
        backing: None,
    });
    host.create_volume(pool, &xml).map_err(refused)?;
    let mut source = CountingReader {
        body: &mut body,
        progress,
        digest: Sha256::new(),
        error: None,
    };
    let uploaded = host.upload(pool, volume, &mut source, length);
    let (digest, error) = (source.digest, source.error);
    if let Some(error) = error {
        return Err(format!("{} broke off: {error}", request.url));
    }
    uploaded.map_err(refused)?;
    let digest = hex(digest.finalize().as_slice());
    if let Some(expected) = request
        .checksum
        .as_deref()
        .and_then(|text| text.strip_prefix("sha256:"))
        && !expected.eq_ignore_ascii_case(&digest)
    {
        host.delete_volume(pool, volume).map_err(refused)?;
        return Err(format!(
            "its checksum is sha256:{digest} and not sha256:{expected}: correct image.checksum, or image.url if that is another file"
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
        .timeout_recv_response(Some(RESPONSE_LIMIT))
        .timeout_connect(Some(RESPONSE_LIMIT))
        .build();
    let answer = ureq::Agent::new_with_config(config).get(url).call();
    let answer = answer.map_err(|error| format!("{url}: {error}"))?;
    let length = answer.body().content_length();
    let length = length.ok_or_else(|| format!("{url}: the server does not tell how long it is"))?;
    Ok((answer.into_body().into_reader(), length))
}

/// Counts and digests what passes.
struct CountingReader<'a, R> {
    body: &'a mut R,
    progress: &'a Progress,
    digest: Sha256,
    error: Option<std::io::Error>,
}

impl<R: Read> Read for CountingReader<'_, R> {
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

    fn request(url: String, checksum: Option<&str>) -> FetchRequest {
        FetchRequest {
            pool: POOL.into(),
            volume: "image".into(),
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
        fetch(&mut *connection, request, &Progress::default(), || true)
    }

    fn volumes(host: &FakeLibvirt) -> Vec<String> {
        host.state().pools[POOL].volumes.keys().cloned().collect()
    }

    const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 32\r\nConnection: close\r\n\r\n";

    #[test]
    fn an_image_is_complete_when_all_of_it_is_there() {
        let host = FakeLibvirt::new();
        let checksum = format!("sha256:{}", hex(Sha256::digest(CONTENT).as_slice()));
        let request = request(server(WHOLE, CONTENT), Some(&checksum));
        assert_eq!(CONTENT.len(), 32);
        fetched(&host, &request).unwrap();
        assert_eq!(volumes(&host), ["image", "image.complete"]);
        assert_eq!(host.state().pools[POOL].volumes["image"].content, CONTENT);
    }

    #[test]
    fn one_that_breaks_off_has_no_marker_and_is_fetched_again() {
        let host = FakeLibvirt::new();
        let broken = request(server(WHOLE, &CONTENT[..20]), None);
        let why = fetched(&host, &broken).unwrap_err();
        assert!(why.contains("broke off"), "{why}");
        assert_eq!(volumes(&host), ["image"], "it looks complete");
        fetched(&host, &request(server(WHOLE, CONTENT), None)).unwrap();
        assert_eq!(volumes(&host), ["image", "image.complete"]);
        assert_eq!(host.state().pools[POOL].volumes["image"].content, CONTENT);
        // The host ended in the middle.
        let other = FakeLibvirt::new();
        other.fail(
            "upload",
            When::During,
            AccessError::Disconnected("gone".into()),
        );
        fetched(&other, &request(server(WHOLE, CONTENT), None)).unwrap_err();
        assert_eq!(volumes(&other), ["image"]);
    }

    #[test]
    fn one_of_another_checksum_is_not_kept() {
        let host = FakeLibvirt::new();
        let wrong = format!("sha256:{}", "0".repeat(64));
        let why = fetched(&host, &request(server(WHOLE, CONTENT), Some(&wrong))).unwrap_err();
        assert!(why.contains("correct image.checksum"), "{why}");
        assert_eq!(volumes(&host), [""; 0]);
    }

    #[test]
    fn a_server_that_has_none_is_told_with_its_address() {
        let host = FakeLibvirt::new();
        let url = server("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"");
        let why = fetched(&host, &request(url.clone(), None)).unwrap_err();
        assert!(why.starts_with(&url) && why.contains("404"), "{why}");
        let url = server("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", CONTENT);
        let why = fetched(&host, &request(url, None)).unwrap_err();
        assert!(why.contains("does not tell how long it is"), "{why}");
        assert_eq!(host.calls(), [""; 0]);
    }
}
