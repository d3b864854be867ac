//! What clients have been seen to trust, and for how long.

use time::Duration;

/// Certificates that every client configuration has, each with the moment since which it was seen
/// there without a break. By a clock that nobody sets, and in memory alone: whoever starts anew
/// waits anew.
#[derive(Debug, Clone)]
pub struct Trust<T> {
    since: Vec<(T, Duration)>,
    ever: Vec<T>,
}

impl<T> Default for Trust<T> {
    fn default() -> Self {
        Self {
            since: Vec::new(),
            ever: Vec::new(),
        }
    }
}

impl<T: Clone + PartialEq> Trust<T> {
    /// Looks at the bundles of all client configurations at `uptime`.
    pub fn observe(&mut self, bundles: &[Vec<T>], uptime: Duration) {
        let by_all = |certificate: &T| bundles.iter().all(|bundle| bundle.contains(certificate));
        let first = bundles.first().map_or(&[][..], Vec::as_slice);
        let common: Vec<_> = first.iter().filter(|it| by_all(it)).collect();
        self.since.retain(|(it, _)| common.contains(&it));
        for certificate in common {
            if !self.has(certificate) {
                self.since.push((certificate.clone(), uptime));
            }
        }
        // Those of a rotation, and no more: this is about now, not about history.
        if self.since.iter().any(|(it, _)| !self.ever.contains(it)) {
            self.ever = self.since.iter().map(|(it, _)| it.clone()).collect();
        }
    }

    /// Everybody does trust it, whatever was heard.
    pub(crate) fn confirm(&mut self, certificate: &T) {
        self.ever.push(certificate.clone());
    }

    /// Whether everybody trusts it.
    pub fn has(&self, certificate: &T) -> bool {
        self.since.iter().any(|(it, _)| it == certificate)
    }

    /// Whether everybody did when something new was last trusted.
    pub fn ever(&self, certificate: &T) -> bool {
        self.ever.contains(certificate)
    }

    /// For how long everybody has trusted it.
    pub fn lasts(&self, certificate: &T, uptime: Duration) -> Option<Duration> {
        let found = self.since.iter().find(|(it, _)| it == certificate);
        found.map(|(_, since)| uptime - *since)
    }
}
