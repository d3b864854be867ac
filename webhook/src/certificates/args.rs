//! Settings of the certificates.

use std::path::PathBuf;

use certs::{Lives, LivesError};
use clap::Args;
use common::runtime::settings::GoDuration;

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
