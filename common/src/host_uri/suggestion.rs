//! The URI that the author of an invalid one most likely means.

use std::net::Ipv6Addr;

use super::{HostUri, is_file, is_host, is_user};
use crate::userinfo::userinfo;

/// The parts of a URI, as far as they can be distinguished.
struct Parts<'t> {
    /// `qemu` or `test`.
    driver: &'static str,
    /// In lower case; may be empty.
    transport: String,
    user: Option<&'t str>,
    /// Without brackets and port.
    host: &'t str,
    port: Option<&'t str>,
    path: &'t str,
}

impl HostUri {
    /// A valid URI of the same host; `None` if the text names none.
    pub(crate) fn suggestion(text: &str) -> Option<String> {
        let parts = Parts::of(text);
        let (driver, path) = (parts.driver, parts.path);
        if parts.host.is_empty() && ["", "unix"].contains(&&*parts.transport) {
            return Some(match driver {
                "test" if is_file(path) => format!("test://{path}"),
                "test" => "test:///default".to_owned(),
                _ if path == "/session" => "qemu:///session".to_owned(),
                _ => "qemu:///system".to_owned(),
            });
        }
        let transport = match &*parts.transport {
            "" if parts.user.is_some() => "ssh",
            ssh if ssh.contains("ssh") => "ssh",
            _ => "tls",
        };
        let (transport, path) = match driver {
            "test" => ("tls", "/default"),
            _ => (transport, "/system"),
        };
        let user = parts
            .user
            .filter(|user| transport == "ssh" && is_user(user));
        let user = user.map_or_else(String::new, |user| format!("{user}@"));
        let host = if parts.host.parse::<Ipv6Addr>().is_ok() {
            format!("[{}]", parts.host)
        } else if is_host(parts.host) {
            parts.host.to_owned()
        } else {
            return None;
        };
        // Another transport has another port.
        let port = parts.port.filter(|_| parts.transport == transport);
        let port = port.map_or_else(String::new, |port| format!(":{port}"));
        let with = |port: &str| format!("{driver}+{transport}://{user}{host}{port}{path}");
        let candidates = [with(&port), with("")];
        candidates
            .into_iter()
            .find(|uri| uri.parse::<Self>().is_ok())
    }
}

impl<'t> Parts<'t> {
    fn of(text: &'t str) -> Self {
        let (scheme, rest, user) = match (text.split_once("://"), userinfo(text)) {
            (Some((scheme, _)), Some(user)) => (scheme, &text[user.end + 1..], Some(&text[user])),
            (Some((scheme, rest)), None) => (scheme, rest, None),
            (None, Some(user)) => ("", &text[user.end + 1..], Some(&text[user])),
            (None, None) => match text.split_once(":/") {
                Some((scheme, _)) => (scheme, &text[scheme.len() + 1..], None),
                None => ("", text, None),
            },
        };
        let scheme = scheme.to_lowercase();
        let (driver, transport) = scheme.split_once('+').unwrap_or((&scheme, ""));
        let rest = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
        let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match address.strip_prefix('[').and_then(|it| it.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None if address.parse::<Ipv6Addr>().is_ok() => (address, None),
            None => match address.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            },
        };
        Self {
            driver: if driver == "test" { "test" } else { "qemu" },
            transport: transport.to_owned(),
            user: user.map(|user| user.split(':').next().unwrap_or(user)),
            host,
            port,
            path,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_suggestion_keeps_the_host_and_whatever_else_is_valid() {
        for (text, suggestion) in [
            (
                "qemu+ssh://root@hv1/system?command=/bin/sh",
                "qemu+ssh://root@hv1/system",
            ),
            (
                "qemu+ssh://root@hv1:2222/session",
                "qemu+ssh://root@hv1:2222/system",
            ),
            ("qemu+tcp://hv1:16509/system", "qemu+tls://hv1/system"),
            ("qemu+tls://hv1:16515", "qemu+tls://hv1:16515/system"),
            ("qemu+tls://hv1:0/system", "qemu+tls://hv1/system"),
            ("qemu+tls://root@hv1/system", "qemu+tls://hv1/system"),
            (
                "qemu+ssh://root:word@hv1/system",
                "qemu+ssh://root@hv1/system",
            ),
            (
                "qemu+ssh://root:wo/rd@hv1/system",
                "qemu+ssh://root@hv1/system",
            ),
            ("qemu+ssh://-l@hv1/system", "qemu+ssh://hv1/system"),
            (
                "qemu+libssh2://root@hv1/system",
                "qemu+ssh://root@hv1/system",
            ),
            ("qemu://hv1/system", "qemu+tls://hv1/system"),
            ("QEMU+TLS://hv1/system", "qemu+tls://hv1/system"),
            ("qemu+tls://fd00::1/system", "qemu+tls://[fd00::1]/system"),
            ("xen+ssh://root@hv1/", "qemu+ssh://root@hv1/system"),
            ("root@hv1", "qemu+ssh://root@hv1/system"),
            ("hv1.example.com", "qemu+tls://hv1.example.com/system"),
            ("hv1:16514/system", "qemu+tls://hv1/system"),
            ("qemu:/system", "qemu:///system"),
            ("qemu:///", "qemu:///system"),
            ("qemu+unix:///session", "qemu:///session"),
            ("test:///", "test:///default"),
            ("test+ssh://hv1/default", "test+tls://hv1/default"),
        ] {
            assert_eq!(
                HostUri::suggestion(text).as_deref(),
                Some(suggestion),
                "{text}"
            );
        }
        for text in [
            "qemu+tls:///system",
            "qemu+tls://hv 1/system",
            "qemu+ssh://root@/system",
        ] {
            assert_eq!(HostUri::suggestion(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_suggestion_is_a_valid_uri_without_a_password(text in "(qemu|test|xen)?(\\+[a-z]{0,4})?(://|:/|:)?([a-z:]{0,6}@)?[a-z0-9.:\\[\\] é-]{0,8}[/?#a-z]{0,9}") {
            if let Some(uri) = HostUri::suggestion(&text) {
                prop_assert!(uri.parse::<HostUri>().is_ok(), "{uri}");
            }
        }
    }
}
