//! Troubles that last: attempts in growing pauses, and a word about each trouble, not each attempt.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use tokio::time::Instant;

use super::tasks::chain;

/// The pause after a watch failed, and after each further failure twice that.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// No longer, so that a CRD or an API server that comes back is noticed while its user watches; one
/// question a second is no load.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Something that fails again and again.
#[derive(Debug, Default)]
pub struct Trouble(Option<Told>);

#[derive(Debug)]
struct Told {
    what: String,
    began: Instant,
}

impl Trouble {
    /// It failed. Tells whether this is news.
    pub fn is_news(&mut self, error: &dyn std::error::Error) -> bool {
        let what = chain(error);
        let before = self.0.take();
        let news = before.as_ref().is_none_or(|before| before.what != what);
        let began = before.map_or_else(Instant::now, |before| before.began);
        self.0 = Some(Told { what, began });
        news
    }

    /// It went well again.
    pub fn is_over(&mut self) {
        self.0 = None;
    }

    /// How long it has not gone well.
    pub fn lasts(&self) -> Duration {
        let began = self.0.as_ref().map(|told| told.began);
        began.map_or(Duration::ZERO, |began| began.elapsed())
    }
}

/// Growing pauses between failures.
///
/// A watch tells that it starts a list before it knows whether it can, and that counts as a success
/// to whoever calls [`reset`](Backoff::reset): here only time does.
#[derive(Debug)]
pub struct Pause {
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

impl Pause {
    /// The pause after one more failure.
    pub fn grow(&mut self) -> Duration {
        let now = Instant::now();
        let quiet = self.last.replace(now).map(|last| now - last);
        if quiet.is_some_and(|quiet| quiet > PAUSE_FORGET) {
            self.next = PAUSE_MIN;
        }
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

impl Iterator for Pause {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.grow())
    }
}

impl Backoff for Pause {
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

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

    #[tokio::test(start_paused = true)]
    async fn a_trouble_lasts_from_its_first_word_to_its_end() {
        let mut trouble = Trouble::default();
        advance(Duration::from_secs(9)).await;
        assert_eq!(trouble.lasts(), Duration::ZERO);
        for what in ["refused", "forbidden"] {
            trouble.is_news(&std::io::Error::other(what));
            advance(Duration::from_secs(2)).await;
        }
        assert_eq!(trouble.lasts(), Duration::from_secs(4));
        trouble.is_over();
        assert_eq!(trouble.lasts(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_their_limit_and_begin_anew_after_a_quiet_time() {
        let mut pause = Pause::default();
        let mut grown = Vec::new();
        for _ in 0..5 {
            let next = pause.next().unwrap();
            grown.push(next.as_millis());
            // What a watch that begins a list counts as its success.
            pause.reset();
            advance(next).await;
        }
        assert_eq!(grown, [250, 500, 1_000, 1_000, 1_000]);
        advance(PAUSE_FORGET + Duration::from_secs(1)).await;
        assert_eq!(pause.next(), Some(PAUSE_MIN));
    }
}
