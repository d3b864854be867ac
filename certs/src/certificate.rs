//! A CA's certificate without its key: what clients trust.

use std::fmt;
use std::sync::Arc;

use pem::{EncodeConfig, LineEnding, Pem};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::error::CaError;
use crate::validity::Validity;

/// The certificate of a CA. Two are equal when their DER bytes are, however their PEM is formatted.
/// Clones share the bytes.
#[derive(Clone)]
pub struct CaCertificate(Arc<Parsed>);

struct Parsed {
    der: CertificateDer<'static>,
    pem: String,
    validity: Validity,
}

impl CaCertificate {
    /// Reads the PEM of one certificate.
    pub fn parse(pem: &str) -> Result<Self, CaError> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| CaError::Certificate(error.to_string()))?;
        Self::from_der(der)
    }

    /// Reads every certificate of a bundle. One unreadable certificate is an error for the whole
    /// bundle, because API servers reject such a bundle as a whole.
    pub fn parse_bundle(pem: &[u8]) -> Result<Vec<Self>, CaError> {
        let read = |der: Result<_, rustls_pki_types::pem::Error>| {
            Self::from_der(der.map_err(|error| CaError::Certificate(error.to_string()))?)
        };
        CertificateDer::pem_slice_iter(pem).map(read).collect()
    }

    fn from_der(der: CertificateDer<'static>) -> Result<Self, CaError> {
        let (rest, parsed) = X509Certificate::from_der(&der)
            .map_err(|error| CaError::Certificate(error.to_string()))?;
        if !rest.is_empty() {
            let reason = "there are bytes after the certificate".to_owned();
            return Err(CaError::Certificate(reason));
        }
        if !parsed.is_ca() {
            return Err(CaError::NotCa);
        }
        let validity = Validity::of(&parsed);
        let pem = to_pem(&der);
        Ok(Self(Arc::new(Parsed { der, pem, validity })))
    }

    /// The certificate as PEM, with LF line ends.
    pub fn pem(&self) -> &str {
        &self.0.pem
    }

    /// When the certificate is valid.
    pub fn validity(&self) -> Validity {
        self.0.validity
    }

    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        &self.0.der
    }
}

pub(crate) fn to_pem(der: &CertificateDer<'_>) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new("CERTIFICATE", der.to_vec()), config)
}

/// The PEM of all `certificates`, one after another, as a `caBundle` contains them.
pub fn bundle_pem<'a>(certificates: impl IntoIterator<Item = &'a CaCertificate>) -> String {
    let pems = certificates.into_iter().map(CaCertificate::pem);
    pems.collect()
}

impl PartialEq for CaCertificate {
    fn eq(&self, other: &Self) -> bool {
        self.0.der == other.0.der
    }
}

impl Eq for CaCertificate {}

impl fmt::Debug for CaCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaCertificate")
            .field("validity", &self.validity())
            .finish_non_exhaustive()
    }
}
