//! The form in which the state is kept between two processes: the entries of a Secret.
//!
//! ```text
//!  ca.crt       ca.key        current       what versions without rotation have, too
//!  ca-next.crt  ca-next.key   next          together or not at all
//!  ca-old.crt   since         old           one or more certificates; RFC 3339
//!  phase                                    for people; it follows from the others
//! ```

use std::collections::BTreeMap;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::authority::{Authority, AuthorityError};
use crate::certificate::{CaCertificate, bundle_pem};
use crate::state::{Ca, State};

const CURRENT: Pair = Pair("ca.crt", "ca.key");
const NEXT: Pair = Pair("ca-next.crt", "ca-next.key");
const OLD: &str = "ca-old.crt";
const SINCE: &str = "since";
const PHASE: &str = "phase";

/// Names and contents, as a Secret has them.
pub type Entries = BTreeMap<String, Vec<u8>>;

/// What was found in the store.
#[derive(Debug, Clone)]
pub enum Reading<C: Ca = Authority> {
    /// A state, all of it.
    Whole(State<C>),
    /// None, or not all of one.
    Lost {
        /// What is wrong.
        reason: String,
        /// What can be made of the rest.
        rest: Option<State<C>>,
    },
}

/// Where a CA is kept.
struct Pair(&'static str, &'static str);

/// What is wrong with what is stored.
#[derive(Debug, thiserror::Error)]
enum Damage {
    #[error("{0}: {1}")]
    Authority(&'static str, #[source] AuthorityError),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is no text")]
    Text(&'static str),
    #[error("{SINCE} is no time")]
    Since,
}

impl Reading {
    /// Reads what [`State::entries`] wrote, or what became of it; `None`: there is nothing.
    pub fn parse(entries: Option<&Entries>) -> Self {
        let Some(entries) = entries else {
            return Self::Lost {
                reason: "it does not exist".to_owned(),
                rest: None,
            };
        };
        let current = CURRENT
            .read(entries)
            .and_then(|found| found.ok_or(Damage::Missing(CURRENT.0)));
        let next = NEXT.read(entries);
        let old = old(entries);
        match (current, next, old) {
            (Ok(current), Ok(next), Ok((old, since))) => Self::Whole(State {
                current,
                next,
                old,
                since,
            }),
            (current, next, old) => {
                let reasons = [
                    current.as_ref().err(),
                    next.as_ref().err(),
                    old.as_ref().err(),
                ];
                let reasons: Vec<_> = reasons.into_iter().flatten().map(Damage::told).collect();
                let (old, since) = old.unwrap_or_default();
                let (next, current) = (next.ok().flatten(), current.ok());
                // A next CA is known to clients already, or soon.
                let (current, next) = match (current, next) {
                    (Some(current), next) => (Some(current), next),
                    (None, next) => (next, None),
                };
                Self::Lost {
                    reason: reasons.join("; "),
                    rest: current.map(|current| State {
                        current,
                        next,
                        old,
                        since,
                    }),
                }
            }
        }
    }
}

impl Damage {
    fn told(&self) -> String {
        match self {
            Self::Authority(_, source) => match std::error::Error::source(source) {
                Some(inner) => format!("{self}: {inner}"),
                None => self.to_string(),
            },
            other => other.to_string(),
        }
    }
}

impl State {
    /// Each entry a state may have, with its content; `None`: it is not there.
    pub fn entries(&self) -> BTreeMap<&'static str, Option<String>> {
        let old = (!self.old.is_empty()).then(|| bundle_pem(&self.old));
        let since = self.since.and_then(|since| since.format(&Rfc3339).ok());
        let mut entries = BTreeMap::from([
            (OLD, old),
            (SINCE, since),
            (PHASE, Some(self.phase().as_str().to_owned())),
        ]);
        for (Pair(certificate, key), ca) in
            [(CURRENT, Some(&self.current)), (NEXT, self.next.as_ref())]
        {
            entries.insert(certificate, ca.map(|ca| ca.certificate_pem().to_owned()));
            entries.insert(key, ca.map(Authority::key_pem));
        }
        entries
    }
}

impl Pair {
    fn read(&self, entries: &Entries) -> Result<Option<Authority>, Damage> {
        let Self(certificate, key) = *self;
        match (text(entries, certificate)?, text(entries, key)?) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(Damage::Missing(key)),
            (None, Some(_)) => Err(Damage::Missing(certificate)),
            (Some(pem), Some(secret)) => Authority::parse(pem, secret)
                .map(Some)
                .map_err(|error| Damage::Authority(certificate, error)),
        }
    }
}

fn old(entries: &Entries) -> Result<(Vec<CaCertificate>, Option<OffsetDateTime>), Damage> {
    let old = match text(entries, OLD)? {
        None => Vec::new(),
        Some(pem) => CaCertificate::parse_bundle(pem.as_bytes())
            .map_err(|error| Damage::Authority(OLD, error))?,
    };
    let since = match text(entries, SINCE)? {
        None => None,
        Some(since) => {
            Some(OffsetDateTime::parse(since.trim(), &Rfc3339).map_err(|_| Damage::Since)?)
        }
    };
    let since = since.filter(|_| !old.is_empty());
    Ok((old, since))
}

/// An entry that is empty is as good as none.
fn text<'a>(entries: &'a Entries, name: &'static str) -> Result<Option<&'a str>, Damage> {
    let Some(bytes) = entries.get(name).filter(|bytes| !bytes.is_empty()) else {
        return Ok(None);
    };
    str::from_utf8(bytes)
        .map(Some)
        .map_err(|_| Damage::Text(name))
}
