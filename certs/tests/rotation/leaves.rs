//! Leaves of the simulation: described only, or signed and verified for real.

use std::sync::Arc;

use certs::{BACKDATE, Ca, CaCertificate, Leaf, LeafInfo, ServerNames, Validity};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use time::{Duration, OffsetDateTime};

/// How the simulation signs and verifies leaves.
pub(crate) trait SimulatedLeaf: Clone + 'static {
    fn sign(ca: &Ca, now: OffsetDateTime, lifetime: Duration) -> Self;
    fn info(&self) -> &LeafInfo;
    /// Whether an API server with this bundle accepts the leaf at `now`.
    fn accepted_by(&self, bundle: &[CaCertificate], now: OffsetDateTime) -> bool;
}

/// A leaf without a signature, so that ten years take seconds.
#[derive(Debug, Clone)]
pub(crate) struct Unsigned(LeafInfo);

impl SimulatedLeaf for Unsigned {
    fn sign(ca: &Ca, now: OffsetDateTime, lifetime: Duration) -> Self {
        let validity = Validity::starting(now, lifetime).ending_by(ca.validity().not_after);
        assert_eq!(validity.not_before, now - BACKDATE);
        Self(LeafInfo {
            issuer: ca.certificate().clone(),
            validity,
            renew_at: validity.renewal_due(lifetime),
        })
    }

    fn info(&self) -> &LeafInfo {
        &self.0
    }

    fn accepted_by(&self, bundle: &[CaCertificate], now: OffsetDateTime) -> bool {
        let Self(leaf) = self;
        let is_issuer = |ca: &CaCertificate| *ca == leaf.issuer && ca.validity().contains(now);
        leaf.validity.contains(now) && bundle.iter().any(is_issuer)
    }
}

impl SimulatedLeaf for Leaf {
    fn sign(ca: &Ca, now: OffsetDateTime, lifetime: Duration) -> Self {
        let names = ServerNames::new(["machine-webhook.ns.svc".to_owned()]).unwrap();
        ca.sign(&names, now, lifetime).unwrap()
    }

    fn info(&self) -> &LeafInfo {
        Leaf::info(self)
    }

    fn accepted_by(&self, bundle: &[CaCertificate], now: OffsetDateTime) -> bool {
        let mut roots = RootCertStore::empty();
        for ca in bundle {
            let der = CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap();
            roots.add(der).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let Ok(verifier) = verifier.build() else {
            return false;
        };
        let name = ServerName::try_from("machine-webhook.ns.svc").unwrap();
        let seconds = now.unix_timestamp().unsigned_abs();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let certified = self.certified();
        let (leaf, intermediates) = certified.cert.split_first().unwrap();
        verifier
            .verify_server_cert(leaf, intermediates, &name, &[], now)
            .is_ok()
    }
}
