//! The content of an image on its way to the host: counted, digested, and not slower than it may be.

use std::io::{Error, ErrorKind, Read};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use super::fetches::Progress;
use super::names::hex;
use crate::guard::Guard;

/// How fast a server has to send. Only the time of waiting for it counts, not that of writing to the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinimumRate {
    /// Time of waiting after which the bytes are counted.
    pub(super) window: Duration,
    /// Fewest bytes in that time.
    pub(super) least: u64,
}

impl Default for MinimumRate {
    /// 64 KiB a second: an image of 2 GiB takes nine hours, less than the limit of a fetch.
    fn default() -> Self {
        Self {
            window: Duration::from_mins(1),
            least: 60 * (64 << 10),
        }
    }
}

/// Counts and digests what is read. The guard is asked with every chunk.
pub(super) struct Reader<'a, R> {
    body: R,
    rate: MinimumRate,
    progress: &'a Progress,
    guard: &'a Guard,
    digest: Sha256,
    /// Time of waiting and bytes in the current window.
    waited: Duration,
    received: u64,
    error: Option<Error>,
}

impl<'a, R: Read> Reader<'a, R> {
    pub(super) fn new(
        body: R,
        rate: MinimumRate,
        progress: &'a Progress,
        guard: &'a Guard,
    ) -> Self {
        Self {
            body,
            rate,
            progress,
            guard,
            digest: Sha256::new(),
            waited: Duration::ZERO,
            received: 0,
            error: None,
        }
    }

    /// Why reading failed, about the image that is shown by this name.
    pub(super) fn failure(&self, shown: &str) -> Option<String> {
        let error = self.error.as_ref()?;
        Some(format!("{shown} was interrupted: {error}"))
    }

    /// The digest of all that was read, in hexadecimal.
    pub(super) fn digest(self) -> String {
        hex(self.digest.finalize().as_slice())
    }

    fn next(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        let cancelled = |error: crate::access::AccessError| Error::other(error.to_string());
        self.guard.check().map_err(cancelled)?;
        let start = Instant::now();
        let count = self.body.read(buffer)?;
        self.waited += start.elapsed();
        let bytes = u64::try_from(count).unwrap_or_default();
        self.received += bytes;
        if self.waited >= self.rate.window {
            if self.received < self.rate.least {
                return Err(Error::other(format!(
                    "the server sent {} bytes in {} s, and at least {} are expected; use a faster server",
                    self.received,
                    self.waited.as_secs(),
                    self.rate.least
                )));
            }
            (self.waited, self.received) = (Duration::ZERO, 0);
        }
        self.digest.update(&buffer[..count]);
        self.progress.done.fetch_add(bytes, Ordering::Relaxed);
        Ok(count)
    }
}

impl<R: Read> Read for Reader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        self.next(buffer).map_err(|error| {
            let kind = match error.kind() {
                // `read_to_end` would try again.
                ErrorKind::Interrupted => ErrorKind::Other,
                kind => kind,
            };
            self.error = Some(error);
            kind.into()
        })
    }
}

/// The first `limit` bytes, or all if there are fewer.
pub(super) fn read_head(source: &mut impl Read, limit: usize) -> Result<Vec<u8>, Error> {
    let mut head = Vec::with_capacity(limit);
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    source.take(limit).read_to_end(&mut head)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment;

    /// Sends a byte after each pause.
    struct SlowReader(Duration);

    impl Read for SlowReader {
        fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
            let until = Instant::now() + self.0;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            buffer[0] = 7;
            Ok(1)
        }
    }

    #[test]
    fn a_server_that_sends_too_slowly_is_given_up_and_one_that_is_fast_enough_is_not() {
        let (progress, guard) = (Progress::default(), environment::guard());
        let rate = |least| MinimumRate {
            window: Duration::from_millis(5),
            least,
        };
        let trickle = || SlowReader(Duration::from_micros(100));
        let mut slow = Reader::new(trickle(), rate(1 << 20), &progress, &guard);
        read_head(&mut slow, 1 << 20).unwrap_err();
        let why = slow.failure("https://host/x").unwrap();
        assert!(why.contains("use a faster server"), "{why}");
        let mut fast = Reader::new(trickle(), rate(1), &progress, &guard);
        assert_eq!(read_head(&mut fast, 200).unwrap(), [7; 200]);
        assert_eq!(fast.failure(""), None);
    }
}
