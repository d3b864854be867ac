//! The CA: made, read back, and signing.

use std::fmt;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SerialNumber,
};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::certificate::CaCertificate;
use crate::leaf::{Leaf, Names, Tenure};
use crate::state::{Ca, Trusted as _};
use crate::validity::Validity;

/// How long a CA holds. Long enough that its rotation is rare, short enough that it happens while
/// those who set it up are still around.
pub const AUTHORITY_LIFE: Duration = Duration::days(365);

/// 127 random bits: unique without a counter, and never the twenty-first byte that DER forbids.
const SERIAL_BYTES: usize = 16;

/// X.520's upper bound of a common name.
const COMMON_NAME_MAX: usize = 64;

/// Why there is no usable CA.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The stored certificate is no PEM of one certificate.
    #[error("the CA certificate cannot be read: {0}")]
    Certificate(String),
    /// The stored key is no PEM of one private key of a known kind.
    #[error("the CA key cannot be read")]
    Key(#[source] rcgen::Error),
    /// Certificate and key are not a pair.
    #[error("the CA key does not belong to the CA certificate")]
    Mismatch,
    /// The certificate may not sign others.
    #[error("the certificate is not that of a CA")]
    NotAnAuthority,
    /// Making a key or a signature failed.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// rustls does not take the key that was just made.
    #[error("cannot use the new key")]
    Use(#[from] rustls::Error),
    /// The system has no random numbers.
    #[error("no random numbers")]
    Random,
}

/// A CA that can sign: its certificate was read and its key belongs to it.
///
/// Whether it holds *now* is a question of [`validity`](Self::validity) and the clock. Clones share
/// the key.
#[derive(Clone)]
pub struct Authority {
    issuer: Arc<Issuer<'static, KeyPair>>,
    certificate: CaCertificate,
}

impl Authority {
    /// Makes a new CA, ECDSA P-256. Its name is `name` with the day and a random part, distinct per
    /// generation: clients that find two trusted CAs of one name may pick the wrong one.
    pub fn generate(
        name: &str,
        now: OffsetDateTime,
        life: Duration,
    ) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let serial = random_serial()?;
        let suffix = format!(
            " {} {:02x}{:02x}{:02x}",
            now.date(),
            serial[1],
            serial[2],
            serial[3]
        );
        let validity = Validity::starting(now, life);

        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name, &suffix);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.not_before = validity.not_before;
        params.not_after = validity.not_after;
        let certificate = params.self_signed(&key)?;
        Self::parse(&certificate.pem(), &key.serialize_pem())
    }

    /// Reads back what [`certificate_pem`](Self::certificate_pem) and [`key_pem`](Self::key_pem)
    /// gave, or what somebody put in their place.
    pub fn parse(certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let certificate = CaCertificate::parse(certificate)?;
        let key = KeyPair::from_pem(key).map_err(AuthorityError::Key)?;
        let (_, parsed) = X509Certificate::from_der(certificate.der())
            .map_err(|error| AuthorityError::Certificate(error.to_string()))?;
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(AuthorityError::Mismatch);
        }
        let issuer = Arc::new(Issuer::from_ca_cert_der(certificate.der(), key)?);
        Ok(Self {
            issuer,
            certificate,
        })
    }

    /// The certificate clients must trust: the bundle.
    pub fn certificate_pem(&self) -> &str {
        self.certificate.pem()
    }

    /// The key, to be kept in a safe place.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// When it holds.
    pub fn validity(&self) -> Validity {
        self.certificate.validity()
    }

    /// Signs a new leaf with a new key for `names`. It never outlives its CA.
    pub fn sign(
        &self,
        names: &Names,
        now: OffsetDateTime,
        life: Duration,
    ) -> Result<Leaf, AuthorityError> {
        let key = KeyPair::generate()?;
        let validity = Validity::starting(now, life).until_at_most(self.validity().not_after);

        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(names.first(), "");
        params.subject_alt_names = names.to_sans();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let serial = random_serial()?;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.not_before = validity.not_before;
        params.not_after = validity.not_after;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let due = spread(validity.renewal_due(life), life, serial[SERIAL_BYTES - 1]);
        Leaf::new(
            certificate.into(),
            &key,
            Tenure {
                issuer: self.certificate.clone(),
                validity,
                due,
            },
        )
    }
}

impl Ca for Authority {
    type Certificate = CaCertificate;

    fn certificate(&self) -> &CaCertificate {
        &self.certificate
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must never reach a log.
        f.debug_struct("Authority")
            .field("validity", &self.validity())
            .finish_non_exhaustive()
    }
}

/// A subject of one common name: `start`, shortened where it must be, and `end`.
fn common_name(start: &str, end: &str) -> DistinguishedName {
    let room = COMMON_NAME_MAX.saturating_sub(end.len());
    let start: String = start.chars().take(room).collect();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, format!("{start}{end}"));
    name
}

/// Up to a thirtieth of the life earlier: replicas that began together do not stay together.
fn spread(due: OffsetDateTime, life: Duration, random: u8) -> OffsetDateTime {
    due - life * i32::from(random) / (30 * i32::from(u8::MAX))
}

fn random_serial() -> Result<[u8; SERIAL_BYTES], AuthorityError> {
    let mut serial = [0; SERIAL_BYTES];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut serial)
        .map_err(|_| AuthorityError::Random)?;
    // A serial is a positive integer without a leading zero byte.
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(serial)
}
