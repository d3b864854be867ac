//! Carries out steps with the code of the program, at an API server whose objects are those in memory.
//!
//! ```text
//! step ─▶ apply, add_finalizer … ─ request ─▶ channel ─▶ FakeCluster::answer
//!                  ▲                                              │
//!                  └───────────────── response ───────────────────┘
//! ```

use std::pin::pin;

use controller_core::backend::Failed;
use controller_core::client::GuardedClient;
use controller_core::events::{Events, events};
use controller_core::laws::Refused;
use controller_core::lease::LeaseGuard;
use controller_core::plan::Step;
use controller_core::writes::{add_finalizer, remove_finalizer};
use hyper::http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot, watch};

use super::FakeCluster;
use super::api::Call;
use crate::apply::apply;
use crate::plan::action::Action;

/// A request, and where its answer goes: HTTP status code and body.
type Asked = (Call, oneshot::Sender<(u16, Value)>);

impl FakeCluster {
    /// Carries out one step as the program does.
    pub(crate) fn step(&mut self, step: &Step<'_, Action>) -> Result<(), Refused> {
        let Some(machine) = &self.machine.clone() else {
            return Err(Refused {
                reason: None,
                message: "the Machine is gone".into(),
            });
        };
        let done: Result<(), Failed> = self.serve(async |api, events| match step {
            Step::AddFinalizer => Ok(add_finalizer(api, machine).await.map(drop)?),
            Step::RemoveFinalizer => Ok(remove_finalizer(api, machine).await.map(drop)?),
            Step::Act(action) => apply(api, events, machine, action).await.map(drop),
        });
        Ok(done?)
    }

    /// Runs `calls` with a client of this API server until they end.
    pub(crate) fn serve<T>(&mut self, calls: impl AsyncFnOnce(&GuardedClient, &Events) -> T) -> T {
        let (lease, deadline) = watch::channel(None);
        drop(lease);
        let guard = if self.holds_lease {
            LeaseGuard::Always
        } else {
            LeaseGuard::Leased(deadline)
        };
        block_on(async {
            let (client, mut asked) = client();
            let (events, _publisher) = events(client.clone());
            let api = GuardedClient::new(client, guard);
            let mut calls = pin!(calls(&api, &events));
            loop {
                tokio::select! {
                    done = &mut calls => return done,
                    Some((call, answer)) = asked.recv() => {
                        // Nobody waits any more for the answer to a call that was given up.
                        let _ = answer.send(self.answer(&call));
                    }
                }
            }
        })
    }
}

/// Runs async code in a test that is not async itself: the steps of a [`FakeCluster`] cannot be taken within a runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.unwrap().block_on(future)
}

/// A client, and the requests that are made with it.
fn client() -> (Client, mpsc::UnboundedReceiver<Asked>) {
    let (requests, asked) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<Body>| {
        let requests = requests.clone();
        async move {
            let call = Call::read(request).await;
            let (answer, answered) = oneshot::channel::<(u16, Value)>();
            requests.send((call, answer)).expect("the server runs");
            let (code, body) = answered.await?;
            let body = Body::from(body.to_string().into_bytes());
            let response = Response::builder().status(code).body(body);
            Ok::<_, oneshot::error::RecvError>(response.unwrap())
        }
    });
    (Client::new(service, "default"), asked)
}
