//! Actions that fail or take long: what the status says meanwhile.

use common::api::choice::ResetResult;
use common::api::status::LastReset;
use common::names::ANNOTATION_RESET_REQUESTED;

use super::*;
use crate::fixtures::annotate;
use crate::reset::REFUSED;

#[tokio::test]
async fn a_failure_with_a_reason_is_reported_at_once() {
    let fails = Step {
        reason: Some("KubeVirtApiError"),
        ..create(Some(Remedy::Retry))
    };
    let harness = Harness::new(Scripted::with(vec![fails, SWITCH]), LeaseGuard::Always);
    assert_eq!(harness.pass().await, ["observe", "create", "switch off"]);
    assert_eq!(messages(&harness.sent()), ["the quota is used up"]);
}

#[tokio::test]
async fn a_switch_that_fails_is_reported() {
    for remedy in [Remedy::Retry, Remedy::UserAction] {
        let switch = Step {
            fails: Some(remedy),
            ..SWITCH
        };
        let steps = vec![create(Some(Remedy::UserAction)), switch];
        let mut harness = Harness::new(Scripted::with(steps), LeaseGuard::Always);
        annotate(&mut harness.machine, ANNOTATION_RESET_REQUESTED, "hangs");
        // The scripted plan has the same steps again, of which only the switch is carried out.
        assert_eq!(harness.pass().await, ["observe", "create", "switch off"]);
        let sent = harness.sent();
        assert_eq!(messages(&sent), ["the quota is used up"]);
        // A reset would be a later action.
        assert_eq!(sent[0].1["status"]["lastReset"], Value::Null);
    }
}

#[test]
fn a_reset_that_is_refused_for_good_hides_no_failure_before_it() {
    let machine = fixtures::machine(fixtures::block());
    let plan = |message: &str, request: &str| {
        let mut status = fixtures::ready("False", "VolumeFailed");
        status.conditions[0].message = message.to_owned();
        status.last_reset = Some(LastReset {
            request: request.to_owned(),
            result: Some(ResetResult::Refused),
            message: None,
        });
        Plan::<Step> {
            status: Some(status),
            ..Plan::default()
        }
    };
    let refusal = Refusal {
        subject: Subject::Reset,
        reason: Some(REFUSED),
        message: "too old".to_owned(),
    };
    let (first, second) = (plan("no room", "before"), plan("", "hangs"));
    let reported = after_second_refusal(&machine, first, second, &refusal);
    let status = reported.status.unwrap();
    assert_eq!(status.conditions[0].message, "no room");
    assert_eq!(status.last_reset.unwrap().request, "hangs");
}

#[tokio::test(start_paused = true)]
async fn an_action_without_an_answer_is_reported_after_a_second_and_goes_on() {
    let slow = Step {
        takes: Duration::from_secs(11),
        fails: Some(Remedy::Retry),
        reason: Some("KubeVirtApiError"),
        ..create(None)
    };
    let harness = Harness::new(Scripted::with(vec![slow.clone()]), LeaseGuard::Always);
    let start = tokio::time::Instant::now();
    assert_eq!(harness.pass().await, ["observe", "create"]);
    assert_eq!(start.elapsed(), Duration::from_secs(11));
    assert_eq!(
        messages(&harness.sent()),
        ["create waits", "the quota is used up"]
    );

    // A reset would be the last action: while the one before waits, nothing was reset.
    let mut harness = Harness::new(Scripted::with(vec![slow]), LeaseGuard::Always);
    annotate(&mut harness.machine, ANNOTATION_RESET_REQUESTED, "hangs");
    harness.pass().await;
    let sent = harness.sent();
    let resets: Vec<_> = sent
        .iter()
        .map(|(_, body)| body["status"]["lastReset"]["result"].as_str())
        .collect();
    assert_eq!(resets, [None, Some("Done")]);

    let fast = Step {
        takes: Duration::from_millis(900),
        ..create(None)
    };
    let harness = Harness::new(Scripted::with(vec![fast]), LeaseGuard::Always);
    harness.pass().await;
    assert_eq!(harness.sent(), []);
}
