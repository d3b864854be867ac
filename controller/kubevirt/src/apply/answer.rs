//! KubeVirt that does not answer: how a write ends that needs its admission.
//!
//! virt-api (1.8, 1.9) validates and changes every VirtualMachine that is written, with `failurePolicy: Fail` and a
//! limit of 10 s. Without it the API server refuses the write with 500 and "failed calling webhook", at once or after
//! that limit. Nothing of this is permanent, so the controller tries again; meanwhile the status says what was not done.

use common::render::kubevirt::HALTED;
use controller_core::backend::{Act as _, Failed};
use controller_core::client::{ApiError, Remedy};
use controller_core::plan::{Refusal, Subject};

use crate::plan::Action;

/// Reason of the condition.
const REASON: &str = "KubeVirtApiError";

/// The failure of an action. If KubeVirt's admission did not answer, the failure has a reason, so that the status
/// reports it at once.
pub(super) fn failed(action: &Action, error: ApiError) -> Failed {
    let needs_kubevirt = is_of_kubevirt(action) && error.remedy() == Remedy::Retry;
    let is_unanswered = match &error {
        ApiError::Timeout(_) => true,
        ApiError::Refused(kube::Error::Api(status)) => {
            status.code >= 500 && status.message.contains("failed calling webhook")
        }
        ApiError::Refused(_)
        | ApiError::NotLeading
        | ApiError::LeaseEnded
        | ApiError::StaleCache(_) => false,
    };
    let failed = Failed::from(error);
    if !needs_kubevirt || !is_unanswered {
        return failed;
    }
    Failed {
        reason: Some(REASON),
        message: format!(
            "KubeVirt does not answer, so {} was not done and is tried again: {}",
            what(action),
            failed.message
        ),
        ..failed
    }
}

/// What is reported of an action without a result for [`RESULT_TIMEOUT`](controller_core::reconcile::RESULT_TIMEOUT): without it, a
/// guest that should stop would be Ready. A Machine without a VirtualMachine is not Ready anyway, and a hundred that are
/// created at once wait for longer than that although KubeVirt answers.
pub(crate) fn unanswered(action: &Action) -> Option<Refusal> {
    let reports = is_of_kubevirt(action) && !matches!(action, Action::CreateVm(_));
    reports.then(|| Refusal {
        subject: action.subject(),
        reason: Some(REASON),
        message: format!(
            "KubeVirt does not answer, so {} is not done yet: see that virt-api runs",
            what(action)
        ),
    })
}

/// Whether the action writes an object that KubeVirt's admission validates.
fn is_of_kubevirt(action: &Action) -> bool {
    action.subject() == Subject::Guest
        && !matches!(
            action,
            Action::CreateSecret(_) | Action::UpdateSecret(_) | Action::ConfirmGuestGone
        )
}

fn what(action: &Action) -> &'static str {
    match action {
        Action::CreateVm(_) => "the creation of the VirtualMachine",
        Action::DeleteVm { .. } => "the deletion of the VirtualMachine",
        Action::DeleteInstance { .. } => "the restart of the guest",
        Action::UpdateVm(desired) => switch(&desired.spec.run_strategy),
        Action::SetRunStrategy { strategy, .. } => switch(strategy),
        _ => "the change of the VirtualMachine",
    }
}

fn switch(strategy: &str) -> &'static str {
    if strategy == HALTED {
        "the stop of the guest"
    } else {
        "the change of the VirtualMachine"
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::core::Status;

    use super::*;

    fn refused(code: u16, message: &str) -> ApiError {
        let status = Status::failure(message, "InternalError").with_code(code);
        ApiError::Refused(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn a_stop_that_kubevirt_does_not_answer_is_known_and_anything_else_is_as_before() {
        let stop = Action::SetRunStrategy {
            uid: "u".into(),
            strategy: "Halted".into(),
        };
        let webhook = r#"Internal error occurred: failed calling webhook "virtualmachine-validator.kubevirt.io": connection refused"#;
        for error in [
            refused(500, webhook),
            ApiError::Timeout(Duration::from_secs(12)),
        ] {
            let failed = failed(&stop, error);
            assert_eq!(
                (failed.remedy, failed.reason),
                (Remedy::Retry, Some(REASON))
            );
            let begin = "KubeVirt does not answer, so the stop of the guest was not done";
            assert!(failed.message.starts_with(begin), "{}", failed.message);
        }
        for error in [
            refused(500, "etcdserver: leader changed"),
            refused(409, webhook),
            ApiError::NotLeading,
            ApiError::LeaseEnded,
        ] {
            assert_eq!(failed(&stop, error).reason, None);
        }
        let release = Action::ReleaseClaim {
            name: "web-root".into(),
            uid: "u".into(),
        };
        assert_eq!(failed(&release, refused(500, webhook)).reason, None);
        assert_eq!(unanswered(&release), None);
        assert!(unanswered(&stop).is_some());
    }
}
