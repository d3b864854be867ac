//! Settings of the certificates.

use std::path::PathBuf;

use certs::{ClientVerifier, ClientVerifierError, Lifetimes, LifetimesError};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use runtime::settings::GoDuration;

use super::client_ca::ClientCa;
use crate::server::TlsVersion;

/// Where certificates come from, and how long they last.
#[derive(Debug, Clone, Args)]
pub struct CertificateArgs {
    /// Folder with tls.crt and tls.key, such as a mounted Secret of cert-manager. Without it the
    /// program generates its own CA and certificates, and writes caBundle.
    #[arg(long, env = "TLS_CERT_DIR", value_name = "FOLDER")]
    pub tls_cert_dir: Option<PathBuf>,

    /// Lifetime of a generated CA. The next one replaces it in its last third.
    #[arg(long, env = "CA_LIFE", default_value = "8760h")]
    pub ca_life: GoDuration,

    /// Lifetime of a generated certificate. It is renewed in its last third.
    #[arg(long, env = "LEAF_LIFE", default_value = "168h")]
    pub leaf_life: GoDuration,

    /// How long every caBundle contains a new CA before that CA signs.
    #[arg(long, env = "CA_PROPAGATION", default_value = "5m")]
    pub ca_propagation: GoDuration,

    /// How often certificates are checked when no watch reports a change.
    #[arg(long, env = "CERTIFICATE_POLL", default_value = "10s")]
    pub certificate_poll: GoDuration,

    /// Oldest version of TLS that is accepted.
    #[arg(long, env = "TLS_MIN_VERSION", default_value = "1.3")]
    pub tls_min_version: TlsVersion,

    /// File with CA certificates. Only clients with a certificate of one of these CAs may connect. The
    /// file is read again when it changes. Health and metrics have a port of their own.
    #[arg(long, env = "CLIENT_CA", value_name = "FILE", value_parser = ClientCa::read)]
    pub client_ca: Option<ClientCa>,

    /// Common name or DNS name that a client certificate must have. May be repeated. Without it, every
    /// certificate of the CAs is accepted.
    #[arg(long = "client-cn", env = "CLIENT_CN", value_name = "NAME", value_delimiter = ',', requires = "client_ca", value_parser = NonEmptyStringValueParser::new())]
    pub client_cns: Vec<String>,
}

/// Why the settings do not fit together.
#[derive(Debug, thiserror::Error)]
pub enum CertificateArgsError {
    /// The lifetimes leave no room for a rotation.
    #[error("--ca-life, --leaf-life and --ca-propagation do not fit together")]
    Lifetimes(#[from] LifetimesError),
    /// A failed renewal must be retried several times before the leaf expires.
    #[error("--certificate-poll must be from 100ms to a twelfth of --leaf-life, which is {0}")]
    Poll(GoDuration),
}

impl CertificateArgs {
    /// Verifies client certificates; `None`: every client may connect.
    pub fn client_verifier(&self) -> Result<Option<ClientVerifier>, ClientVerifierError> {
        let verifier = |ca: &ClientCa| ClientVerifier::new(ca.pem(), self.client_cns.clone());
        self.client_ca.as_ref().map(verifier).transpose()
    }

    /// The lifetimes, if they fit together and the poll interval fits the leaf's lifetime.
    pub fn lifetimes(&self) -> Result<Lifetimes, CertificateArgsError> {
        // The longest GoDuration is shorter than `time::Duration::MAX`.
        let span = |duration: GoDuration| {
            time::Duration::try_from(duration.0).unwrap_or(time::Duration::MAX)
        };
        let lifetimes = Lifetimes::new(
            span(self.ca_life),
            span(self.leaf_life),
            span(self.ca_propagation),
        )?;
        let poll_max = self.leaf_life.0 / 12;
        if (std::time::Duration::from_millis(100)..=poll_max).contains(&self.certificate_poll.0) {
            Ok(lifetimes)
        } else {
            Err(CertificateArgsError::Poll(GoDuration(poll_max)))
        }
    }
}
