//! Pending changes that stay in the status while the VirtualMachine is not changed.

use common::quantity::Bytes;
use controller_core::backend::Growth;
use controller_core::conditions::Fault;
use controller_core::laws::Environment as _;
use controller_core::plan::{Now, Refusal, Subject};
use controller_core::reconcile::plan;
use time::OffsetDateTime;

use super::pending::{pending, running};
use super::{edit, reported};
use crate::backend::KubeVirt;

/// The VirtualMachine stays as it is while another growth is held, so the guest keeps what the spec gives back.
#[test]
fn what_a_guest_has_more_of_counts_while_a_quota_holds_its_growth() {
    let mut environment = running();
    environment.set_hold(Some(Fault::new("QuotaExceeded", "the quota is used up")));
    edit(&mut environment, |block| {
        block.cpu.cores = 1;
        block.memory.size = Bytes::mib(1 << 20);
        block.memory.max_size = block.memory.size;
    });
    environment.settle();
    assert_eq!(pending(&environment), [["cpu.cores", "2", "1", "Restart"]]);
    assert_eq!(reported(&environment, "RestartRequired"), ("", ""));
}

#[test]
fn a_migration_that_is_tried_again_hides_no_pending_change() {
    let mut environment = running();
    edit(&mut environment, |block| {
        block.timezone = Some("Europe/Oslo".into());
    });
    environment.settle();
    let refusal = Refusal {
        subject: Subject::Migration,
        reason: None,
        message: "the API server has failed".into(),
    };
    let (machine, observed) = (environment.machine(), environment.observed());
    let now = Now(OffsetDateTime::UNIX_EPOCH);
    let plan = plan::<KubeVirt>(machine, &observed, Some(&refusal), Growth::Permitted, now);
    let status = plan.status.unwrap();
    let ready = status.conditions.iter().find(|it| it.kind == "Ready");
    assert_eq!(ready.unwrap().reason, "KubeVirtApiError");
    assert_eq!(status.pending_changes.len(), 1);
}
