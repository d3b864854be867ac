//! Which clients may connect: those that a CA vouches for and, where names are given, those of a name.

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

use crate::authority::AuthorityError;
use crate::certificate::CaCertificate;

/// Decides at each handshake whether the client's certificate will do; the CAs can be exchanged at
/// any time. Connections that stand are not asked again.
///
/// Clones decide by the same CAs.
#[derive(Clone)]
pub struct Clients {
    trusted: Arc<ArcSwap<Arc<dyn ClientCertVerifier>>>,
    names: Arc<[String]>,
}

/// Why a text is no bundle of CAs that clients can be judged by.
#[derive(Debug, thiserror::Error)]
pub enum ClientsError {
    /// There is no PEM of a certificate in it.
    #[error("there is no certificate")]
    Empty,
    /// One of it cannot be used.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// All can be read, and nothing can be judged by them.
    #[error("its certificates cannot be trusted: {0}")]
    Unusable(String),
}

/// A certificate that is in order, of a client that was not meant.
#[derive(Debug, thiserror::Error)]
#[error("the client is {}, but only {} may connect", list(is), list(may))]
struct NotNamed {
    is: Vec<String>,
    may: Arc<[String]>,
}

impl Clients {
    /// Those that a CA of the PEM `bundle` vouches for, if the common name or a DNS name of their
    /// certificate is one of `names`; without `names`, all of them.
    pub fn new(bundle: &[u8], names: Vec<String>) -> Result<Self, ClientsError> {
        Ok(Self {
            trusted: Arc::new(ArcSwap::from_pointee(verifier(bundle)?)),
            names: names.into(),
        })
    }

    /// From the next handshake on, these CAs vouch for clients. Those before stay when these cannot
    /// be used.
    pub fn replace(&self, bundle: &[u8]) -> Result<(), ClientsError> {
        self.trusted.store(Arc::new(verifier(bundle)?));
        Ok(())
    }
}

fn verifier(bundle: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, ClientsError> {
    let unusable = |error: &dyn std::error::Error| ClientsError::Unusable(error.to_string());
    let mut roots = RootCertStore::empty();
    for ca in CaCertificate::parse_bundle(bundle)? {
        let added = roots.add(ca.der().clone());
        added.map_err(|error| unusable(&error))?;
    }
    if roots.is_empty() {
        return Err(ClientsError::Empty);
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
        return "nobody by name".to_owned();
    }
    let quoted = names.iter().map(|name| format!("{name:?}"));
    quoted.collect::<Vec<_>>().join(" or ")
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Whom to trust is nobody else's business; a client has one certificate and shows it.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let trusted = self.trusted.load();
        let verified = trusted.verify_client_cert(end_entity, intermediates, now)?;
        let is = names_of(end_entity);
        if self.names.is_empty() || is.iter().any(|name| self.names.contains(name)) {
            return Ok(verified);
        }
        let may = self.names.clone();
        let error = OtherError(Arc::new(NotNamed { is, may }));
        Err(CertificateError::Other(error).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let trusted = self.trusted.load();
        trusted.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let trusted = self.trusted.load();
        trusted.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trusted.load().supported_verify_schemes()
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
