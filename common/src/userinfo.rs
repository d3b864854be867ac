//! User and password of URIs. Messages go to logs, audit logs and events, so they show no password.

use std::borrow::Cow;
use std::ops::Range;

/// Algorithms of the digest behind the '@' in the reference of a container image (opencontainers/go-digest).
const DIGESTS: [&str; 3] = ["sha256:", "sha384:", "sha512:"];

/// Range of the user and the password, without the '@' behind them. The text need not be a valid URI, nor have a
/// scheme. A password with an unescaped '@' or '/' ends at the last '@' of the path, one with an unescaped '?' or '#' at
/// the last '@' of the text.
pub(crate) fn userinfo(text: &str) -> Option<Range<usize>> {
    let start = text.find("://").map_or(0, |end| end + "://".len());
    let rest = &text[start..];
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let end = match authority.rfind('@') {
        Some(end) if !authority[..end].contains(':') => end,
        Some(_) => rest[..rest.find(['?', '#']).unwrap_or(rest.len())].rfind('@')?,
        None if is_password(authority) => rest.rfind('@')?,
        None => return None,
    };
    let is_digest = DIGESTS.iter().any(|name| rest[end + 1..].starts_with(name));
    (!is_digest).then_some(start..start + end)
}

/// Whether a colon before the first slash is not that of a port.
fn is_password(authority: &str) -> bool {
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    !authority.starts_with('[') && port.is_some_and(|port| !is_number(port))
}

/// Whether a text is a URI with a password.
pub(crate) fn has_password(text: &str) -> bool {
    userinfo(text).is_some_and(|range| text[range].contains(':'))
}

/// The text with `***` in place of the password.
pub(crate) fn without_password(text: &str) -> Cow<'_, str> {
    let Some(range) = userinfo(text) else {
        return text.into();
    };
    match text[range.clone()].find(':') {
        Some(colon) => {
            let user = &text[..range.start + colon];
            format!("{user}:***{}", &text[range.end..]).into()
        }
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_password_is_replaced_and_the_rest_is_kept() {
        for (text, shown) in [
            ("https://user:word@host/x", "https://user:***@host/x"),
            ("https://user:w@rd@host/x", "https://user:***@host/x"),
            ("https://user:wo/rd@host/x", "https://user:***@host/x"),
            ("https://user:w@/rd@host/x", "https://user:***@host/x"),
            ("https://user:wo?rd@host/x", "https://user:***@host/x"),
            (
                "https://user:word@host/x?a@b",
                "https://user:***@host/x?a@b",
            ),
            ("https://user:wo#rd@host/x", "https://user:***@host/x"),
            ("https://:word@host/x", "https://:***@host/x"),
            ("user:word@host/x", "user:***@host/x"),
            (
                "qemu+ssh://root:word@hv1/system",
                "qemu+ssh://root:***@hv1/system",
            ),
            (
                "docker://user:word@registry/debian",
                "docker://user:***@registry/debian",
            ),
        ] {
            assert_eq!(without_password(text), shown);
            assert!(has_password(text), "{text}");
        }
        for text in [
            "",
            "@",
            "host",
            "https://user@host/x",
            "https://host:8443/a@b",
            "https://host/x?mail=a:b@c",
            "https://[fd00::1]/a@b",
            "qemu+ssh://root@[fd00::1]:22/system",
            "docker://debian:12@sha256:abc",
            "docker://debian@sha256:abc",
            "registry:5000/debian:12@sha256:abc",
            "52:54:00:12:34:56",
        ] {
            assert_eq!(without_password(text), text);
            assert!(!has_password(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_text_without_its_password_has_nothing_left_to_replace(text in "\\PC{0,20}(://)?[a:@/?#é]{0,12}") {
            let shown = without_password(&text);
            prop_assert_eq!(without_password(&shown), &*shown);
        }
    }
}
