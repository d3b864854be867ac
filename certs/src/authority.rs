//! The CA: made, read back, and signing.

use std::fmt;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::leaf::{LEAF_LIFE, Leaf, Names};
use crate::stored::Stored;
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
/// Whether it holds *now* is a question of [`validity`](Self::validity) and the clock.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    stored: Stored,
    validity: Validity,
}

impl Authority {
    /// Makes a new CA, ECDSA P-256. Its name is `name` with the day and a random part, distinct per
    /// generation: clients that find two trusted CAs of one name may pick the wrong one.
    pub fn generate(name: &str, now: OffsetDateTime) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let serial = random_serial()?;
        let suffix = format!(
            " {} {:02x}{:02x}{:02x}",
            now.date(),
            serial[1],
            serial[2],
            serial[3]
        );
        let validity = Validity::starting(now, AUTHORITY_LIFE);

        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name, &suffix);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.not_before = validity.not_before;
        params.not_after = validity.not_after;
        let certificate = params.self_signed(&key)?;
        Self::parse(&Stored {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Reads back what [`stored`](Self::stored) gave, or what somebody put in its place.
    pub fn parse(stored: &Stored) -> Result<Self, AuthorityError> {
        let certificate = CertificateDer::from_pem_slice(stored.certificate.as_bytes())
            .map_err(|error| AuthorityError::Certificate(error.to_string()))?;
        let (rest, parsed) = X509Certificate::from_der(&certificate)
            .map_err(|error| AuthorityError::Certificate(error.to_string()))?;
        if !rest.is_empty() {
            return Err(AuthorityError::Certificate("bytes follow it".to_owned()));
        }
        if !parsed.is_ca() {
            return Err(AuthorityError::NotAnAuthority);
        }
        let key = KeyPair::from_pem(&stored.key).map_err(AuthorityError::Key)?;
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(AuthorityError::Mismatch);
        }
        let validity = Validity {
            not_before: parsed.validity().not_before.to_datetime(),
            not_after: parsed.validity().not_after.to_datetime(),
        };
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        Ok(Self {
            issuer,
            certificate,
            stored: stored.clone(),
            validity,
        })
    }

    /// What to keep, so that another process can [`parse`](Self::parse) it.
    pub fn stored(&self) -> &Stored {
        &self.stored
    }

    /// The certificate clients must trust: the bundle.
    pub fn certificate_pem(&self) -> &str {
        &self.stored.certificate
    }

    /// When it holds.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// Whether it signed `leaf`.
    pub fn signed(&self, leaf: &Leaf) -> bool {
        leaf.issuer == self.certificate
    }

    /// Until when a leaf signed at `now` would hold: never beyond its CA.
    pub(crate) fn leaf_validity(&self, now: OffsetDateTime) -> Validity {
        Validity::starting(now, LEAF_LIFE).until_at_most(self.validity.not_after)
    }

    /// Signs a new leaf with a new key for `names`.
    pub fn sign(&self, names: &Names, now: OffsetDateTime) -> Result<Leaf, AuthorityError> {
        let key = KeyPair::generate()?;
        let validity = self.leaf_validity(now);

        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(names.first(), "");
        params.subject_alt_names = names.to_sans();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from_slice(&random_serial()?));
        params.not_before = validity.not_before;
        params.not_after = validity.not_after;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Leaf::new(certificate.into(), &key, validity, self.certificate.clone())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must never reach a log.
        f.debug_struct("Authority")
            .field("validity", &self.validity)
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
