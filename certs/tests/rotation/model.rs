//! Certificates that are numbers, and real ones, behind one face.

use certs::{
    Authority, BACKDATE, Ca, CaCertificate, Leaf, Lives, Names, Tenure, Trusted, Validity,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::Arc;
use time::{Duration, OffsetDateTime};

/// A CA as the simulation makes and asks it.
pub(crate) trait Maker: Ca + std::fmt::Debug + 'static {
    /// What is served.
    type Leaf: Clone;

    fn make(number: u32, now: OffsetDateTime, lives: &Lives) -> Self;
    fn sign(&self, now: OffsetDateTime, life: Duration) -> Self::Leaf;
    fn tenure(leaf: &Self::Leaf) -> &Tenure<Self::Certificate>;
    /// As an API server with this bundle sees it at this time.
    fn accepts(bundle: &[Self::Certificate], leaf: &Self::Leaf, now: OffsetDateTime) -> bool;
}

/// A CA that is a number.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Model(Number);

#[derive(Debug, Clone)]
pub(crate) struct Number {
    number: u32,
    validity: Validity,
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Ca for Model {
    type Certificate = Number;

    fn certificate(&self) -> &Number {
        &self.0
    }
}

impl Trusted for Number {
    fn validity(&self) -> Validity {
        self.validity
    }
}

impl Maker for Model {
    type Leaf = Tenure<Number>;

    fn make(number: u32, now: OffsetDateTime, lives: &Lives) -> Self {
        let validity = Validity::starting(now, lives.authority());
        Self(Number { number, validity })
    }

    fn sign(&self, now: OffsetDateTime, life: Duration) -> Tenure<Number> {
        let validity = Validity::starting(now, life).until_at_most(self.0.validity.not_after);
        assert_eq!(validity.not_before, now - BACKDATE);
        Tenure {
            issuer: self.0.clone(),
            validity,
            due: validity.renewal_due(life),
        }
    }

    fn tenure(leaf: &Tenure<Number>) -> &Tenure<Number> {
        leaf
    }

    fn accepts(bundle: &[Number], leaf: &Tenure<Number>, now: OffsetDateTime) -> bool {
        let issued = |ca: &Number| *ca == leaf.issuer && ca.validity.contains(now);
        leaf.validity.contains(now) && bundle.iter().any(issued)
    }
}

impl Maker for Authority {
    type Leaf = Leaf;

    fn make(_: u32, now: OffsetDateTime, lives: &Lives) -> Self {
        Self::generate("CA", now, lives.authority()).unwrap()
    }

    fn sign(&self, now: OffsetDateTime, life: Duration) -> Leaf {
        let names = Names::new(["machine-webhook.ns.svc".to_owned()]).unwrap();
        self.sign(&names, now, life).unwrap()
    }

    fn tenure(leaf: &Leaf) -> &Tenure {
        leaf.tenure()
    }

    fn accepts(bundle: &[CaCertificate], leaf: &Leaf, now: OffsetDateTime) -> bool {
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
        let certified = leaf.certified();
        let (end, between) = certified.cert.split_first().unwrap();
        verifier
            .verify_server_cert(end, between, &name, &[], now)
            .is_ok()
    }
}
