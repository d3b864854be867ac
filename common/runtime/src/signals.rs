//! The signals that end the process: SIGTERM from Kubernetes and SIGINT from a terminal.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives the signals that end the process.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs handlers for both signals. From now on neither ends the process directly.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its name. The first one should shut the process down
    /// gracefully, the second one at once.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
