//! The state as the data of a Secret.
//!
//! ```text
//!  ca.crt       ca.key        current CA; all that releases without rotation store
//!  ca-next.crt  ca-next.key   next CA; both or neither
//!  ca-old.crt   since         old certificates, one or more; start of the overlap, RFC 3339
//!  phase                      for people; derived from the other keys
//! ```

use std::collections::BTreeMap;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::ca::Ca;
use crate::certificate::{CaCertificate, bundle_pem};
use crate::error::CaError;
use crate::state::State;

const CURRENT: KeyPairKeys = KeyPairKeys("ca.crt", "ca.key");
const NEXT: KeyPairKeys = KeyPairKeys("ca-next.crt", "ca-next.key");
const OLD: &str = "ca-old.crt";
const SINCE: &str = "since";
const PHASE: &str = "phase";

/// The data of a Secret: values by key.
pub type SecretData = BTreeMap<String, Vec<u8>>;

/// What a read of the Secret found.
#[derive(Debug, Clone)]
pub enum StoredState {
    /// A complete state.
    Intact(State),
    /// No Secret, or a damaged one.
    Lost {
        /// What is wrong, for the log and the event.
        reason: String,
        /// The state that the readable part amounts to, if it includes a CA.
        remainder: Option<State>,
    },
}

/// The keys of the Secret that hold a CA's certificate and its private key.
struct KeyPairKeys(&'static str, &'static str);

/// What is wrong with the Secret.
#[derive(Debug, thiserror::Error)]
enum SecretParseError {
    #[error("{0}: {1}")]
    Ca(&'static str, #[source] CaError),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    #[error("{SINCE} is not an RFC 3339 time")]
    Since,
}

impl StoredState {
    /// Parses what [`State::secret_data`] wrote, or an edited form of it; `None`: no Secret.
    pub fn parse(data: Option<&SecretData>) -> Self {
        let Some(data) = data else {
            return Self::Lost {
                reason: "it does not exist".to_owned(),
                remainder: None,
            };
        };
        let current = CURRENT
            .read(data)
            .and_then(|found| found.ok_or(SecretParseError::Missing(CURRENT.0)));
        let next = NEXT.read(data);
        let old = old(data);
        match (current, next, old) {
            (Ok(current), Ok(next), Ok((old, overlap_since))) => Self::Intact(State {
                current,
                next,
                old,
                overlap_since,
            }),
            (current, next, old) => {
                let damages = [
                    current.as_ref().err(),
                    next.as_ref().err(),
                    old.as_ref().err(),
                ];
                let reasons = damages
                    .into_iter()
                    .flatten()
                    .map(SecretParseError::describe);
                let reason = reasons.collect::<Vec<_>>().join("; ");
                let (old, overlap_since) = old.unwrap_or_default();
                // Without the current CA the next one takes its place: clients trust it already, or
                // will soon.
                let (current, next) = match (current.ok(), next.ok().flatten()) {
                    (Some(current), next) => (Some(current), next),
                    (None, next) => (next, None),
                };
                let remainder = current.map(|current| State {
                    current,
                    next,
                    old,
                    overlap_since,
                });
                Self::Lost { reason, remainder }
            }
        }
    }
}

impl SecretParseError {
    fn describe(&self) -> String {
        match self {
            Self::Ca(_, source) => match std::error::Error::source(source) {
                Some(inner) => format!("{self}: {inner}"),
                None => self.to_string(),
            },
            other => other.to_string(),
        }
    }
}

impl State {
    /// Every key of the Secret that a state may have, with its value; `None`: the key is removed.
    pub fn secret_data(&self) -> BTreeMap<&'static str, Option<String>> {
        let old = (!self.old.is_empty()).then(|| bundle_pem(&self.old));
        let since = self
            .overlap_since
            .and_then(|since| since.format(&Rfc3339).ok());
        let mut data = BTreeMap::from([
            (OLD, old),
            (SINCE, since),
            (PHASE, Some(self.phase().as_str().to_owned())),
        ]);
        for (KeyPairKeys(certificate, key), ca) in
            [(CURRENT, Some(&self.current)), (NEXT, self.next.as_ref())]
        {
            data.insert(certificate, ca.map(|ca| ca.certificate_pem().to_owned()));
            data.insert(key, ca.map(Ca::key_pem));
        }
        data
    }
}

impl KeyPairKeys {
    fn read(&self, data: &SecretData) -> Result<Option<Ca>, SecretParseError> {
        let Self(certificate, key) = *self;
        match (text(data, certificate)?, text(data, key)?) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(SecretParseError::Missing(key)),
            (None, Some(_)) => Err(SecretParseError::Missing(certificate)),
            (Some(certificate_pem), Some(key_pem)) => Ca::parse(certificate_pem, key_pem)
                .map(Some)
                .map_err(|error| SecretParseError::Ca(certificate, error)),
        }
    }
}

fn old(
    data: &SecretData,
) -> Result<(Vec<CaCertificate>, Option<OffsetDateTime>), SecretParseError> {
    let old = match text(data, OLD)? {
        None => Vec::new(),
        Some(pem) => CaCertificate::parse_bundle(pem.as_bytes())
            .map_err(|error| SecretParseError::Ca(OLD, error))?,
    };
    let since = match text(data, SINCE)? {
        None => None,
        Some(since) => Some(
            OffsetDateTime::parse(since.trim(), &Rfc3339).map_err(|_| SecretParseError::Since)?,
        ),
    };
    let since = since.filter(|_| !old.is_empty());
    Ok((old, since))
}

/// The value of a key; an empty value counts as none.
fn text<'a>(data: &'a SecretData, key: &'static str) -> Result<Option<&'a str>, SecretParseError> {
    let Some(bytes) = data.get(key).filter(|bytes| !bytes.is_empty()) else {
        return Ok(None);
    };
    str::from_utf8(bytes)
        .map(Some)
        .map_err(|_| SecretParseError::NotUtf8(key))
}
