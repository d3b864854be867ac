//! Which host, and with which credentials.

use std::fmt;

/// Where a connection goes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub uri: String,
    pub credentials: Option<Credentials>,
}

/// What a host wants to see, as PEM or in the forms of OpenSSH.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credentials {
    Tls {
        ca: String,
        certificate: String,
        key: String,
    },
    Ssh {
        private_key: String,
        known_hosts: String,
    },
}

/// Without the credentials.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("uri", &self.uri)
            .field("credentials", &self.credentials)
            .finish()
    }
}

/// Without the content.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls { .. } => "Tls",
            Self::Ssh { .. } => "Ssh",
        })
    }
}
