//! Images: what strangers' files and servers say leads to an answer, and never to another file or server than was
//! checked.

use std::net::IpAddr;

use common::api::choice::VolumeFormat;
use common::image_source::{Reach, Scheme, SourceHost, SourceUrl, is_public, prefix, redacted};
use common::render::libvirt::image_header::{HEAD_BYTES, parse};

/// A file is a qcow2 with tables in it, raw, or refused; whatever is accepted as standing alone names no other file.
pub fn header(data: &[u8]) {
    let length = u64::try_from(data.len()).unwrap();
    let head = &data[..data.len().min(HEAD_BYTES)];
    let longer = length.saturating_mul(1 << 20);
    for length in [length, longer, u64::MAX] {
        let Ok(header) = parse(head, length) else {
            continue;
        };
        assert!(i64::try_from(header.virtual_size).is_ok());
        let is_qcow2 = data.starts_with(b"QFI\xfb");
        assert_eq!(header.format == VolumeFormat::Qcow2, is_qcow2);
        if is_qcow2 {
            // Offset of the name of a backing file, encryption, external data file.
            let has_backing = data[8..16] != [0; 8];
            assert_eq!(header.backing.is_some(), has_backing);
            assert_eq!(data[32..36], [0; 4]);
            assert!(data[4..8] == [0, 0, 0, 2] || data[79] & 0b100 == 0);
        } else {
            assert_eq!(header.virtual_size, length);
        }
        if let Err(error) = header.standalone() {
            assert!(!error.to_string().chars().any(char::is_control));
        }
    }
}

/// The first line is a URL, the second a redirect of it, the others are sources of a host.
pub fn source(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let (url, location) = (
        lines.next().unwrap_or_default(),
        lines.next().unwrap_or_default(),
    );
    let sources: Vec<String> = lines.map(str::to_owned).collect();
    let shown = redacted(url);
    let is_container = url.starts_with("docker://");
    assert!(is_container || !shown.contains(['?', '#']), "{shown}");
    let Ok(parsed) = url.parse::<SourceUrl>() else {
        return;
    };
    assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()), "{url}");
    if parsed.check(None) == Ok(Reach::Public)
        && let SourceHost::Address(address) = parsed.host()
    {
        assert!(is_public(*address), "{url}");
        assert_ne!(
            address.to_canonical(),
            IpAddr::from([127, 0, 0, 1]),
            "{url}"
        );
    }
    if parsed.check(Some(&sources)).is_ok() {
        let listed = sources.iter().filter_map(|source| prefix(source).ok());
        let mut same = listed.filter(|source| source.host() == parsed.host());
        let is_listed =
            same.any(|source| (source.scheme(), source.port()) == (parsed.scheme(), parsed.port()));
        assert!(is_listed, "{url} is within {sources:?}");
    }
    if let Ok(target) = parsed.redirect(location) {
        let target: SourceUrl = target.parse().unwrap();
        let is_downgrade = parsed.scheme() == Scheme::Https && target.scheme() == Scheme::Http;
        assert!(!is_downgrade, "{url} to {location}");
    }
}
