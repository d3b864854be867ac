//! A CA with its private key: generated, read back, and signing leaf certificates.

use std::fmt;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SerialNumber,
};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::certificate::CaCertificate;
use crate::error::CaError;
use crate::leaf::{Leaf, LeafInfo, ServerNames};
use crate::validity::Validity;

/// Default lifetime of a CA. Long enough that a rotation is rare, short enough that one happens
/// while the people who installed the webhook are still there.
pub const CA_LIFETIME: Duration = Duration::days(365);

/// 127 random bits: unique without a counter, and below the 20 bytes that RFC 5280 allows.
const SERIAL_BYTES: usize = 16;

/// Upper bound of a common name in X.520, in characters.
const COMMON_NAME_MAX: usize = 64;

/// A CA that can sign: its certificate is that of a CA, and its key matches the certificate.
///
/// Whether it is valid *now* depends on [`validity`](Self::validity) and the time. Clones share the
/// key.
#[derive(Clone)]
pub struct Ca {
    issuer: Arc<Issuer<'static, KeyPair>>,
    certificate: CaCertificate,
}

impl Ca {
    /// Generates a CA with an ECDSA P-256 key. The common name is `name`, the date and three random
    /// bytes, so that no two CAs have the same name: a client that trusts two CAs of one name may
    /// verify with the wrong one.
    pub fn generate(name: &str, now: OffsetDateTime, lifetime: Duration) -> Result<Self, CaError> {
        let key = KeyPair::generate()?;
        let serial = random_serial()?;
        let suffix = format!(
            " {} {:02x}{:02x}{:02x}",
            now.date(),
            serial[1],
            serial[2],
            serial[3]
        );
        let validity = Validity::starting(now, lifetime);

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

    /// Reads what [`certificate_pem`](Self::certificate_pem) and [`key_pem`](Self::key_pem)
    /// returned, or another content in their place.
    pub fn parse(certificate: &str, key: &str) -> Result<Self, CaError> {
        let certificate = CaCertificate::parse(certificate)?;
        let key = KeyPair::from_pem(key).map_err(CaError::Key)?;
        let (_, parsed) = X509Certificate::from_der(certificate.der())
            .map_err(|error| CaError::Certificate(error.to_string()))?;
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(CaError::Mismatch);
        }
        let issuer = Arc::new(Issuer::from_ca_cert_der(certificate.der(), key)?);
        Ok(Self {
            issuer,
            certificate,
        })
    }

    /// The certificate, without the key: what clients have to trust.
    pub fn certificate(&self) -> &CaCertificate {
        &self.certificate
    }

    /// The certificate as PEM.
    pub fn certificate_pem(&self) -> &str {
        self.certificate.pem()
    }

    /// The private key as PEM. It may be stored in a Secret and must not reach a log.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// When the certificate is valid.
    pub fn validity(&self) -> Validity {
        self.certificate.validity()
    }

    /// Signs a new leaf certificate with a new key for `names`. It never ends after the CA.
    pub fn sign(
        &self,
        names: &ServerNames,
        now: OffsetDateTime,
        lifetime: Duration,
    ) -> Result<Leaf, CaError> {
        let key = KeyPair::generate()?;
        let validity = Validity::starting(now, lifetime).ending_by(self.validity().not_after);

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
        let renew_at = jitter(
            validity.renewal_due(lifetime),
            lifetime,
            serial[SERIAL_BYTES - 1],
        );
        Leaf::new(
            certificate.into(),
            &key,
            LeafInfo {
                issuer: self.certificate.clone(),
                validity,
                renew_at,
            },
        )
    }
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must never reach a log.
        f.debug_struct("Ca")
            .field("validity", &self.validity())
            .finish_non_exhaustive()
    }
}

/// A subject with one common name: `start`, shortened if necessary, followed by `end`.
fn common_name(start: &str, end: &str) -> DistinguishedName {
    let room = COMMON_NAME_MAX.saturating_sub(end.len());
    let start: String = start.chars().take(room).collect();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, format!("{start}{end}"));
    name
}

/// Moves the renewal forward by up to a thirtieth of the lifetime, so that replicas that started
/// together do not renew together.
fn jitter(renew_at: OffsetDateTime, lifetime: Duration, random: u8) -> OffsetDateTime {
    renew_at - lifetime * i32::from(random) / (30 * i32::from(u8::MAX))
}

fn random_serial() -> Result<[u8; SERIAL_BYTES], CaError> {
    let mut serial = [0; SERIAL_BYTES];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut serial)
        .map_err(|_| CaError::Random)?;
    // A serial number is a positive integer without a leading zero byte.
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(serial)
}
