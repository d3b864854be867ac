//! What the status reports of an action that was refused: one rule for both backends.

use crate::conditions::Fault;
use crate::migration;
use crate::plan::{Refusal, Subject};
use crate::reset;

/// The part of a Machine whose condition reports a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `NetworkReady`.
    Network,
    /// `StorageReady`.
    Storage,
    /// `VirtualMachineReady`.
    Guest,
    /// `DisplayReady`.
    Display,
}

/// The reasons of refusals that have none of their own, of one backend.
#[derive(Clone, Copy, Debug)]
pub struct Reasons {
    /// In `NetworkReady`.
    pub network: &'static str,
    /// In `StorageReady`.
    pub storage: &'static str,
    /// In `VirtualMachineReady`.
    pub guest: &'static str,
    /// In `DisplayReady`.
    pub display: &'static str,
}

impl Reasons {
    /// The part whose condition reports the refusal, and what it reports; `None`: no condition does, because the request of
    /// a migration or a reset that is refused for good has a part of the status of its own. A step that failed for another
    /// reason is tried again, and nothing else would report it meanwhile.
    pub fn fault(&self, refusal: &Refusal) -> Option<(Part, Fault)> {
        let (part, reason) = match refusal.subject {
            Subject::Network => (Part::Network, self.network),
            Subject::Storage => (Part::Storage, self.storage),
            Subject::Display => (Part::Display, self.display),
            Subject::Migration if migration::is_final(refusal) => return None,
            Subject::Reset if reset::is_final(refusal) => return None,
            Subject::Machine | Subject::Guest | Subject::Migration | Subject::Reset => {
                (Part::Guest, self.guest)
            }
        };
        let fault = Fault::new(refusal.reason.unwrap_or(reason), refusal.message.clone());
        Some((part, fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASONS: Reasons = Reasons {
        network: "Network",
        storage: "Storage",
        guest: "Guest",
        display: "Display",
    };

    #[test]
    fn a_refusal_is_in_the_condition_of_its_subject_under_its_own_reason_or_that_of_the_backend() {
        let of = |subject, reason| {
            let refusal = Refusal {
                subject,
                reason,
                message: "no".to_owned(),
            };
            let fault = REASONS.fault(&refusal)?;
            assert_eq!(fault.1.message(), "no");
            Some((fault.0, fault.1.reason()))
        };
        for (subject, part, reason) in [
            (Subject::Network, Part::Network, "Network"),
            (Subject::Storage, Part::Storage, "Storage"),
            (Subject::Display, Part::Display, "Display"),
            (Subject::Guest, Part::Guest, "Guest"),
            (Subject::Machine, Part::Guest, "Guest"),
            (Subject::Migration, Part::Guest, "Guest"),
            (Subject::Reset, Part::Guest, "Guest"),
        ] {
            assert_eq!(of(subject, None), Some((part, reason)));
            assert_eq!(of(subject, Some("Own")), Some((part, "Own")));
        }
        assert_eq!(of(Subject::Migration, Some(migration::REFUSED)), None);
        assert_eq!(of(Subject::Reset, Some(reset::REFUSED)), None);
    }
}
