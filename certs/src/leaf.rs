//! The certificate that a server presents.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use rcgen::{KeyPair, SanType, string::Ia5String};
use rustls::crypto::ring::sign::any_ecdsa_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, DnsName, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::{Duration, OffsetDateTime};

use crate::certificate::{CaCertificate, to_pem};
use crate::error::CaError;
use crate::validity::Validity;

/// Default lifetime of a leaf. API servers check no revocation lists, so a stolen key is useful
/// until the certificate expires.
pub const LEAF_LIFETIME: Duration = Duration::days(7);

/// The names that clients call a server by: at least one, each a DNS name or an IP address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerNames {
    texts: Vec<String>,
    sans: Vec<San>,
}

/// A subject alternative name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum San {
    Dns(Ia5String),
    Ip(IpAddr),
}

/// Why a list is not a valid [`ServerNames`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerNamesError {
    /// The list is empty.
    #[error("a certificate needs at least one name")]
    Empty,
    /// An item is neither a DNS name nor an IP address.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
}

impl ServerNames {
    /// Parses each of `names`; duplicates are dropped.
    pub fn new(names: impl IntoIterator<Item = String>) -> Result<Self, ServerNamesError> {
        let mut texts = Vec::new();
        let mut sans = Vec::new();
        for name in names {
            let san = San::parse(&name).ok_or_else(|| ServerNamesError::Name(name.clone()))?;
            if !sans.contains(&san) {
                sans.push(san);
                texts.push(name);
            }
        }
        if texts.is_empty() {
            return Err(ServerNamesError::Empty);
        }
        Ok(Self { texts, sans })
    }

    pub(crate) fn first(&self) -> &str {
        self.texts.first().map_or("", String::as_str)
    }

    pub(crate) fn to_sans(&self) -> Vec<SanType> {
        let san = |san: &San| match san {
            San::Dns(name) => SanType::DnsName(name.clone()),
            San::Ip(ip) => SanType::IpAddress(*ip),
        };
        self.sans.iter().map(san).collect()
    }
}

impl San {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(ip) = IpAddr::from_str(text) {
            return Some(Self::Ip(ip));
        }
        DnsName::try_from(text).ok()?;
        Ia5String::try_from(text).ok().map(Self::Dns)
    }
}

/// Properties of a leaf that the rotation uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafInfo {
    /// Certificate of the CA that signed the leaf.
    pub issuer: CaCertificate,
    /// When the leaf is valid.
    pub validity: Validity,
    /// When the leaf is to be renewed: at the latest when the last third of its lifetime begins.
    pub renew_at: OffsetDateTime,
}

/// A leaf certificate with its key, ready to be served.
#[derive(Clone)]
pub struct Leaf {
    certified: Arc<CertifiedKey>,
    key_pem: String,
    info: LeafInfo,
}

impl Leaf {
    pub(crate) fn new(
        certificate: CertificateDer<'static>,
        key: &KeyPair,
        info: LeafInfo,
    ) -> Result<Self, CaError> {
        let key_pem = key.serialize_pem();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let certified = CertifiedKey::new(vec![certificate], any_ecdsa_type(&key)?);
        Ok(Self {
            certified: Arc::new(certified),
            key_pem,
            info,
        })
    }

    /// The CA that signed the leaf, its validity and when it is to be renewed.
    pub fn info(&self) -> &LeafInfo {
        &self.info
    }

    /// When the leaf is valid.
    pub fn validity(&self) -> Validity {
        self.info.validity
    }

    /// The certificate as PEM, for servers that read files.
    pub fn certificate_pem(&self) -> String {
        let pems = self.certified.cert.iter().map(to_pem);
        pems.collect()
    }

    /// The private key as PEM, for servers that read files.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// The form that rustls serves.
    pub fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must never reach a log.
        f.debug_struct("Leaf")
            .field("validity", &self.validity())
            .finish_non_exhaustive()
    }
}
