//! Addresses of images, parsed as the programs that fetch them parse them.
//!
//! ```text
//! https://user:word@[2001:db8::1]:8443/a.qcow2?b=c   as Go's net/url, and so CDI
//!         └user     └host         └port└path   └query
//! docker://registry.example.com:5000/os/debian:12    as distribution/reference, and so CDI
//!          └host                └port└path   └tag, or '@' and a digest
//! ```
//! Crates for URLs follow RFC 3986 or browsers: they reject some addresses that Go accepts, and accept
//! some that Go rejects.

use std::net::Ipv6Addr;

use crate::bounds::TEXT_MAX;
use crate::userinfo::userinfo;

/// Longest path of a container image (distribution/reference).
const PATH_MAX: usize = 255;
/// Longest tag of a container image (distribution/reference).
const TAG_MAX: usize = 128;
/// Digests of container images, and how many digits they have (opencontainers/go-digest).
const DIGESTS: [(&str, usize); 3] = [("sha256", 64), ("sha384", 96), ("sha512", 128)];

/// Why an image cannot be fetched from an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ImageUrlError {
    /// Not one of the schemes.
    #[error("must begin with https://, http:// or docker://")]
    Scheme,
    /// Nothing behind the scheme, or a port or user without a host.
    #[error("names no host behind the '://'")]
    NoHost,
    /// With blanks or control characters.
    #[error("has a blank; write it as '%20', or remove it")]
    Blank,
    /// Too long.
    #[error("has more than {TEXT_MAX} characters")]
    TooLong,
    /// A user or a password that Go does not accept.
    #[error(
        "has an invalid user or password; write special characters in it as '%' and two digits"
    )]
    User,
    /// A host that Go does not accept.
    #[error("has an invalid host; give a name or an address (IPv6 in brackets)")]
    Host,
    /// A port that is not from 1 to 65535.
    #[error("has a port that is not from 1 to 65535")]
    Port,
    /// A percent sign that escapes nothing.
    #[error("has a '%' that is not followed by two hexadecimal digits; write '%25' for the sign")]
    Escape,
    /// A path of a container image in capital letters.
    #[error(
        "names a container image with upper-case letters, which no registry takes; write it in lower case"
    )]
    UpperCase,
    /// A path that no container image has.
    #[error("names no container image; write it as docker://registry.example.com/name:tag")]
    Container,
    /// A tag that no container image has.
    #[error(
        "has an invalid tag; use letters, digits, '_', '.' and '-', at most {TAG_MAX}, and none of '.' and '-' first"
    )]
    Tag,
    /// A digest that no container image has.
    #[error(
        "has an invalid digest; write 'sha256:' and 64 lower-case hexadecimal digits after the '@'"
    )]
    Digest,
    /// A user before a container image.
    #[error("has a user before the '@', and the address of a container image has none; remove it")]
    ContainerUser,
    /// Both a tag and a digest; CDI accepts one of them.
    #[error("has both a tag and a digest, which CDI does not support; keep one of them")]
    TagAndDigest,
}

/// Checks the form of an address; nothing is fetched.
pub(crate) fn check(url: &str) -> Result<(), ImageUrlError> {
    let is_blank = |c: char| c.is_whitespace() || c.is_control();
    if url.chars().count() > TEXT_MAX {
        return Err(ImageUrlError::TooLong);
    }
    if url.chars().any(is_blank) {
        return Err(ImageUrlError::Blank);
    }
    let user = userinfo(url).map(|range| &url[range]);
    match url.split_once("://") {
        Some(("https" | "http", _)) if user.is_some_and(|user| user.contains(['/', '?', '#'])) => {
            Err(ImageUrlError::User)
        }
        Some(("https" | "http", address)) => web(address),
        Some(("docker", reference)) if user.is_some() && reference.contains('/') => {
            Err(ImageUrlError::ContainerUser)
        }
        Some(("docker", reference)) => container(reference),
        _ => Err(ImageUrlError::Scheme),
    }
}

/// What comes after `https://` or `http://`.
fn web(address: &str) -> Result<(), ImageUrlError> {
    // Neither Go nor CDI parses the query; the server does.
    let address = address.split_once('?').map_or(address, |(it, _)| it);
    let (authority, path) = address.split_at(address.find('/').unwrap_or(address.len()));
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    web_host(host)?;
    if let Some(user) = user {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
        if !user.chars().all(fits) {
            return Err(ImageUrlError::User);
        }
    }
    if [user.unwrap_or_default(), path]
        .into_iter()
        .flat_map(escapes)
        .any(|byte| byte.is_none())
    {
        return Err(ImageUrlError::Escape);
    }
    Ok(())
}

/// A host and its port. Unlike a container's, the port may be left out behind its colon.
fn web_host(text: &str) -> Result<(), ImageUrlError> {
    let (host, port, fits) = if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.rsplit_once(']').ok_or(ImageUrlError::Host)?;
        (address, port, is_ipv6(address))
    } else {
        let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        // RFC 3986, section 3.2.2: only bytes beyond ASCII are escaped; Go takes '%25' as well.
        let may_be_escaped = |byte| !u8::is_ascii(&byte) || byte == b'%';
        (
            host,
            port,
            is_in_host(host, may_be_escaped) && !host.contains('['),
        )
    };
    let is_port = match port.strip_prefix(':') {
        Some(digits) => digits.is_empty() || is_port(digits),
        None => port.is_empty(),
    };
    if host.is_empty() {
        Err(ImageUrlError::NoHost)
    } else if !fits {
        Err(ImageUrlError::Host)
    } else if !is_port {
        Err(ImageUrlError::Port)
    } else {
        Ok(())
    }
}

/// An address of IPv6, and after `%25` its zone (RFC 6874).
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = match text.split_once("%25") {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    // Windows has blanks in zones.
    let may_be_escaped = |byte: u8| is_host_char(byte.into()) || b"% ".contains(&byte);
    address.parse::<Ipv6Addr>().is_ok()
        && zone.is_none_or(|zone| {
            !zone.is_empty() && !zone.contains('[') && is_in_host(zone, may_be_escaped)
        })
}

/// Whether a text is valid in a host, with the characters that may be escaped there.
fn is_in_host(text: &str, may_be_escaped: impl Fn(u8) -> bool) -> bool {
    let is_plain = |c: char| c == '%' || !c.is_ascii() || is_host_char(c);
    text.chars().all(is_plain) && escapes(text).all(|byte| byte.is_some_and(&may_be_escaped))
}

/// What Go takes in a host without an escape, as far as it is ASCII.
fn is_host_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"".contains(c)
}

/// The percent-encoded bytes of a text; `None` for an escape that is incomplete.
fn escapes(text: &str) -> impl Iterator<Item = Option<u8>> {
    text.split('%').skip(1).map(|rest| {
        let digits = rest.get(..2)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)
    })
}

fn is_port(digits: &str) -> bool {
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number && digits.parse::<u16>().is_ok_and(|port| port > 0)
}

/// What comes after `docker://`. Without a registry it is the name of an image of Docker's own.
fn container(reference: &str) -> Result<(), ImageUrlError> {
    if reference.is_empty() {
        return Err(ImageUrlError::NoHost);
    }
    let (tagged, digest) = match reference.split_once('@') {
        Some((tagged, digest)) => (tagged, Some(digest)),
        None => (reference, None),
    };
    // A colon before the last slash is that of a port.
    let last = tagged.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match tagged[last..].find(':') {
        Some(colon) => (&tagged[..last + colon], Some(&tagged[last + colon + 1..])),
        None => (tagged, None),
    };
    container_name(name)?;
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err(ImageUrlError::Tag);
    }
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err(ImageUrlError::Digest);
    }
    // Go takes bare digits for what used to be the id of an image.
    let is_id = digest.is_none() && tag.is_none() && is_hex(name, 64);
    match (tag, digest) {
        (Some(_), Some(_)) => Err(ImageUrlError::TagAndDigest),
        _ if is_id => Err(ImageUrlError::Container),
        _ => Ok(()),
    }
}

/// A path, and a registry before it if there is one.
fn container_name(name: &str) -> Result<(), ImageUrlError> {
    let path = match name.split_once('/') {
        Some((first, path)) if is_registry(first) => path,
        _ => name,
    };
    if path.len() <= PATH_MAX && path.split('/').all(is_component) {
        Ok(())
    } else if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Err(ImageUrlError::UpperCase)
    } else {
        Err(ImageUrlError::Container)
    }
}

fn is_registry(text: &str) -> bool {
    let host = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            if !is_port(port) {
                return false;
            }
            host
        }
        _ => text,
    };
    let bracketed = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    if let Some(address) = bracketed {
        let fits = |b: u8| b.is_ascii_hexdigit() || b == b':';
        return !address.is_empty() && address.bytes().all(fits);
    }
    host.split('.').all(|part| {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        let outer = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = part.as_bytes();
        part.bytes().all(fits) && outer(bytes.first()) && outer(bytes.last())
    })
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_component(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let words = text.split(|c: char| c.is_ascii() && is_word(c as u8));
    let mut between = words.filter(|separator| !separator.is_empty());
    let outer = |b: Option<&u8>| b.is_some_and(|b| is_word(*b));
    outer(text.as_bytes().first())
        && outer(text.as_bytes().last())
        && between.all(|separator| {
            [".", "_", "__"].contains(&separator) || separator.bytes().all(|b| b == b'-')
        })
}

/// `[\w][\w.-]{0,127}`
fn is_tag(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    (1..=TAG_MAX).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with(['.', '-'])
}

fn is_digest(text: &str) -> bool {
    let known = |(name, digits): (&str, usize)| {
        let rest = text.strip_prefix(name).and_then(|it| it.strip_prefix(':'));
        rest.is_some_and(|rest| is_hex(rest, digits))
    };
    DIGESTS.into_iter().any(known)
}

fn is_hex(text: &str, digits: usize) -> bool {
    let fits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == digits && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_that_go_accepts_are_accepted() {
        let longest = format!("docker://registry/debian:{}", "x".repeat(TAG_MAX));
        let sha512 = format!("docker://debian@sha512:{}", "a".repeat(128));
        for url in [
            "https://host",
            "https://host?a=b",
            "https://host/?a=%zz#|",
            "https://host:8443/%7Ea",
            "https://host:/x",
            "https://us%65r:w@rd@host/x",
            "https://[2001:db8::1]/x",
            "https://[::ffff:192.0.2.1]:80/x",
            "https://[fe80::1%25eth0]:80/x",
            "https://[fe80::1%25Local%20Area]/x",
            "https://bücher.example/ü^|",
            "https://b%c3%bccher.example/x",
            "https://under_score/x",
            "docker://debian",
            "docker://debian:12-Slim_1.0",
            "docker://localhost/debian",
            "docker://localhost:5000/debian:12",
            "docker://REGISTRY.example.com/a/b.c/d__e/f---g_h",
            "docker://Registry/debian",
            "docker://a_b.c/debian",
            "docker://192.0.2.1:5000/debian",
            "docker://[2001:db8::1]:5000/debian:12",
            "docker://[2001:db8::1]/debian",
            &longest,
            &sha512,
        ] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
    }

    #[test]
    fn addresses_that_go_rejects_are_rejected() {
        use ImageUrlError::{
            Blank, Container, ContainerUser, Digest, Escape, Host, NoHost, Port, Scheme, Tag,
            TagAndDigest, TooLong, UpperCase, User,
        };
        let long_tag = format!("docker://registry/debian:{}", "x".repeat(TAG_MAX + 1));
        let long_path = format!("docker://registry/{}", "x".repeat(PATH_MAX + 1));
        let both = format!("docker://registry/debian:12@sha256:{}", "a".repeat(64));
        let capital = format!("docker://registry/debian@sha256:{}", "A".repeat(64));
        let id = format!("docker://{}", "a".repeat(64));
        let long_url = format!("https://host/{}", "x".repeat(TEXT_MAX));
        let nameless = format!("docker://@sha256:{}", "a".repeat(64));
        for (url, error) in [
            ("", Scheme),
            ("host/x", Scheme),
            ("ftp://host/x", Scheme),
            ("https://", NoHost),
            ("https:///x", NoHost),
            ("https://:80/x", NoHost),
            ("https://user@/x", NoHost),
            ("https://host/a b", Blank),
            ("docker://", NoHost),
            (&long_url, TooLong),
            ("https://[::1/x.qcow2", Host),
            ("http://[zz]/x", Host),
            ("http://[192.0.2.1]/x", Host),
            ("http://[fe80::1%eth0]/x", Host),
            ("http://[fe80::1%25]/x", Host),
            ("http://[::1%25a%2fb]/x", Host),
            ("http://a[::1]/x", Host),
            ("https://ho^st/x", Host),
            ("https://host|x/y", Host),
            ("https://host%41/x", Host),
            ("https://host%zz/x", Host),
            ("https://host\\path/x", Host),
            ("https://host#x", Host),
            ("http://[::1]x/x", Port),
            ("https://host:+80/x", Port),
            ("https://host:0/x", Port),
            ("https://host:65536/x", Port),
            ("https://a:b:80/x", Port),
            ("https://u[s:er@host/x", User),
            ("https://user:wo/rd@host/x", User),
            ("https://user:wo?rd@host/x", User),
            ("https://u%s@host/x", Escape),
            ("https://host/%zz", Escape),
            ("https://host/%", Escape),
            ("https://host/%+1", Escape),
            ("docker://:12", Container),
            ("docker:///debian", Container),
            ("docker://registry//debian", Container),
            ("docker://registry/debian/", Container),
            ("docker://registry/-debian", Container),
            ("docker://registry/a..b", Container),
            ("docker://registry/a___b", Container),
            ("docker://registry/a._b", Container),
            ("docker://registry/debian?tag=1", Container),
            ("docker://registry/debián", Container),
            ("docker://registry:0/debian", Container),
            ("docker://registry:/debian", Container),
            ("docker://[]/debian", Container),
            ("docker://-registry.example.com/debian", Container),
            (&long_path, Container),
            (&id, Container),
            (&nameless, Container),
            ("docker://registry/Debian:12", UpperCase),
            ("docker://Debian", UpperCase),
            ("docker://registry/debian:", Tag),
            ("docker://registry/debian:12:13", Tag),
            ("docker://registry/debian:-x", Tag),
            ("docker://registry/debian:ü", Tag),
            (&long_tag, Tag),
            ("docker://debian@", Digest),
            ("docker://user@registry/debian", ContainerUser),
            ("docker://user:word@registry/debian", ContainerUser),
            ("docker://registry/debian@sha256:abc", Digest),
            (
                "docker://registry/debian@md5:d41d8cd98f00b204e9800998ecf8427e",
                Digest,
            ),
            (&capital, Digest),
            (&both, TagAndDigest),
        ] {
            assert_eq!(check(url), Err(error), "{url}");
        }
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(url in "(https|docker)://[%\\[\\]:@/.a0é-]{0,20}") {
            let _ = check(&url);
        }
    }
}
