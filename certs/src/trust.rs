//! Which CA certificates every webhook configuration contains, and since when.

use time::Duration;

use crate::certificate::CaCertificate;

/// Observes the bundles of all client configurations.
///
/// Times are those of a monotonic clock, and kept in memory only: a replica that starts waits for
/// the whole propagation time again.
#[derive(Debug, Clone, Default)]
pub struct TrustTracker {
    /// Certificates that every bundle contains now, with the time since which they have without
    /// interruption.
    since: Vec<(CaCertificate, Duration)>,
    /// Certificates that every bundle contained when a new one was last observed. Those of one
    /// rotation, not the whole history.
    ever: Vec<CaCertificate>,
}

impl TrustTracker {
    /// Records the bundles of all client configurations as seen at `uptime`.
    pub fn observe(&mut self, bundles: &[Vec<CaCertificate>], uptime: Duration) {
        let in_all = |certificate: &CaCertificate| {
            let mut bundles = bundles.iter();
            bundles.all(|bundle| bundle.contains(certificate))
        };
        let first = bundles.first().map_or(&[][..], Vec::as_slice);
        let common: Vec<_> = first.iter().filter(|it| in_all(it)).collect();
        self.since.retain(|(it, _)| common.contains(&it));
        for certificate in common {
            if !self.is_trusted(certificate) {
                self.since.push((certificate.clone(), uptime));
            }
        }
        if self.since.iter().any(|(it, _)| !self.ever.contains(it)) {
            self.ever = self.since.iter().map(|(it, _)| it.clone()).collect();
        }
    }

    /// Records that a live read found the certificate in every bundle, whatever the watches report.
    pub(crate) fn confirm(&mut self, certificate: &CaCertificate) {
        self.ever.push(certificate.clone());
    }

    /// Whether every bundle contains the certificate now.
    pub fn is_trusted(&self, certificate: &CaCertificate) -> bool {
        self.since.iter().any(|(it, _)| it == certificate)
    }

    /// Whether every bundle contained the certificate when a new one was last observed.
    pub fn was_trusted(&self, certificate: &CaCertificate) -> bool {
        self.ever.contains(certificate)
    }

    /// For how long every bundle has contained the certificate; `None` if one does not.
    pub fn trusted_for(&self, certificate: &CaCertificate, uptime: Duration) -> Option<Duration> {
        let found = self.since.iter().find(|(it, _)| it == certificate);
        found.map(|(_, since)| uptime - *since)
    }
}
