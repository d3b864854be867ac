//! The certificate a server shows.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use rcgen::{KeyPair, SanType, string::Ia5String};
use rustls::crypto::ring::sign::any_ecdsa_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, DnsName, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::{Duration, OffsetDateTime};

use crate::authority::AuthorityError;
use crate::certificate::{CaCertificate, pem_of};
use crate::validity::Validity;

/// How long a leaf holds. Nobody revokes in a cluster: a stolen one ends by itself.
pub const LEAF_LIFE: Duration = Duration::days(7);

/// The names a server is asked under: at least one, each a DNS name or an IP address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    texts: Vec<String>,
    sans: Vec<San>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum San {
    Dns(Ia5String),
    Ip(IpAddr),
}

/// Why a list is no [`Names`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamesError {
    /// Nothing would be certified.
    #[error("a certificate needs at least one name")]
    Empty,
    /// Neither a DNS name nor an IP address.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
}

impl Names {
    /// Reads each of `names`; repeated ones count once.
    pub fn new(names: impl IntoIterator<Item = String>) -> Result<Self, NamesError> {
        let mut texts = Vec::new();
        let mut sans = Vec::new();
        for name in names {
            let san = San::parse(&name).ok_or_else(|| NamesError::Name(name.clone()))?;
            if !sans.contains(&san) {
                sans.push(san);
                texts.push(name);
            }
        }
        if texts.is_empty() {
            return Err(NamesError::Empty);
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

/// Who signed a leaf, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenure<C = CaCertificate> {
    /// The CA.
    pub issuer: C,
    /// When the leaf holds.
    pub validity: Validity,
    /// When it is to be renewed.
    pub due: OffsetDateTime,
}

/// A certificate with its key, ready to be served.
#[derive(Clone)]
pub struct Leaf {
    certified: Arc<CertifiedKey>,
    key: String,
    tenure: Tenure,
}

impl Leaf {
    pub(crate) fn new(
        certificate: CertificateDer<'static>,
        key: &KeyPair,
        tenure: Tenure,
    ) -> Result<Self, AuthorityError> {
        let text = key.serialize_pem();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let certified = CertifiedKey::new(vec![certificate], any_ecdsa_type(&key)?);
        Ok(Self {
            certified: Arc::new(certified),
            key: text,
            tenure,
        })
    }

    /// Who signed it, and for how long.
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// When it holds.
    pub fn validity(&self) -> Validity {
        self.tenure.validity
    }

    /// The certificate, for servers that want files.
    pub fn certificate_pem(&self) -> String {
        let pems = self.certified.cert.iter().map(pem_of);
        pems.collect()
    }

    /// Its key.
    pub fn key_pem(&self) -> &str {
        &self.key
    }

    /// As rustls serves it.
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
