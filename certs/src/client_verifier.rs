//! Which clients may connect: those with a certificate of a trusted CA and, if names are given, with
//! one of these names.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::UnixTime;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore,
    SignatureScheme,
};
use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::certificate::CaCertificate;
use crate::error::CaError;

/// Verifies the client's certificate at each handshake. The CAs can be replaced at any time; open
/// connections are not verified again.
///
/// Clones share the CAs.
#[derive(Clone)]
pub struct ClientVerifier {
    by_ca: Arc<ArcSwap<Arc<dyn ClientCertVerifier>>>,
    /// Common names or DNS names that may connect; empty: every name.
    names: Arc<[String]>,
}

/// Why a PEM text is not a bundle of CAs that clients can be verified with.
#[derive(Debug, thiserror::Error)]
pub enum ClientVerifierError {
    /// The text contains no certificate.
    #[error("there is no certificate")]
    Empty,
    /// One of the certificates cannot be read, or is not that of a CA.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The certificates can be read, but rustls rejects them as trust anchors.
    #[error("its certificates cannot be trusted: {0}")]
    Unusable(String),
}

/// The certificate is valid, but has none of the allowed names.
#[derive(Debug, thiserror::Error)]
#[error(
    "the client is {}, but only {} may connect",
    list(names),
    list(allowed)
)]
struct NameNotAllowed {
    names: Vec<String>,
    allowed: Arc<[String]>,
}

impl ClientVerifier {
    /// Accepts certificates that a CA of the PEM `bundle` has signed, if their common name or one of
    /// their DNS names is in `names`. If `names` is empty, every name is accepted.
    pub fn new(bundle: &[u8], names: Vec<String>) -> Result<Self, ClientVerifierError> {
        Ok(Self {
            by_ca: Arc::new(ArcSwap::from_pointee(verifier(bundle)?)),
            names: names.into(),
        })
    }

    /// Replaces the CAs from the next handshake on. On an error the present CAs stay.
    pub fn replace(&self, bundle: &[u8]) -> Result<(), ClientVerifierError> {
        self.by_ca.store(Arc::new(verifier(bundle)?));
        Ok(())
    }
}

fn verifier(bundle: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, ClientVerifierError> {
    let unusable = |error: &dyn std::error::Error| ClientVerifierError::Unusable(error.to_string());
    let mut roots = RootCertStore::empty();
    for ca in CaCertificate::parse_bundle(bundle)? {
        let added = roots.add(ca.der().clone());
        added.map_err(|error| unusable(&error))?;
    }
    if roots.is_empty() {
        return Err(ClientVerifierError::Empty);
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    verifier.build().map_err(|error| unusable(&error))
}

/// The common name and the DNS names.
fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let common = parsed.subject().iter_common_name();
    let common = common.filter_map(|name| name.as_str().ok().map(str::to_owned));
    let mut names: Vec<_> = common.collect();
    if let Ok(Some(alternatives)) = parsed.subject_alternative_name() {
        names.extend(alternatives.value.general_names.iter().filter_map(|name| {
            let GeneralName::DNSName(name) = name else {
                return None;
            };
            Some((*name).to_owned())
        }));
    }
    names
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "without a name".to_owned();
    }
    let quoted = names.iter().map(|name| format!("{name:?}"));
    quoted.collect::<Vec<_>>().join(" or ")
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Do not disclose the trusted CAs. An API server has one client certificate and sends it anyway.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let by_ca = self.by_ca.load();
        let verified = by_ca.verify_client_cert(end_entity, intermediates, now)?;
        let names = names_of(end_entity);
        if self.names.is_empty() || names.iter().any(|name| self.names.contains(name)) {
            return Ok(verified);
        }
        let allowed = self.names.clone();
        let error = OtherError(Arc::new(NameNotAllowed { names, allowed }));
        Err(CertificateError::Other(error).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let by_ca = self.by_ca.load();
        by_ca.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let by_ca = self.by_ca.load();
        by_ca.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_ca.load().supported_verify_schemes()
    }
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientVerifier")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
