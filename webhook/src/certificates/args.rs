//! Settings of the certificates.

use std::path::PathBuf;

use certs::{Clients, ClientsError, Lives, LivesError};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use runtime::settings::GoDuration;

use super::ClientCa;
use crate::server::TlsVersion;

/// Where certificates come from, and how long they last.
#[derive(Debug, Clone, Args)]
pub struct CertificateArgs {
    /// Folder with tls.crt and tls.key, such as a mounted Secret of cert-manager. Without it the
    /// program makes its own CA and certificates, and keeps caBundle right.
    #[arg(long, env = "TLS_CERT_DIR", value_name = "FOLDER")]
    pub tls_cert_dir: Option<PathBuf>,

    /// How long a CA of one's own holds; the next one takes over in its last third.
    #[arg(long, env = "CA_LIFE", default_value = "8760h")]
    pub ca_life: GoDuration,

    /// How long a certificate of one's own holds; it is renewed in its last third.
    #[arg(long, env = "LEAF_LIFE", default_value = "168h")]
    pub leaf_life: GoDuration,

    /// How long a new CA is known to every API server before it signs.
    #[arg(long, env = "CA_PROPAGATION", default_value = "5m")]
    pub ca_propagation: GoDuration,

    /// How often certificates are looked at when nothing happens.
    #[arg(long, env = "CERTIFICATE_POLL", default_value = "10s")]
    pub certificate_poll: GoDuration,

    /// Oldest version of TLS that is spoken.
    #[arg(long, env = "TLS_MIN_VERSION", default_value = "1.3")]
    pub tls_min_version: TlsVersion,

    /// CA certificates: only who shows a certificate of one of them may ask for reviews. Read again
    /// when it changes. Health and metrics are asked for elsewhere.
    #[arg(long, env = "CLIENT_CA", value_name = "FILE", value_parser = ClientCa::read)]
    pub client_ca: Option<ClientCa>,

    /// Who of those may ask: common name or DNS name of the certificate that API servers show. May be
    /// repeated; without it, everybody whom the CA vouches for.
    #[arg(long = "client-cn", env = "CLIENT_CN", value_name = "NAME", value_delimiter = ',', requires = "client_ca", value_parser = NonEmptyStringValueParser::new())]
    pub client_cns: Vec<String>,
}

/// Why the settings do not fit together.
#[derive(Debug, thiserror::Error)]
pub enum CertificateArgsError {
    /// The lives among themselves.
    #[error("--ca-life, --leaf-life and --ca-propagation do not fit together")]
    Lives(#[from] LivesError),
    /// A failed renewal must be tried again before it matters.
    #[error("--certificate-poll must be from 100ms to a twelfth of --leaf-life, which is {0}")]
    Poll(GoDuration),
}

impl CertificateArgs {
    /// Who may ask, unless everybody may.
    pub fn clients(&self) -> Result<Option<Clients>, ClientsError> {
        let judge = |ca: &ClientCa| Clients::new(ca.pem(), self.client_cns.clone());
        self.client_ca.as_ref().map(judge).transpose()
    }

    /// The lives, which fit together and to the looks at them.
    pub fn lives(&self) -> Result<Lives, CertificateArgsError> {
        // No GoDuration is longer than the longest of these.
        let span = |duration: GoDuration| {
            time::Duration::try_from(duration.0).unwrap_or(time::Duration::MAX)
        };
        let lives = Lives::new(
            span(self.ca_life),
            span(self.leaf_life),
            span(self.ca_propagation),
        )?;
        let most = self.leaf_life.0 / 12;
        if (std::time::Duration::from_millis(100)..=most).contains(&self.certificate_poll.0) {
            Ok(lives)
        } else {
            Err(CertificateArgsError::Poll(GoDuration(most)))
        }
    }
}
