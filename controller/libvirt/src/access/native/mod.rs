//! Connections of libvirt's library, over the crate `virt`.
//!
//! ```text
//! open ─▶ event loop (once, a thread) ─▶ credentials into files ─▶ connect ─▶ files away ─▶ keepalive
//! ```
//! Without keepalive a call waits as long as the daemon is stuck, and without the event loop there is no
//! keepalive.

mod connection;
mod content;
mod dhcp;
mod raw;
mod read;

use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use virt::connect::Connect;
use virt::error::{Error, clear_error_callback};
use virt::event::{event_register_default_impl, event_run_default_impl};

use self::connection::Native;
use super::{AccessError, Connection, Connector, Result, Target};

/// Seconds between two keepalive messages to a silent host, and how many may stay unanswered: the connection to a
/// frozen host is closed after 20 s.
const KEEPALIVE: Keepalive = Keepalive {
    interval: 5,
    count: 3,
};

/// Pause between two attempts of an event loop that fails.
const EVENT_PAUSE: Duration = Duration::from_secs(1);

/// Opens connections with libvirt's library.
#[derive(Debug)]
pub(crate) struct Libvirt {
    keepalive: Keepalive,
}

#[derive(Debug, Clone, Copy)]
struct Keepalive {
    interval: i32,
    count: u32,
}

impl Libvirt {
    pub(crate) fn new() -> Self {
        Self {
            keepalive: KEEPALIVE,
        }
    }

    /// A connector that closes the connection to a silent host after two seconds.
    #[cfg(test)]
    pub(super) fn with_short_keepalive() -> Self {
        Self {
            keepalive: Keepalive {
                interval: 1,
                count: 1,
            },
        }
    }
}

impl Connector for Libvirt {
    fn open(&self, target: &Target) -> Result<Box<dyn Connection>> {
        events()?;
        let connection = target.open_with_credentials(|uri| {
            // The next attempt may succeed, whatever the cause was.
            Connect::open(Some(uri)).map_err(|error| disconnected(error.message()))
        })?;
        match connection.set_keep_alive(self.keepalive.interval, self.keepalive.count) {
            Ok(()) => {}
            // A driver within this process cannot freeze without the process, so it needs no keepalive.
            Err(error) if AccessError::from(error.clone()).kind() == "Unsupported" => {}
            Err(error) => return Err(disconnected(error.message())),
        }
        Ok(Box::new(Native::new(connection)))
    }
}

fn disconnected(message: &str) -> AccessError {
    AccessError::Disconnected(message.to_owned())
}

impl From<Error> for AccessError {
    fn from(error: Error) -> Self {
        let message = error.message().to_owned();
        Self::of(error.code().to_raw(), error.domain().to_raw(), message)
    }
}

/// Starts libvirt's event loop, once for the process and before the first connection.
fn events() -> Result<()> {
    static STARTED: OnceLock<Result<()>> = OnceLock::new();
    STARTED.get_or_init(start_events).clone()
}

fn start_events() -> Result<()> {
    // By default libvirt prints every error, the expected ones too.
    clear_error_callback();
    event_register_default_impl()?;
    let run = || loop {
        if let Err(error) = event_run_default_impl() {
            tracing::error!(%error, "libvirt's event loop");
            thread::sleep(EVENT_PAUSE);
        }
    };
    match thread::Builder::new()
        .name("libvirt-events".into())
        .spawn(run)
    {
        Ok(_) => Ok(()),
        Err(error) => Err(AccessError::Unavailable(format!(
            "no thread for libvirt's events: {error}"
        ))),
    }
}
