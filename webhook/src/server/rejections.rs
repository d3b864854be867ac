//! Why a TLS handshake failed because of the client's certificate, for the log.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use runtime::tasks::chain;
use rustls::CertificateError;
use tokio::time::Instant;

/// Least time between two log lines about one kind of rejection: clients that are rejected again and
/// again must not fill the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What is wrong with a client's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rejection {
    /// The client sent none.
    NoCertificate,
    /// The certificate is valid, but has none of the allowed names.
    Name,
    /// The certificate is invalid, or no trusted CA has signed it.
    Certificate,
}

impl Rejection {
    /// The reason for which a handshake failed, with a text for the log; `None` if it failed for
    /// another reason than the client's certificate.
    pub(super) fn of(error: &io::Error) -> Option<(Self, String)> {
        match error.get_ref()?.downcast_ref::<rustls::Error>()? {
            rustls::Error::NoCertificatesPresented => {
                Some((Self::NoCertificate, "it shows no certificate".to_owned()))
            }
            rustls::Error::InvalidCertificate(CertificateError::Other(error)) => {
                Some((Self::Name, chain(error)))
            }
            rustls::Error::InvalidCertificate(error) => {
                Some((Self::Certificate, format!("its certificate: {error}")))
            }
            _ => None,
        }
    }
}

/// Rejections since the last log line, for each kind.
#[derive(Debug, Default)]
pub(super) struct RejectionCounter(Mutex<BTreeMap<Rejection, (u64, Option<Instant>)>>);

impl RejectionCounter {
    /// Counts one. Returns the number since the last log line if the next one is due.
    pub(super) fn count(&self, rejection: Rejection) -> Option<u64> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, logged) = counts.entry(rejection).or_default();
        *count += 1;
        if logged.is_some_and(|logged| logged.elapsed() < LOG_INTERVAL) {
            return None;
        }
        *logged = Some(Instant::now());
        Some(std::mem::take(count))
    }
}
