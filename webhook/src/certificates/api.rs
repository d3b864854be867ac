//! Calls to the API server about certificates, each with a deadline.

use std::time::Duration;

use certs::CaError;
use tokio::time::timeout;

use crate::metrics::CertificateFault;

/// Field manager of the Secret and the bundles.
pub(super) const FIELD_MANAGER: &str = "machine-webhook";
/// Deadline of one call. The client has none of its own.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a pass could not be completed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PassError {
    /// The API server refused the call or failed.
    #[error("cannot {call}")]
    Api {
        call: &'static str,
        source: Box<kube::Error>,
    },
    /// The API server did not answer before the deadline.
    #[error("cannot {0}: no answer in time")]
    Timeout(&'static str),
    /// No CA or leaf could be generated.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The manifests are not installed, or the settings name another configuration.
    #[error("the {kind} {name:?} does not exist")]
    NoConfiguration { kind: &'static str, name: String },
    /// The configuration has no webhook whose bundle could be written.
    #[error("the {kind} {name:?} has no webhooks")]
    NoWebhooks { kind: &'static str, name: String },
}

impl PassError {
    /// Whether the object changed or disappeared after it was read. A watch will report it.
    pub(super) fn is_conflict(&self) -> bool {
        match self {
            Self::Api { source, .. } => {
                matches!(&**source, kube::Error::Api(status) if matches!(status.code, 404 | 409))
            }
            _ => false,
        }
    }

    pub(super) fn fault(&self) -> CertificateFault {
        match self {
            Self::Api { .. } | Self::Timeout(_) => CertificateFault::Api,
            Self::Ca(_) => CertificateFault::Signing,
            Self::NoConfiguration { .. } | Self::NoWebhooks { .. } => {
                CertificateFault::Configuration
            }
        }
    }
}

/// Makes one call; `name` completes the sentence "cannot …".
pub(super) async fn call<T>(
    name: &'static str,
    future: impl Future<Output = kube::Result<T>>,
) -> Result<T, PassError> {
    match timeout(CALL_TIMEOUT, future).await {
        Ok(result) => result.map_err(|source| PassError::Api {
            call: name,
            source: Box::new(source),
        }),
        Err(_) => Err(PassError::Timeout(name)),
    }
}
