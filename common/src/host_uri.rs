//! URIs of libvirt hosts: only those that connect to a hypervisor and execute nothing on the controller.
//!
//! ```text
//! qemu+ssh://admin@hv1.example.com:22/system
//! └driver └transport └user └host    └port └path
//! ```
//! libvirt also accepts parameters in a URI. Some of them (`command`, `netcat`, `socket`) name a program
//! or a file that would be executed or opened on the controller, so a URI with parameters is refused.
//!
//! It has its own parser: for schemes like these the crate `url` keeps host and path as they are, so that every rule about them
//! would still have to be written, and it would bring the tables of international domain names
//! (`uris_that_could_execute_something_or_name_no_host_are_refused` in `host_uri/tests.rs`).

mod suggestion;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::bounds::HOST_URI_MAX;
use crate::userinfo::has_password;
use crate::words::shortened;

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

    /// The transport that the scheme of a text names, whatever else is wrong with it.
    pub(crate) fn transport_of(text: &str) -> Option<Transport> {
        let (scheme, _) = text.split_once("://")?;
        let (_, transport) = driver_and_transport(scheme).ok()?;
        Some(transport)
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

/// Why a text is not the URI of a libvirt host. What is repeated of the text is shortened, and has no password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostUriError {
    /// There is a password.
    #[error(
        "has a password, which no transport uses; keys and certificates are in the Secret of credentialsSecretRef"
    )]
    Password,
    /// There is a parameter of this name.
    #[error(
        "has the parameter '{0}'; parameters can name a program that the controller would run, so none is allowed"
    )]
    Parameter(String),
    /// There is a question mark or a number sign, without a name behind it.
    #[error("has a '{0}'; neither parameters nor a fragment are allowed")]
    Sign(char),
    /// There is no scheme.
    #[error("has no scheme; begin with qemu:///, qemu+tls:// or qemu+ssh://")]
    Scheme,
    /// The part of the scheme before the plus sign.
    #[error("has the driver '{0}'; use qemu, or test for libvirt's test driver")]
    Driver(String),
    /// The part of the scheme behind the plus sign, and those that the driver allows.
    #[error("has the transport '{0}', which is not allowed; use {1}")]
    Transport(String, &'static str),
    /// There is a user, but the transport is not ssh.
    #[error("has the user '{0}', which only qemu+ssh:// takes")]
    UserWithoutSsh(String),
    /// The user is not valid for ssh.
    #[error(
        "has a user that is not valid for ssh; use letters, digits, '-', '_' and '.', and no '-' or '.' first"
    )]
    User,
    /// There is no host.
    #[error("names no host between // and the next /")]
    NoHost,
    /// The host is not valid.
    #[error("has the host '{0}', which is neither a name nor an address (IPv6 in brackets)")]
    Host(String),
    /// There is a host, but the transport is local.
    #[error("names a host without a transport to it; use qemu+tls:// or qemu+ssh://")]
    HostWithoutTransport,
    /// The port is not valid.
    #[error("has the port '{0}'; it must be from 1 to 65535")]
    Port(String),
    /// There is no path.
    #[error("has no path; it must be {0}")]
    NoPath(&'static str),
    /// The driver cannot connect to the path.
    #[error("has the path '{0}'; it must be {1}")]
    Path(String, &'static str),
    /// The text is too long.
    #[error("is longer than {HOST_URI_MAX} characters")]
    TooLong,
}

/// A part of a URI as messages show it.
fn shown(part: &str) -> String {
    shortened(part).escape_debug().to_string()
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
        if has_password(text) {
            return Err(HostUriError::Password);
        }
        if let Some(end) = text.find(['?', '#']) {
            return Err(beyond_path(&text[end..]));
        }
        let (scheme, rest) = text.split_once("://").ok_or(HostUriError::Scheme)?;
        let (driver, transport) = driver_and_transport(scheme)?;
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
        match user {
            Some(user) if transport != Transport::Ssh => {
                return Err(HostUriError::UserWithoutSsh(shown(user)));
            }
            Some(user) if !is_user(user) => return Err(HostUriError::User),
            Some(_) | None => {}
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
        if path.is_empty() {
            return Err(HostUriError::NoPath(expected));
        }
        if !fits {
            return Err(HostUriError::Path(shown(path), expected));
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

/// The error for a text whose path is followed by `rest`, which begins with a question mark or a number sign.
fn beyond_path(rest: &str) -> HostUriError {
    let Some(parameters) = rest.strip_prefix('?') else {
        return HostUriError::Sign('#');
    };
    let is_outside = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    match parameters.split(is_outside).next() {
        Some(name) if !name.is_empty() => HostUriError::Parameter(shown(name)),
        Some(_) | None => HostUriError::Sign('?'),
    }
}

fn driver_and_transport(scheme: &str) -> Result<(Driver, Transport), HostUriError> {
    let (driver, transport) = match scheme.split_once('+') {
        Some((driver, transport)) => (driver, Some(transport)),
        None => (scheme, None),
    };
    let (driver, allowed) = match driver {
        "qemu" => (Driver::Qemu, "tls or ssh"),
        "test" => (Driver::Test, "tls"),
        other => return Err(HostUriError::Driver(shown(other))),
    };
    match transport {
        None => Ok((driver, Transport::Local)),
        Some("tls") => Ok((driver, Transport::Tls)),
        Some("ssh") if driver == Driver::Qemu => Ok((driver, Transport::Ssh)),
        Some(other) => Err(HostUriError::Transport(shown(other), allowed)),
    }
}

/// The host and the port of `host`, `host:port` or `[address]:port`.
fn host_and_port(address: &str) -> Result<(&str, Option<u16>), HostUriError> {
    let invalid = || HostUriError::Host(shown(address));
    let (host, port) = if let Some(rest) = address.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(invalid)?;
        host.parse::<Ipv6Addr>().map_err(|_| invalid())?;
        match rest.strip_prefix(':') {
            None if rest.is_empty() => (host, None),
            None => return Err(invalid()),
            Some(port) => (host, Some(port)),
        }
    } else if address.parse::<Ipv6Addr>().is_ok() {
        return Err(invalid());
    } else {
        let (host, port) = match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        };
        if host.is_empty() {
            return Err(HostUriError::NoHost);
        }
        if !is_host(host) {
            return Err(HostUriError::Host(shown(host)));
        }
        (host, port)
    };
    let port = match port {
        None => None,
        Some(port) if port.starts_with(|c: char| ('1'..='9').contains(&c)) => {
            Some(port.parse().map_err(|_| HostUriError::Port(shown(port)))?)
        }
        Some(port) => return Err(HostUriError::Port(shown(port))),
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
