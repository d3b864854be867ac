//! The file with the CAs whose client certificates are accepted. It is only read.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use certs::{ClientVerifier, ClientVerifierError};
use runtime::tasks::chain;
use tokio::time::sleep;

use super::files::{FileError, read};
use super::status::FailureLog;
use crate::metrics::CertificateFault;

/// The file and its last usable content.
#[derive(Debug, Clone)]
pub struct ClientCa {
    path: PathBuf,
    pem: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is not a bundle of CA certificates", path.display())]
    NotABundle {
        path: PathBuf,
        source: ClientVerifierError,
    },
}

impl ClientCa {
    /// Reads the file that a setting names. The error is for the person who wrote the setting.
    pub fn read(path: &str) -> Result<Self, String> {
        let path = PathBuf::from(path);
        let pem = read(&path).map_err(|error| chain(&error))?;
        ClientVerifier::new(&pem, Vec::new()).map_err(|error| chain(&error))?;
        Ok(Self { path, pem })
    }

    /// The CA certificates as PEM.
    pub fn pem(&self) -> &[u8] {
        &self.pem
    }

    /// Updates `verifier` when the content of the file changes, for ever. The content is polled for the
    /// reason given in [`files`](super::files). If the new content is unusable, the last usable CAs stay.
    pub async fn follow(
        mut self,
        verifier: ClientVerifier,
        poll: Duration,
    ) -> Result<(), Infallible> {
        let mut log = FailureLog::default();
        loop {
            sleep(poll).await;
            match self.update(&verifier) {
                Ok(true) => {
                    tracing::info!(file = %self.path.display(), "replaced the CAs of clients");
                    log.succeeded();
                }
                Ok(false) => log.succeeded(),
                Err(error) => log.failed(CertificateFault::ClientCa, &error),
            }
        }
    }

    /// Reads the file. Returns whether its content has changed.
    fn update(&mut self, verifier: &ClientVerifier) -> Result<bool, ReadError> {
        let pem = read(&self.path)?;
        if pem == self.pem {
            return Ok(false);
        }
        verifier
            .replace(&pem)
            .map_err(|source| ReadError::NotABundle {
                path: self.path.clone(),
                source,
            })?;
        self.pem = pem;
        Ok(true)
    }
}
