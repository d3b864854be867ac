//! How the certificates are: readiness, metrics, and one warning per failure.

use runtime::checks::Check;
use runtime::tasks::chain;

use crate::metrics::{self, CertificateFault};

/// The readiness conditions of the certificates.
#[derive(Debug)]
pub(super) struct Readiness {
    /// The presented certificate is valid now.
    pub(super) leaf: Check,
    /// Every bundle contains the issuer of the presented certificate.
    pub(super) bundle: Check,
}

/// Logs a warning for the first failure, and lines at debug level until a success.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    failing: bool,
}

impl FailureLog {
    pub(super) fn failed(&mut self, fault: CertificateFault, error: &dyn std::error::Error) {
        metrics::certificate_error(fault);
        let error = chain(error);
        if std::mem::replace(&mut self.failing, true) {
            tracing::debug!(error, "the certificates cannot be maintained yet");
        } else {
            tracing::warn!(error, "the certificates cannot be maintained, trying again");
        }
    }

    pub(super) fn succeeded(&mut self) {
        self.failing = false;
    }
}
