//! Many reviews at once, some of them slow: whom it concerns, and whom it does not.
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
use webhook::body::{IN_FLIGHT_MAX, LARGE};
use webhook::catalog::Found;
use webhook::lookup::Lookup;
use webhook::sharing::{AT_A_TIME, Sharing};

mod scene;
use scene::{app_with, cache};

/// For what happens at once, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn app(lookup: impl Lookup + 'static) -> Router {
    app_with(cache(), lookup)
}

/// The review of a new Machine; `padding` makes it as large as that.
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

/// What is answered: allowed or not.
async fn ask(app: &Router, body: String) -> bool {
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

/// An API server that takes questions and never answers.
#[derive(Clone, Default)]
struct Stuck {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Lookup for Stuck {
    fn find<'a>(&'a self, _: &'a str, _: &'a Reference) -> BoxFuture<'a, Option<Found>> {
        struct Under<'a>(&'a AtomicUsize);
        impl Drop for Under<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Box::pin(async {
            let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(now, Ordering::Relaxed);
            let _under = Under(&self.now);
            std::future::pending().await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn reads_that_are_stuck_concern_nobody_but_those_who_asked() {
    let stuck = Stuck::default();
    let app = app(Sharing::new(stuck.clone(), AT_A_TIME));
    let missing = (0..100).map(|number| ask(&app, review(&format!("missing-{number}"), 0)));
    let mut missing = Box::pin(join_all(missing));
    assert!(
        missing.as_mut().now_or_never().is_none(),
        "reads have begun"
    );

    // The reads have not moved, and everybody else is answered. Nothing was waited for: this clock goes
    // on only when there is nothing else to do.
    let asked = Instant::now();
    let known = join_all((0..200).map(|_| ask(&app, review("small", 0)))).await;
    assert!(known.into_iter().all(|allowed| allowed));
    assert_eq!(asked.elapsed(), Duration::ZERO);
    assert_eq!(stuck.now.load(Ordering::Relaxed), AT_A_TIME);

    // Nobody waits for ever, and the API server has nothing left to do.
    let refused = timeout(PATIENCE, missing).await.unwrap();
    assert!(refused.into_iter().all(|allowed| !allowed));
    assert_eq!(stuck.most.load(Ordering::Relaxed), AT_A_TIME);
    assert_eq!(stuck.now.load(Ordering::Relaxed), 0);
}

/// What happened, in this order.
#[derive(Clone, Default)]
struct Course(Arc<Mutex<Vec<&'static str>>>);

impl Course {
    fn add(&self, event: &'static str) {
        self.0.lock().unwrap().push(event);
    }
}

impl Lookup for Course {
    fn find<'a>(&'a self, _: &'a str, _: &'a Reference) -> BoxFuture<'a, Option<Found>> {
        self.add("judged");
        Box::pin(async { None })
    }
}

#[tokio::test]
async fn reviews_that_come_together_are_judged_before_any_answer_leaves() {
    let course = Course::default();
    let app = app(course.clone());
    let ask = async || {
        ask(&app, review("missing", 0)).await;
        course.add("answered");
    };
    join_all([ask(), ask(), ask()]).await;
    let course = course.0.lock().unwrap().join(" ");
    assert_eq!(course, "judged judged judged answered answered answered");
}

#[tokio::test]
async fn bodies_are_gone_before_their_answers_leave() {
    let app = app(Course::default());
    let size = LARGE / 2;
    // More than there may be at a time, if all of them were kept.
    let together = (0..=IN_FLIGHT_MAX / size).map(|_| ask(&app, review("small", size)));
    assert!(join_all(together).await.into_iter().all(|allowed| allowed));
}

/// Keeps the thread that asks it, as decoding does.
struct Blocking {
    asked: SyncSender<()>,
    release: Mutex<Receiver<()>>,
}

impl Lookup for Blocking {
    fn find<'a>(&'a self, _: &'a str, _: &'a Reference) -> BoxFuture<'a, Option<Found>> {
        self.asked.send(()).unwrap();
        self.release.lock().unwrap().recv().unwrap();
        Box::pin(async { None })
    }
}

/// A webhook that works on a large review, until it is told to go on.
async fn busy() -> (Router, JoinHandle<bool>, SyncSender<()>) {
    let (asked, entered) = sync_channel(1);
    let (release, released) = sync_channel(1);
    let app = app(Blocking {
        asked,
        release: Mutex::new(released),
    });
    let large = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, review("missing", LARGE)).await }
    });
    let entered = tokio::task::spawn_blocking(move || entered.recv_timeout(PATIENCE).unwrap());
    entered.await.unwrap();
    (app, large, release)
}

/// All of it on one thread, as with half a processor.
#[tokio::test]
async fn a_large_review_keeps_no_thread_that_others_need() {
    let (app, large, release) = busy().await;
    assert!(ask(&app, review("small", 0)).await);
    assert!(!large.is_finished());
    release.send(()).unwrap();
    assert!(!large.await.unwrap());
}

/// The API server would wait for three times as long; its user does not have to.
#[tokio::test(start_paused = true)]
async fn a_large_review_waits_for_its_turn_for_a_second() {
    let (app, first, release) = busy().await;

    let mut second = Box::pin(response(&app, review("small", LARGE)));
    advance(Duration::from_millis(1)).await;
    assert!(second.as_mut().now_or_never().is_none());
    advance(Duration::from_millis(998)).await;
    assert!(second.as_mut().now_or_never().is_none());
    advance(Duration::from_millis(2)).await;
    // It gives up; a turn that comes now comes too late.
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
