//! Troubles that last: attempts in growing pauses, and a word about each trouble, not each attempt.

use std::time::{Duration, Instant};

use kube::runtime::utils::Backoff;

/// The pause after a watch failed, and after each further failure twice that.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// No longer, so that a CRD or an API server that comes back is noticed while its user watches.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What was told last.
#[derive(Debug, Default)]
pub(crate) struct Trouble(Option<String>);

impl Trouble {
    /// Whether this is news.
    pub(crate) fn is_news(&mut self, error: &dyn std::error::Error) -> bool {
        let text = error.to_string();
        let news = self.0.as_ref() != Some(&text);
        self.0 = Some(text);
        news
    }

    /// It went well again.
    pub(crate) fn is_over(&mut self) {
        self.0 = None;
    }
}

/// Growing pauses between failures.
///
/// A watch tells that it starts a list before it knows whether it can, and that counts as a success
/// to whoever calls [`reset`](Backoff::reset): here only time does.
#[derive(Debug)]
pub(crate) struct Pause {
    next: Duration,
    last: Option<Instant>,
}

/// A failure after so long a time without one is a new one.
const PAUSE_FORGET: Duration = Duration::from_mins(1);

impl Default for Pause {
    fn default() -> Self {
        Self {
            next: PAUSE_MIN,
            last: None,
        }
    }
}

impl Iterator for Pause {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let quiet = self.last.replace(now).map(|last| now - last);
        if quiet.is_some_and(|quiet| quiet > PAUSE_FORGET) {
            self.next = PAUSE_MIN;
        }
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_MAX);
        Some(pause)
    }
}

impl Backoff for Pause {
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_trouble_is_news_once_until_it_is_over() {
        let mut trouble = Trouble::default();
        let refused = std::io::Error::other("refused");
        let forbidden = std::io::Error::other("forbidden");
        assert!(trouble.is_news(&refused));
        assert!(!trouble.is_news(&refused));
        assert!(trouble.is_news(&forbidden));
        trouble.is_over();
        assert!(trouble.is_news(&forbidden));
    }
}
