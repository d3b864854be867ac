//! The certificate that rustls presents, replaceable while connections are open.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::leaf::Leaf;
use crate::provided::ProvidedCertificate;

/// Presents the certificate that was set last. Open connections keep the one of their handshake.
///
/// Clones share the certificate. Before the first one is set, every handshake fails.
#[derive(Debug, Clone, Default)]
pub struct ServerCertResolver(Arc<ArcSwapOption<CertifiedKey>>);

impl ServerCertResolver {
    /// Presents `leaf` from the next handshake on.
    pub fn set_leaf(&self, leaf: &Leaf) {
        self.0.store(Some(leaf.certified()));
    }

    /// Presents `certificate` from the next handshake on.
    pub fn set_provided(&self, certificate: &ProvidedCertificate) {
        self.0.store(Some(certificate.certified()));
    }
}

impl ResolvesServerCert for ServerCertResolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}
