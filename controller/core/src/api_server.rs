//! An API server in memory: the code of the program calls it, and a test answers from its objects.
//!
//! ```text
//! code of the program ─ request ─▶ channel ─▶ the test's answer, one at a time
//!          ▲                                          │
//!          └──────────────── response ────────────────┘
//! ```

use std::fmt;
use std::future::Future;
use std::pin::pin;

use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use crate::client::GuardedClient;
use crate::lease::LeaseGuard;

/// An HTTP status code and a body.
pub type Answer = (u16, Value);

/// The requests that were sent with the client, each with where its answer goes.
pub struct ApiServer<C>(mpsc::UnboundedReceiver<(C, oneshot::Sender<Answer>)>);

impl<C> fmt::Debug for ApiServer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiServer")
    }
}

/// A client and the server that it calls. `read`: what a test needs of a request.
#[expect(
    clippy::missing_panics_doc,
    reason = "for tests, in which the server runs and answers are valid"
)]
#[expect(clippy::expect_used, reason = "a test that cannot go on has failed")]
pub fn api_server<C, F>(read: fn(Request<Body>) -> F) -> (Client, ApiServer<C>)
where
    C: Send + 'static,
    F: Future<Output = C> + Send + 'static,
{
    let (requests, asked) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<Body>| {
        let requests = requests.clone();
        async move {
            let call = read(request).await;
            let (answer, answered) = oneshot::channel::<Answer>();
            requests.send((call, answer)).expect("the server runs");
            let (code, body) = answered.await?;
            let body = Body::from(body.to_string().into_bytes());
            let response = Response::builder().status(code).body(body);
            Ok::<_, oneshot::error::RecvError>(response.expect("a valid status code"))
        }
    });
    (Client::new(service, "default"), ApiServer(asked))
}

/// A client that writes only while the replica holds the Lease.
pub fn guarded(client: Client, holds_lease: bool) -> GuardedClient {
    let (_, lost) = watch::channel(None);
    let guard = if holds_lease {
        LeaseGuard::Always
    } else {
        LeaseGuard::Leased(lost)
    };
    GuardedClient::new(client, guard)
}

impl<C> ApiServer<C> {
    /// Answers requests until `calls` end.
    pub async fn serve<T>(
        mut self,
        calls: impl Future<Output = T>,
        mut answer: impl FnMut(&C) -> Answer,
    ) -> T {
        let mut calls = pin!(calls);
        loop {
            tokio::select! {
                done = &mut calls => return done,
                Some((call, reply)) = self.0.recv() => {
                    // Nobody waits any more for the answer to a call that was given up.
                    let _ = reply.send(answer(&call));
                }
            }
        }
    }
}
