//! Many reviews at once, some of them slow: slow ones must not delay the others.
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use common::violation::Reference;
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, timeout};
use tower::ServiceExt as _;
use webhook::body::{IN_FLIGHT_MAX, LARGE_BODY};
use webhook::catalog::{CONCURRENT_READS, Found, Lookup, SingleFlight};

mod harness;
use harness::{app_with, cache};

/// Limit for something that happens at once on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn app(lookup: impl Lookup + 'static) -> Router {
    app_with(cache(), lookup)
}

/// The review of a new Machine, with `padding` spaces after it.
fn review(template: &str, padding: usize) -> String {
    let mut review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "vitistack.io", "version": "v1alpha1", "kind": "Machine"},
            "name": "web",
            "namespace": "default",
            "operation": "CREATE",
            "object": {
                "apiVersion": "vitistack.io/v1alpha1",
                "kind": "Machine",
                "metadata": {"name": "web", "namespace": "default"},
                "spec": {"template": template},
            },
        },
    })
    .to_string();
    review.extend(std::iter::repeat_n(' ', padding));
    review
}

/// Sends a review. Returns whether the operation is allowed.
async fn is_allowed(app: &Router, body: String) -> bool {
    response(app, body).await["allowed"].as_bool().unwrap()
}

async fn response(app: &Router, body: String) -> Value {
    let request = Request::post("/mutate?timeout=3s")
        .header("content-type", "application/json")
        .body(Body::from(body))
        .unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let mut answer: Value = serde_json::from_slice(&bytes).unwrap();
    answer["response"].take()
}

/// An API server that accepts reads and never answers.
#[derive(Clone, Default)]
struct Stuck {
    pending: Arc<AtomicUsize>,
    pending_max: Arc<AtomicUsize>,
}

impl Lookup for Stuck {
    fn find<'a>(&'a self, _: &'a str, _: &'a Reference) -> BoxFuture<'a, Found> {
        struct Pending<'a>(&'a AtomicUsize);
        impl Drop for Pending<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Box::pin(async {
            let pending = self.pending.fetch_add(1, Ordering::Relaxed) + 1;
            self.pending_max.fetch_max(pending, Ordering::Relaxed);
            let _pending = Pending(&self.pending);
            std::future::pending().await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn stuck_reads_delay_only_the_reviews_that_need_them() {
    let stuck = Stuck::default();
    let app = app(SingleFlight::new(stuck.clone(), CONCURRENT_READS));
    let missing = (0..100).map(|number| is_allowed(&app, review(&format!("missing-{number}"), 0)));
    let mut missing = Box::pin(join_all(missing));
    assert!(
        missing.as_mut().now_or_never().is_none(),
        "reads have begun"
    );

    // The other reviews are answered while the reads are stuck, without any wait: the paused clock
    // advances only when every task is idle.
    let start = Instant::now();
    let known = join_all((0..200).map(|_| is_allowed(&app, review("small", 0)))).await;
    assert!(known.into_iter().all(|allowed| allowed));
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(stuck.pending.load(Ordering::Relaxed), CONCURRENT_READS);

    // The stuck reads time out, and none of them is left open.
    let refused = timeout(TIMEOUT, missing).await.unwrap();
    assert!(refused.into_iter().all(|allowed| !allowed));
    assert_eq!(stuck.pending_max.load(Ordering::Relaxed), CONCURRENT_READS);
    assert_eq!(stuck.pending.load(Ordering::Relaxed), 0);
}

/// Records events in their order.
#[derive(Clone, Default)]
struct EventLog(Arc<Mutex<Vec<&'static str>>>);

impl EventLog {
    fn add(&self, event: &'static str) {
        self.0.lock().unwrap().push(event);
    }
}

impl Lookup for EventLog {
    fn find<'a>(&'a self, _: &'a str, _: &'a Reference) -> BoxFuture<'a, Found> {
        self.add("validated");
        Box::pin(async { Ok(None) })
    }
}

#[tokio::test]
async fn concurrent_reviews_are_validated_before_any_response_is_sent() {
    let log = EventLog::default();
    let app = app(log.clone());
    let send = async || {
        is_allowed(&app, review("missing", 0)).await;
        log.add("answered");
    };
    join_all([send(), send(), send()]).await;
    let log = log.0.lock().unwrap().join(" ");
    assert_eq!(
        log,
        "validated validated validated answered answered answered"
    );
}

#[tokio::test]
async fn a_body_is_released_before_its_response_is_sent() {
    let app = app(EventLog::default());
    let size = LARGE_BODY / 2;
    // Together more than the budget, if all of them were kept.
    let together = (0..=IN_FLIGHT_MAX / size).map(|_| is_allowed(&app, review("small", size)));
    assert!(join_all(together).await.into_iter().all(|allowed| allowed));
}

/// Blocks the calling thread, as decoding does.
struct Blocking {
    called: SyncSender<()>,
    release: Mutex<Receiver<()>>,
}

impl Lookup for Blocking {
    fn find<'a>(&'a self, _: &'a str, _: &'a Reference) -> BoxFuture<'a, Found> {
        self.called.send(()).unwrap();
        self.release.lock().unwrap().recv().unwrap();
        Box::pin(async { Ok(None) })
    }
}

/// A webhook with a large review in progress, until `release` is sent.
async fn busy() -> (Router, JoinHandle<bool>, SyncSender<()>) {
    let (called, entered) = sync_channel(1);
    let (release, released) = sync_channel(1);
    let app = app(Blocking {
        called,
        release: Mutex::new(released),
    });
    let large = tokio::spawn({
        let app = app.clone();
        async move { is_allowed(&app, review("missing", LARGE_BODY)).await }
    });
    let entered = tokio::task::spawn_blocking(move || entered.recv_timeout(TIMEOUT).unwrap());
    entered.await.unwrap();
    (app, large, release)
}

/// The test runtime has one thread, as with half a processor.
#[tokio::test]
async fn a_large_review_does_not_block_other_reviews() {
    let (app, large, release) = busy().await;
    assert!(is_allowed(&app, review("small", 0)).await);
    assert!(!large.is_finished());
    release.send(()).unwrap();
    assert!(!large.await.unwrap());
}

/// The limit is that of the webhook: the API server would wait for three seconds.
#[tokio::test(start_paused = true)]
async fn a_second_large_review_is_refused_after_waiting_for_a_second() {
    let (app, first, release) = busy().await;

    let mut second = Box::pin(response(&app, review("small", LARGE_BODY)));
    advance(Duration::from_millis(1)).await;
    assert!(second.as_mut().now_or_never().is_none());
    advance(Duration::from_millis(998)).await;
    assert!(second.as_mut().now_or_never().is_none());
    advance(Duration::from_millis(2)).await;
    // The limit is over. A permit that is released now comes too late.
    let answered = second.as_mut().now_or_never();
    assert!(!first.is_finished());
    release.send(()).unwrap();
    let answer = match answered {
        Some(answer) => answer,
        None => second.await,
    };
    assert_eq!(answer["status"]["code"], 504);
    assert!(!first.await.unwrap());
}
