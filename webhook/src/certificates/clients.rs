//! The CAs that vouch for clients: a file that somebody else writes.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use certs::{Clients, ClientsError};
use runtime::tasks::chain;
use tokio::time::sleep;

use super::FailureLog;
use super::files::{FileError, read};
use crate::metrics::CertificateFault;

/// The file, and what it last had that could be used.
#[derive(Debug, Clone)]
pub struct ClientCa {
    path: PathBuf,
    pem: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is no bundle of CA certificates", path.display())]
    Clients { path: PathBuf, source: ClientsError },
}

impl ClientCa {
    /// Reads a file; what is told when it cannot be used is for whoever wrote the setting.
    pub fn read(path: &str) -> Result<Self, String> {
        let path = PathBuf::from(path);
        let pem = read(&path).map_err(|error| chain(&error))?;
        Clients::new(&pem, Vec::new()).map_err(|error| chain(&error))?;
        Ok(Self { path, pem })
    }

    /// The CAs.
    pub fn pem(&self) -> &[u8] {
        &self.pem
    }

    /// Has `clients` judged by what the file has, for ever. Polled by content, for the reason that
    /// certificates are; whatever is wrong, the last good CAs stay.
    pub async fn follow(mut self, clients: Clients, poll: Duration) -> Result<(), Infallible> {
        let mut log = FailureLog::default();
        loop {
            sleep(poll).await;
            match self.look(&clients) {
                Ok(true) => {
                    tracing::info!(file = %self.path.display(), "other CAs vouch for clients");
                    log.is_over();
                }
                Ok(false) => log.is_over(),
                Err(error) => log.tell(CertificateFault::ClientCa, &error),
            }
        }
    }

    /// Whether there were other CAs in it.
    fn look(&mut self, clients: &Clients) -> Result<bool, ReadError> {
        let pem = read(&self.path)?;
        if pem == self.pem {
            return Ok(false);
        }
        clients.replace(&pem).map_err(|source| ReadError::Clients {
            path: self.path.clone(),
            source,
        })?;
        self.pem = pem;
        Ok(true)
    }
}
