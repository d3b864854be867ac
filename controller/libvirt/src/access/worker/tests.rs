//! Workers over a host in memory.

use tokio::time::{advance, pause, resume};
use uuid::Uuid;

use super::super::CardAddresses;
use super::super::fake::{FakeLibvirt, When};
use super::*;

/// Longer than any call here takes, on a busy machine too.
const LONG: Duration = Duration::from_mins(10);
/// Limit of a call that hangs: half of [`LONG`], and nobody waits for it, because [`pass_limit`] moves the clock.
const SHORT: Duration = Duration::from_mins(5);
/// Limit of a call that is given up before it has begun.
const BRIEF: Duration = Duration::from_millis(50);
const NEVER: Pause = Pause {
    first: Duration::from_hours(1),
    longest: Duration::from_hours(1),
};
const NONE: Pause = Pause {
    first: Duration::ZERO,
    longest: Duration::ZERO,
};

fn target() -> Target {
    Target {
        uri: "test:///default".into(),
        credentials: None,
    }
}

fn worker(host: &FakeLibvirt, pause: Pause) -> Worker {
    worker_of(host, pause, OVERDUE_LIMIT)
}

fn worker_of(host: &FakeLibvirt, pause: Pause, overdue_limit: Duration) -> Worker {
    Worker::new(
        "worker",
        Arc::new(host.clone()),
        Arc::new(target()),
        pause,
        overdue_limit,
    )
}

async fn bridges(worker: &Worker, limit: Duration) -> Result<Vec<String>> {
    worker.call(limit, |host| host.bridges()).await
}

/// Lets [`SHORT`] pass once a call is under way: a busy machine may take any time to begin it.
async fn pass_limit(host: &FakeLibvirt) {
    while host.under_way() == 0 {
        tokio::task::yield_now().await;
    }
    pause();
    advance(SHORT).await;
    resume();
}

/// The error of a call that hangs.
async fn overdue<T>(host: &FakeLibvirt, call: impl Future<Output = Result<T>>) -> AccessError {
    let (outcome, ()) = tokio::join!(call, pass_limit(host));
    outcome.err().unwrap()
}

fn disconnected() -> AccessError {
    AccessError::Disconnected("reset".into())
}

#[tokio::test]
async fn one_connection_is_opened_at_the_first_call_and_kept() {
    let host = FakeLibvirt::new();
    let worker = worker(&host, NEVER);
    assert_eq!(host.opened(), 0);
    for _ in 0..3 {
        assert_eq!(bridges(&worker, LONG).await.unwrap()[0], "br0");
    }
    assert_eq!(host.opened(), 1);
}

#[tokio::test]
async fn a_connection_that_ended_between_calls_is_opened_anew_without_an_error() {
    let host = FakeLibvirt::new();
    let worker = worker(&host, NEVER);
    bridges(&worker, LONG).await.unwrap();
    host.disconnect();
    bridges(&worker, LONG).await.unwrap();
    assert_eq!(host.opened(), 2);
}

#[tokio::test]
async fn a_connection_that_ends_in_a_call_is_opened_anew_for_the_next() {
    let host = FakeLibvirt::new();
    let worker = worker(&host, NEVER);
    host.fail("bridges", When::After, disconnected());
    assert_eq!(bridges(&worker, LONG).await.unwrap_err(), disconnected());
    bridges(&worker, LONG).await.unwrap();
    assert_eq!(host.opened(), 2);
}

#[tokio::test]
async fn an_unreachable_host_is_tried_again_after_a_pause_only() {
    let host = FakeLibvirt::new();
    host.set_reachable(false);
    let patient = worker(&host, NEVER);
    let first = bridges(&patient, LONG).await.unwrap_err();
    assert_eq!(first.kind(), "Disconnected");
    assert_eq!(bridges(&patient, LONG).await.unwrap_err(), first);
    assert_eq!(host.opened(), 1, "the second call was answered without it");

    let eager = worker(&host, NONE);
    bridges(&eager, LONG).await.unwrap_err();
    host.set_reachable(true);
    bridges(&eager, LONG).await.unwrap();
}

#[test]
fn pauses_grow_up_to_the_longest() {
    let host = FakeLibvirt::new();
    host.set_reachable(false);
    let mut session = Session::new(Arc::new(host), Arc::new(target()), PAUSE);
    let mut pauses = vec![];
    for _ in 0..7 {
        session.open().unwrap_err();
        let closed = session.closed.as_mut().unwrap();
        pauses.push(closed.pause.as_secs());
        closed.until = Instant::now();
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
}

#[tokio::test]
async fn a_call_over_its_limit_is_unknown_and_the_next_does_not_wait_for_it() {
    let host = FakeLibvirt::new();
    let worker = worker(&host, NEVER);
    let hang = host.hang("bridges");
    let stuck = overdue(&host, bridges(&worker, SHORT)).await;
    assert!(
        matches!(&stuck, AccessError::TimedOut(text) if text.contains("not known")),
        "{stuck}"
    );
    // With a limit that would fail the test by its time if it were waited for.
    let next = worker.call(LONG, |host| host.info()).await.unwrap_err();
    assert!(
        matches!(&next, AccessError::TimedOut(text) if text.contains("was not sent")),
        "{next}"
    );
    drop(hang);
    // Calls that are repeated while the first one hangs succeed in the end.
    while let Err(error) = bridges(&worker, LONG).await {
        assert_eq!(error.kind(), "TimedOut");
        tokio::task::yield_now().await;
    }
    assert_eq!(host.opened(), 1);
}

#[tokio::test]
async fn a_worker_that_hangs_for_too_long_gets_another_thread() {
    let host = FakeLibvirt::new();
    let worker = worker_of(&host, NEVER, Duration::ZERO);
    let _hang = host.hang("bridges");
    let stuck = overdue(&host, bridges(&worker, SHORT)).await;
    assert_eq!(stuck.kind(), "TimedOut");
    worker.call(LONG, |host| host.info()).await.unwrap();
    assert_eq!(host.opened(), 2);
}

#[tokio::test]
async fn a_call_whose_caller_is_gone_is_not_begun() {
    let host = FakeLibvirt::new();
    let worker = worker(&host, NEVER);
    let hang = host.hang("open");
    let absent = Uuid::nil();
    let start = worker.call(BRIEF, move |host| host.start(absent, false));
    assert_eq!(start.await.unwrap_err().kind(), "TimedOut");
    drop(hang);
    while let Err(error) = bridges(&worker, LONG).await {
        assert_eq!(error.kind(), "TimedOut");
        tokio::task::yield_now().await;
    }
    assert_eq!(host.calls(), Vec::<String>::new());
}

#[tokio::test]
async fn calls_that_wait_when_one_gets_stuck_do_not_wait_any_longer() {
    let host = FakeLibvirt::new();
    let worker = worker(&host, NEVER);
    let _hang = host.hang("bridges");
    let (stuck, first, second) = tokio::join!(
        overdue(&host, bridges(&worker, SHORT)),
        worker.call(LONG, |host| host.info()),
        worker.call(LONG, |host| host.info()),
    );
    for error in [stuck, first.unwrap_err(), second.unwrap_err()] {
        assert_eq!(error.kind(), "TimedOut");
    }
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_no_fault_of_the_host() {
    let host = FakeLibvirt::new();
    let worker = worker(&host, NEVER);
    let hang = host.hang("bridges");
    let (slow, impatient) = tokio::join!(bridges(&worker, LONG), async {
        let error = overdue(&host, worker.call(SHORT, |host| host.info())).await;
        drop(hang);
        error
    });
    slow.unwrap();
    assert_eq!(impatient.kind(), "Busy");
}

#[tokio::test]
async fn one_call_at_a_time_and_the_other_worker_continues() {
    let fake = FakeLibvirt::new();
    let host = Host::new(Arc::new(fake.clone()), target());
    let calls = (0..50).map(|_| bridges(&host.slow, LONG));
    for outcome in futures::future::join_all(calls).await {
        outcome.unwrap();
    }
    assert_eq!(fake.most_under_way(), 1);

    let _hang = fake.hang("agent_addresses");
    let agent = host.slow.call(SHORT, |host| {
        host.agent_addresses(Uuid::nil(), &mut CardAddresses::default())
    });
    assert_eq!(overdue(&fake, agent).await.kind(), "TimedOut");
    bridges(&host.fast, LONG).await.unwrap();
    assert_eq!(fake.most_under_way(), 2);
}

#[tokio::test]
async fn a_call_that_panics_costs_its_connection_and_nothing_else() {
    let host = FakeLibvirt::new();
    let worker = worker(&host, NEVER);
    let fault = worker.call(LONG, |_| -> Result<()> { panic!("on purpose") });
    assert_eq!(fault.await.unwrap_err().kind(), "Disconnected");
    bridges(&worker, LONG).await.unwrap();
    assert_eq!(host.opened(), 2);
}

#[tokio::test]
async fn a_host_that_is_dropped_ends_its_thread_and_its_connection() {
    #[derive(Debug)]
    struct Counted {
        _token: Arc<()>,
        host: FakeLibvirt,
    }
    impl Connector for Counted {
        fn open(&self, target: &Target) -> Result<Box<dyn Connection>> {
            self.host.open(target)
        }
    }
    let fake = FakeLibvirt::new();
    let token = Arc::new(());
    let connector = Counted {
        _token: token.clone(),
        host: fake.clone(),
    };
    let host = Host::new(Arc::new(connector), target());
    bridges(&host.fast, LONG).await.unwrap();
    drop(host);
    let end = Instant::now() + LONG;
    while Arc::strong_count(&token) > 1 {
        assert!(Instant::now() < end, "the thread still has the connector");
        thread::yield_now();
    }
}

#[tokio::test]
async fn closing_a_host_cancels_the_calls_that_wait_and_lets_the_one_under_way_return() {
    let fake = FakeLibvirt::new();
    let host = Arc::new(Host::new(Arc::new(fake.clone()), target()));
    bridges(&host.slow, LONG).await.unwrap();
    let hang = fake.hang("bridges");
    let first = tokio::spawn({
        let host = host.clone();
        async move { bridges(&host.slow, LONG).await }
    });
    while fake.reads() < 2 {
        tokio::task::yield_now().await;
    }
    let second = tokio::spawn({
        let host = host.clone();
        async move { host.slow.call(LONG, |host| host.destroy(Uuid::nil())).await }
    });
    tokio::task::yield_now().await;
    host.close();
    drop(hang);
    first.await.unwrap().unwrap();
    let error = second.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), "Cancelled");
    assert_eq!(fake.calls(), [""; 0], "nothing reached the host");
    assert_eq!(host.check_open().unwrap_err().kind(), "Cancelled");
}
