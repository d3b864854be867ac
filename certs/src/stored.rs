//! The form in which a CA is kept between two processes.

use std::fmt;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};

/// What the CA Secret holds: certificate and key as PEM, under the Secret's own keys.
///
/// Nothing about it is checked yet; [`Authority::parse`](crate::Authority::parse) does.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// The CA's certificate.
    #[serde(rename = "ca.crt")]
    pub certificate: String,
    /// Its private key.
    #[serde(rename = "ca.key")]
    pub key: String,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must never reach a log.
        f.debug_struct("Stored")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// Whether the PEM `bundle` holds the very certificate `pem`, whatever else and however formatted.
/// A bundle with anything unreadable in it holds nothing: its readers refuse it as a whole.
pub fn bundle_contains(bundle: &[u8], pem: &str) -> bool {
    let Ok(wanted) = CertificateDer::from_pem_slice(pem.as_bytes()) else {
        return false;
    };
    CertificateDer::pem_slice_iter(bundle)
        .collect::<Result<Vec<_>, _>>()
        .is_ok_and(|certificates| certificates.contains(&wanted))
}
