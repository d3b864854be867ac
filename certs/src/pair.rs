//! Certificate and key from elsewhere: cert-manager's, or one's own.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::validity::Validity;

/// A chain of certificates and the key of the first, which belong together.
#[derive(Clone)]
pub struct Pair {
    certified: Arc<CertifiedKey>,
    validity: Validity,
}

/// Why two texts are no [`Pair`].
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// The certificate's PEM has none, or one that cannot be read.
    #[error("the certificate cannot be read: {0}")]
    Certificate(String),
    /// The key's PEM has none of a known kind.
    #[error("the key cannot be read: {0}")]
    Key(String),
    /// They are not a pair.
    #[error("the key does not belong to the certificate")]
    Mismatch,
}

impl Pair {
    /// Reads both. The leaf comes first, what leads from it to the CA after it.
    pub fn parse(certificates: &[u8], key: &[u8]) -> Result<Self, PairError> {
        let chain = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| PairError::Certificate(error.to_string()))?;
        let leaf = chain
            .first()
            .ok_or_else(|| PairError::Certificate("there is none".to_owned()))?;
        let (_, parsed) = X509Certificate::from_der(leaf)
            .map_err(|error| PairError::Certificate(error.to_string()))?;
        let validity = Validity {
            not_before: parsed.validity().not_before.to_datetime(),
            not_after: parsed.validity().not_after.to_datetime(),
        };
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| PairError::Key(error.to_string()))?;
        let key = ring::sign::any_supported_type(&key)
            .map_err(|error| PairError::Key(error.to_string()))?;
        let certified = CertifiedKey::new(chain, key);
        certified.keys_match().map_err(|_| PairError::Mismatch)?;
        Ok(Self {
            certified: Arc::new(certified),
            validity,
        })
    }

    /// When the leaf holds.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// As rustls serves it.
    pub fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }

    /// Whether a client that trusts the PEM `bundle` accepts it at `now`, as a server of any of
    /// these names.
    pub fn accepted_by(&self, bundle: &[u8], names: &[String], now: OffsetDateTime) -> bool {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle) {
            if certificate.is_ok_and(|it| roots.add(it).is_ok()) {
                continue;
            }
            return false;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let Ok(verifier) = verifier.build() else {
            return false;
        };
        let Some((leaf, between)) = self.certified.cert.split_first() else {
            return false;
        };
        let seconds = u64::try_from(now.unix_timestamp()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let accepts = |name: &String| {
            let name = ServerName::try_from(name.as_str());
            name.is_ok_and(|name| {
                let answer = verifier.verify_server_cert(leaf, between, &name, &[], now);
                answer.is_ok()
            })
        };
        names.iter().any(accepts)
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must never reach a log.
        f.debug_struct("Pair")
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}
