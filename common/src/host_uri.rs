//! URIs of libvirt hosts: only those that connect to a hypervisor and execute nothing on the controller.
//!
//! ```text
//! qemu+ssh://admin@hv1.example.com:22/system
//! └driver └transport └user └host    └port └path
//! ```
//! libvirt also accepts parameters in a URI. Some of them (`command`, `netcat`, `socket`) name a program
//! or a file that would be executed or opened on the controller, so a URI with parameters is refused.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::bounds::HOST_URI_MAX;

/// The driver that runs the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Driver {
    /// QEMU, with or without KVM.
    Qemu,
    /// libvirt's test driver, which keeps its guests in memory.
    Test,
}

/// The transport of the connection to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A socket on the controller's own host.
    Local,
    /// TLS with a certificate on each side.
    Tls,
    /// An SSH tunnel.
    Ssh,
}

/// The URI of a libvirt host. `Display` gives the text that was parsed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostUri {
    driver: Driver,
    transport: Transport,
    user: Option<String>,
    host: Option<String>,
    port: Option<u16>,
    path: String,
}

impl HostUri {
    /// The driver that runs the guests.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// The transport of the connection.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The user that ssh logs in as, if one is named.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// DNS name or address of the host, an IPv6 address without brackets; `None` for the controller's own
    /// host.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The port, if the URI has one; else the transport's default applies.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// What to connect to: `/system`, `/session`, `/default`, or the file that the test driver reads.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// Why a text is not the URI of a libvirt host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostUriError {
    /// There is a question mark or a number sign.
    #[error("has parameters, which could name what is executed; remove all from the '{0}' on")]
    Parameters(char),
    /// The scheme is not one of those that are read.
    #[error("must begin with qemu:///, qemu+tls://, qemu+ssh://, test:/// or test+tls://")]
    Scheme,
    /// The user is not valid for ssh, or the transport is not ssh.
    #[error("has a user that is not valid for ssh, or that only qemu+ssh:// allows")]
    User,
    /// The host is missing or not valid.
    #[error(
        "must name a host between // and the next /, by its name or address (IPv6 in brackets)"
    )]
    Host,
    /// There is a host, but the transport is local.
    #[error("names a host without a transport to it; use qemu+tls:// or qemu+ssh://")]
    HostWithoutTransport,
    /// The port is not valid.
    #[error("has a port that is not from 1 to 65535")]
    Port,
    /// The driver cannot connect to the path.
    #[error("must end with {0}")]
    Path(&'static str),
    /// The text is too long.
    #[error("is longer than {HOST_URI_MAX} characters")]
    TooLong,
}

impl FromStr for HostUri {
    type Err = HostUriError;

    /// Reads `qemu:///system`, `qemu:///session`, `qemu+tls://host[:port]/system`,
    /// `qemu+ssh://[user@]host[:port]/system`, `test:///default`, `test:///<file>` and
    /// `test+tls://host[:port]/default`.
    fn from_str(text: &str) -> Result<Self, HostUriError> {
        if text.len() > HOST_URI_MAX {
            return Err(HostUriError::TooLong);
        }
        if let Some(sign) = text.chars().find(|c| matches!(c, '?' | '#')) {
            return Err(HostUriError::Parameters(sign));
        }
        let (scheme, rest) = text.split_once("://").ok_or(HostUriError::Scheme)?;
        let (driver, transport) = match scheme {
            "qemu" => (Driver::Qemu, Transport::Local),
            "qemu+tls" => (Driver::Qemu, Transport::Tls),
            "qemu+ssh" => (Driver::Qemu, Transport::Ssh),
            "test" => (Driver::Test, Transport::Local),
            "test+tls" => (Driver::Test, Transport::Tls),
            _ => return Err(HostUriError::Scheme),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, address) = match authority.split_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority),
        };
        let (host, port) = match transport {
            Transport::Local if authority.is_empty() => (None, None),
            Transport::Local => return Err(HostUriError::HostWithoutTransport),
            Transport::Tls | Transport::Ssh => {
                let (host, port) = host_and_port(address)?;
                (Some(host.to_owned()), port)
            }
        };
        if user.is_some_and(|user| transport != Transport::Ssh || !is_user(user)) {
            return Err(HostUriError::User);
        }
        let expected = match (driver, transport) {
            (Driver::Qemu, Transport::Local) => "/system or /session",
            (Driver::Qemu, Transport::Tls | Transport::Ssh) => "/system",
            (Driver::Test, Transport::Local) => "/default or the path of a file",
            (Driver::Test, Transport::Tls | Transport::Ssh) => "/default",
        };
        let fits = match (driver, transport) {
            (Driver::Test, Transport::Local) => is_file(path),
            _ => expected.split(" or ").any(|known| known == path),
        };
        if !fits {
            return Err(HostUriError::Path(expected));
        }
        Ok(Self {
            driver,
            transport,
            user: user.map(str::to_owned),
            host,
            port,
            path: path.to_owned(),
        })
    }
}

/// The host and the port of `host`, `host:port` or `[address]:port`.
fn host_and_port(address: &str) -> Result<(&str, Option<u16>), HostUriError> {
    let (host, port) = if let Some(rest) = address.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(HostUriError::Host)?;
        host.parse::<Ipv6Addr>().map_err(|_| HostUriError::Host)?;
        match rest.strip_prefix(':') {
            None if rest.is_empty() => (host, None),
            None => return Err(HostUriError::Host),
            Some(port) => (host, Some(port)),
        }
    } else {
        let (host, port) = match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        };
        if !is_host(host) {
            return Err(HostUriError::Host);
        }
        (host, port)
    };
    let port = match port {
        None => None,
        Some(port) if port.starts_with(|c: char| ('1'..='9').contains(&c)) => {
            Some(port.parse().map_err(|_| HostUriError::Port)?)
        }
        Some(_) => return Err(HostUriError::Port),
    };
    Ok((host, port))
}

/// Whether a text is a DNS name or an IPv4 address. It cannot begin with a dash, because ssh would read it
/// as an option.
fn is_host(text: &str) -> bool {
    let is_end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    text.bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
        && is_end(text.as_bytes().first())
        && is_end(text.as_bytes().last())
}

/// Whether a text is the name of a user. It cannot begin with a dash, for the same reason.
fn is_user(text: &str) -> bool {
    text.bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a text is an absolute path, including `/default`.
fn is_file(path: &str) -> bool {
    path.len() > 1
        && path
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._/".contains(&b))
}

impl fmt::Display for HostUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = match self.driver {
            Driver::Qemu => "qemu",
            Driver::Test => "test",
        };
        let transport = match self.transport {
            Transport::Local => "",
            Transport::Tls => "+tls",
            Transport::Ssh => "+ssh",
        };
        write!(f, "{driver}{transport}://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match &self.host {
            Some(host) if host.contains(':') => write!(f, "[{host}]")?,
            Some(host) => f.write_str(host)?,
            None => {}
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn uris_of_each_driver_and_transport_are_read_into_their_parts() {
        use Driver::{Qemu, Test};
        use Transport::{Local, Ssh, Tls};
        for (text, parts) in [
            ("qemu:///system", (Qemu, Local, None, None, None, "/system")),
            (
                "qemu:///session",
                (Qemu, Local, None, None, None, "/session"),
            ),
            (
                "test:///default",
                (Test, Local, None, None, None, "/default"),
            ),
            (
                "test:///var/node.xml",
                (Test, Local, None, None, None, "/var/node.xml"),
            ),
            (
                "qemu+tls://hv1.example.com/system",
                (Qemu, Tls, None, Some("hv1.example.com"), None, "/system"),
            ),
            (
                "qemu+tls://10.0.0.1:16515/system",
                (Qemu, Tls, None, Some("10.0.0.1"), Some(16515), "/system"),
            ),
            (
                "qemu+tls://[fd00::1]:16515/system",
                (Qemu, Tls, None, Some("fd00::1"), Some(16515), "/system"),
            ),
            (
                "qemu+ssh://hv1/system",
                (Qemu, Ssh, None, Some("hv1"), None, "/system"),
            ),
            (
                "qemu+ssh://root@hv1:2222/system",
                (Qemu, Ssh, Some("root"), Some("hv1"), Some(2222), "/system"),
            ),
            (
                "test+tls://localhost:16514/default",
                (Test, Tls, None, Some("localhost"), Some(16514), "/default"),
            ),
        ] {
            let uri: HostUri = text.parse().unwrap();
            let got = (
                uri.driver(),
                uri.transport(),
                uri.user(),
                uri.host(),
                uri.port(),
                uri.path(),
            );
            assert_eq!(got, parts, "{text}");
            assert_eq!(uri.to_string(), text);
        }
    }

    #[test]
    fn uris_that_could_execute_something_or_name_no_host_are_refused() {
        use HostUriError::{Host, HostWithoutTransport, Parameters, Path, Port, Scheme, User};
        for (text, error) in [
            ("qemu+ssh://hv1/system?command=/bin/sh", Parameters('?')),
            ("qemu:///system#x", Parameters('#')),
            ("", Scheme),
            ("hv1", Scheme),
            ("xen:///system", Scheme),
            ("qemu+unix:///system", Scheme),
            ("test+unix:///default", Scheme),
            ("qemu+tcp://hv1/system", Scheme),
            ("qemu+ext://hv1/system", Scheme),
            ("test+ssh://hv1/default", Scheme),
            ("QEMU:///system", Scheme),
            ("qemu://hv1/system", HostWithoutTransport),
            ("qemu+tls:///system", Host),
            ("qemu+ssh://root@/system", Host),
            ("qemu+ssh://-oProxyCommand=x/system", Host),
            ("qemu+tls://hv 1/system", Host),
            ("qemu+tls://[hv1]/system", Host),
            ("qemu+tls://[::1]x/system", Host),
            ("qemu+ssh://-l@hv1/system", User),
            ("qemu+ssh://@hv1/system", User),
            ("qemu+ssh://a:b@hv1/system", User),
            ("qemu+tls://root@hv1/system", User),
            ("qemu+tls://hv1:0/system", Port),
            ("qemu+tls://hv1:/system", Port),
            ("qemu+tls://hv1:65536/system", Port),
            ("qemu+tls://hv1:+1/system", Port),
            ("qemu:///", Path("/system or /session")),
            ("qemu+tls://hv1", Path("/system")),
            ("qemu+ssh://hv1/session", Path("/system")),
            ("test:///", Path("/default or the path of a file")),
            ("test:///a%20b", Path("/default or the path of a file")),
            ("test+tls://hv1/other", Path("/default")),
        ] {
            assert_eq!(text.parse::<HostUri>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_displayed_uri_is_the_parsed_text(text in "(qemu|test)(\\+tls|\\+ssh)?://([a-z_]{1,3}@)?([a-z0-9.-]{0,4}|\\[[0-9a-f:]{2,5}\\])(:[0-9]{1,6})?/(system|default|session)") {
            if let Ok(uri) = text.parse::<HostUri>() {
                prop_assert_eq!(uri.to_string(), text);
            }
        }

        #[test]
        fn parsing_any_text_never_panics(text in "\\PC{0,40}") {
            let _ = text.parse::<HostUri>();
        }
    }
}
