//! Writes that need the webhook, at a steady rate, while something happens to its pods.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use futures::future::join;
use hyper::{Request, header::CONTENT_TYPE};
use lab::{Lab, reviews};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

/// The time between two writes: 40 a second, and each is reviewed twice.
const PERIOD: Duration = Duration::from_millis(25);

/// Fewer writes than this show nothing: even a busy machine answers as many in some seconds.
const ANSWERED_MIN: usize = 20;

/// Answers in a second, on average, of 40 writes: fewer would not notice an interruption of a second.
const RATE_MIN: u64 = 2;

/// What became of the writes.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) answered: usize,
    /// The time since the beginning, and the error.
    pub(crate) failed: Vec<(Duration, String)>,
    pub(crate) took: Duration,
}

impl Calls {
    /// Asserts that none has failed, and that there were some.
    pub(crate) fn all_answered(&self, meanwhile: &str) {
        assert!(self.failed.is_empty(), "{meanwhile}: {:#?}", self.failed);
        self.were_steady(meanwhile);
    }

    /// Asserts that there were enough of them to notice an interruption, and prints their number.
    pub(crate) fn were_steady(&self, meanwhile: &str) {
        let (answered, seconds) = (self.answered, self.took.as_secs());
        let failed = self.failed.len();
        eprintln!("{meanwhile}: {answered} writes answered, {failed} failed, in {seconds} s");
        assert!(answered > ANSWERED_MIN, "{meanwhile}");
        assert!(answered as u64 >= RATE_MIN * seconds, "{meanwhile}");
    }
}

/// Writes Machines, as dry runs, until `meanwhile` has ended.
pub(crate) async fn during(lab: &Lab, meanwhile: impl Future<Output = ()>) -> Calls {
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    let writing = async {
        let (mut calls, mut running) = (Calls::default(), JoinSet::new());
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !is_over.load(Ordering::Relaxed) {
            ticks.tick().await;
            running.spawn(write(lab.client().clone(), calls.answered + running.len()));
            while let Some(written) = running.try_join_next() {
                count(&mut calls, start, written.unwrap());
            }
        }
        while let Some(written) = running.join_next().await {
            count(&mut calls, start, written.unwrap());
        }
        calls.took = start.elapsed();
        calls
    };
    let others = async {
        meanwhile.await;
        is_over.store(true, Ordering::Relaxed);
    };
    join(writing, others).await.0
}

fn count(calls: &mut Calls, start: Instant, written: Result<(), String>) {
    match written {
        Ok(()) => calls.answered += 1,
        Err(error) => calls.failed.push((start.elapsed(), error)),
    }
}

/// One write that both webhooks review; with the answer of the mutating one.
async fn write(client: kube::Client, number: usize) -> Result<(), String> {
    let machine = reviews::machine(&format!("steady-{number}"), &json!({"template": "small"}));
    let path = "/apis/vitistack.io/v1alpha1/namespaces/default/machines?dryRun=All";
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    let request = request.body(machine.to_string().into_bytes()).unwrap();
    let created: Result<Value, kube::Error> = client.request(request).await;
    let created = created.map_err(|error| error.to_string())?;
    let has_block = created["spec"]["normalized"].is_object();
    has_block.then_some(()).ok_or_else(|| "no block".to_owned())
}
