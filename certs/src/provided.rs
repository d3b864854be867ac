//! A certificate and key that are issued elsewhere: by cert-manager, or by an administrator.

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

/// A chain of certificates and the private key of its leaf.
#[derive(Clone)]
pub struct ProvidedCertificate {
    certified: Arc<CertifiedKey>,
    validity: Validity,
}

/// Why two PEM texts are not a [`ProvidedCertificate`].
#[derive(Debug, thiserror::Error)]
pub enum ProvidedCertificateError {
    /// The text has no certificate, or one that cannot be parsed.
    #[error("the certificate cannot be read: {0}")]
    Certificate(String),
    /// The text has no private key of a supported type.
    #[error("the key cannot be read: {0}")]
    Key(String),
    /// The key is not that of the first certificate.
    #[error("the key does not match the certificate")]
    Mismatch,
}

impl ProvidedCertificate {
    /// Parses both PEM texts. The leaf comes first, followed by the intermediate certificates.
    pub fn parse(certificates: &[u8], key: &[u8]) -> Result<Self, ProvidedCertificateError> {
        type Error = ProvidedCertificateError;
        let chain = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| Error::Certificate(error.to_string()))?;
        let leaf = chain
            .first()
            .ok_or_else(|| Error::Certificate("there is none".to_owned()))?;
        let (_, parsed) = X509Certificate::from_der(leaf)
            .map_err(|error| Error::Certificate(error.to_string()))?;
        let validity = Validity::of(&parsed);
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|error| Error::Key(error.to_string()))?;
        let key =
            ring::sign::any_supported_type(&key).map_err(|error| Error::Key(error.to_string()))?;
        let certified = CertifiedKey::new(chain, key);
        certified.keys_match().map_err(|_| Error::Mismatch)?;
        Ok(Self {
            certified: Arc::new(certified),
            validity,
        })
    }

    /// When the leaf is valid.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// The form that rustls serves.
    pub fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }

    /// Whether a client that trusts the PEM `bundle` accepts the certificate at `now` for at least
    /// one of `names`.
    pub fn accepted_by(&self, bundle: &[u8], names: &[String], now: OffsetDateTime) -> bool {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle) {
            if !certificate.is_ok_and(|it| roots.add(it).is_ok()) {
                return false;
            }
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let Ok(verifier) = verifier.build() else {
            return false;
        };
        let Some((leaf, intermediates)) = self.certified.cert.split_first() else {
            return false;
        };
        let seconds = u64::try_from(now.unix_timestamp()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let accepts = |name: &String| {
            let name = ServerName::try_from(name.as_str());
            name.is_ok_and(|name| {
                let result = verifier.verify_server_cert(leaf, intermediates, &name, &[], now);
                result.is_ok()
            })
        };
        names.iter().any(accepts)
    }
}

impl fmt::Debug for ProvidedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must never reach a log.
        f.debug_struct("ProvidedCertificate")
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}
