//! The errors of a Machine: reasons of conditions that somebody has to act on.

use common::api::status::MachineStatus;

/// Reasons that are an error of a Machine while a condition that is not met has one of them. Docs: the table of reasons in
/// `docs/operate.md`.
pub const ERROR_REASONS: [&str; 35] = [
    "NetworkConfigurationNotFound",
    "StorageClassNotFound",
    "InsufficientResources",
    "KubeVirtApiError",
    "NameConflict",
    "ImageImportUnavailable",
    "ImageImportFailed",
    "CloudInitSecretNotFound",
    "DomainOnAnotherHost",
    "NetworkFailed",
    "VMFailed",
    "NotNormalized",
    "Stale",
    "NoHostFits",
    "NoRoom",
    "QuotaExceeded",
    "PoolNotFound",
    "VolumeFailed",
    "ImageNotFound",
    "ImageTooLarge",
    "GuestPaused",
    "AddressInUse",
    "AddressesExhausted",
    "ClaimInUse",
    "ClaimNotFound",
    "ForeignStop",
    "HostUnreachable",
    "ImageNotAllowed",
    "PVCLost",
    "TemplateNotFound",
    "VolumeExpansionNotAllowed",
    "VolumeInUse",
    "VolumeLost",
    "VolumeNotFound",
    "ObservationFailed",
];

/// The errors that a Machine has at a time: one bit for each of [`ERROR_REASONS`], because the cache holds them of every
/// Machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors(u64);

impl Errors {
    /// The errors of a status.
    pub fn of(status: &MachineStatus) -> Self {
        let conditions = status.conditions.iter();
        let unmet = conditions.filter(|condition| condition.status != "True");
        let bits = unmet.filter_map(|condition| {
            let mut known = ERROR_REASONS.iter();
            known.position(|reason| *reason == condition.reason)
        });
        Self(bits.fold(0, |all, bit| all | 1 << bit))
    }

    /// Those that the others do not contain.
    #[must_use]
    pub fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Whether this reason is among them.
    pub fn contain(self, reason: &str) -> bool {
        self.reasons().any(|known| known == reason)
    }

    /// Their reasons.
    pub fn reasons(self) -> impl Iterator<Item = &'static str> {
        let known = ERROR_REASONS.into_iter().enumerate();
        known.filter_map(move |(bit, reason)| (self.0 & (1 << bit) != 0).then_some(reason))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use common::api::status::Condition;

    use super::*;

    fn status(conditions: &[(&str, &str)]) -> MachineStatus {
        let condition = |(status, reason): &(&str, &str)| Condition {
            kind: "Ready".into(),
            status: (*status).into(),
            reason: (*reason).into(),
            message: String::new(),
            last_transition_time: String::new(),
            observed_generation: None,
        };
        MachineStatus {
            conditions: conditions.iter().map(condition).collect(),
            ..MachineStatus::default()
        }
    }

    #[test]
    fn the_errors_are_the_known_reasons_of_conditions_that_are_not_met() {
        let errors = Errors::of(&status(&[
            ("False", "VolumeNotFound"),
            ("False", "NetworkConfigurationNotFound"),
            ("False", "VolumeNotFound"),
            ("False", "Creating"),
            ("True", "VMFailed"),
            ("Unknown", "HostUnreachable"),
        ]));
        let reasons: Vec<_> = errors.reasons().collect();
        assert_eq!(
            reasons,
            [
                "NetworkConfigurationNotFound",
                "HostUnreachable",
                "VolumeNotFound"
            ]
        );
        let before = Errors::of(&status(&[
            ("False", "VolumeNotFound"),
            ("Unknown", "HostUnreachable"),
        ]));
        let new: Vec<_> = errors.without(before).reasons().collect();
        assert_eq!(new, ["NetworkConfigurationNotFound"]);
    }

    #[test]
    fn each_reason_has_a_bit_of_its_own_and_a_row_in_the_documentation() {
        let distinct: BTreeSet<_> = ERROR_REASONS.into_iter().collect();
        assert_eq!(distinct.len(), ERROR_REASONS.len());
        for reason in ERROR_REASONS {
            assert!(crate::documented_reasons::is_documented(reason), "{reason}");
            let errors = Errors::of(&status(&[("False", reason)]));
            assert_eq!(errors.reasons().collect::<Vec<_>>(), [reason]);
        }
    }
}
