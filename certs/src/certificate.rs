//! A CA's certificate without its key: what clients trust.

use std::fmt;

use pem::{EncodeConfig, LineEnding, Pem};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::authority::AuthorityError;
use crate::state::Trusted;
use crate::validity::Validity;

/// The certificate of a CA, read and found to be one. Two are equal when their bytes are, however
/// their PEM was formatted.
#[derive(Clone)]
pub struct CaCertificate {
    der: CertificateDer<'static>,
    pem: String,
    validity: Validity,
}

impl CaCertificate {
    /// Reads the PEM of one certificate.
    pub fn parse(pem: &str) -> Result<Self, AuthorityError> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| AuthorityError::Certificate(error.to_string()))?;
        Self::from_der(der)
    }

    /// Reads every certificate of a bundle. One that cannot be read spoils all: a bundle's readers
    /// refuse it as a whole.
    pub fn parse_bundle(pem: &[u8]) -> Result<Vec<Self>, AuthorityError> {
        let read = |der: Result<_, rustls_pki_types::pem::Error>| {
            Self::from_der(der.map_err(|error| AuthorityError::Certificate(error.to_string()))?)
        };
        CertificateDer::pem_slice_iter(pem).map(read).collect()
    }

    fn from_der(der: CertificateDer<'static>) -> Result<Self, AuthorityError> {
        let (rest, parsed) = X509Certificate::from_der(&der)
            .map_err(|error| AuthorityError::Certificate(error.to_string()))?;
        if !rest.is_empty() {
            return Err(AuthorityError::Certificate("bytes follow it".to_owned()));
        }
        if !parsed.is_ca() {
            return Err(AuthorityError::NotAnAuthority);
        }
        let validity = Validity {
            not_before: parsed.validity().not_before.to_datetime(),
            not_after: parsed.validity().not_after.to_datetime(),
        };
        let pem = pem_of(&der);
        Ok(Self { der, pem, validity })
    }

    /// As PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }
}

pub(crate) fn pem_of(der: &CertificateDer<'_>) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new("CERTIFICATE", der.to_vec()), config)
}

/// The bundle of some certificates, as a `caBundle` has it.
pub fn bundle_pem<'a>(certificates: impl IntoIterator<Item = &'a CaCertificate>) -> String {
    let pems = certificates.into_iter().map(CaCertificate::pem);
    pems.collect()
}

impl Trusted for CaCertificate {
    fn validity(&self) -> Validity {
        self.validity
    }
}

impl PartialEq for CaCertificate {
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for CaCertificate {}

impl fmt::Debug for CaCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaCertificate")
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}
