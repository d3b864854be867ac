//! A proxy in front of the API server that injects a fault at a chosen write.
//!
//! ```text
//! controller ──HTTP──► FaultProxy ──as the controller's account──► kube-apiserver
//!                         │ counts writes and checks invariants before it forwards each;
//!                         │ at the chosen one: kills, rejects, drops the response, delays watches
//!                         └ may restrict lists and watches to one namespace, to the MachineImage of its
//!                           name and to the addresses of its Machines, so that many controllers run
//!                           side by side
//! ```

mod fault;
mod scope;
mod seen;

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::AbortHandle,
    time::sleep,
};

pub use fault::{Fault, Injection, Write, kind};
pub use scope::Scope;
use seen::Seen;

/// How long watches are delayed: longer than the controller's expectations last (5 s), so that it has to act on a
/// cache that lacks its own write.
const WATCH_DELAY: Duration = Duration::from_secs(6);

/// The invariant that a write would violate, if any.
type Violation = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// Checks a write before it is forwarded, and describes the invariant that it would violate.
pub type InvariantCheck = Box<dyn Fn(&Write) -> Violation + Send + Sync>;

/// A running proxy. It stops when this is dropped.
pub struct FaultProxy {
    address: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault proxy at {}", self.address)
    }
}

/// What was done while a fault was to be injected.
#[derive(Debug)]
pub struct Interrupted<T> {
    /// The counted writes meanwhile, in order.
    pub writes: Vec<String>,
    /// Whether the fault was injected.
    pub injected: bool,
    pub result: T,
}

struct State {
    client: Client,
    scope: Scope,
    check: InvariantCheck,
    seen: Mutex<Seen>,
    /// The id of the process to kill; 0 before [`FaultProxy::set_target`].
    process: AtomicU32,
    killed: Notify,
    /// The writes that were not forwarded when the process was killed.
    held: Mutex<VecDeque<(Write, Request<Body>)>>,
    /// While true, watches deliver nothing.
    watches_delayed: watch::Sender<bool>,
    /// How often all watches have been ended.
    expirations: watch::Sender<u32>,
    /// Whether every connection is refused.
    disconnected: watch::Sender<bool>,
}

impl FaultProxy {
    /// Starts a proxy with the client's credentials that injects no fault.
    pub async fn transparent(client: Client) -> Result<Self> {
        let no_check: InvariantCheck = Box::new(|_| Box::pin(std::future::ready(None)));
        Self::start(client, Scope::default(), no_check).await
    }

    /// Starts a proxy with the client's credentials.
    pub async fn start(client: Client, scope: Scope, check: InvariantCheck) -> Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            client,
            scope,
            check,
            seen: Mutex::default(),
            process: AtomicU32::new(0),
            killed: Notify::new(),
            held: Mutex::default(),
            watches_delayed: watch::Sender::new(false),
            expirations: watch::Sender::new(0),
            disconnected: watch::Sender::new(false),
        });
        let task = tokio::spawn(accept(listener, state.clone())).abort_handle();
        Ok(Self {
            address,
            state,
            task,
        })
    }

    /// A kubeconfig for clients that connect through the proxy.
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "fault-proxy", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "fault-proxy"}}],
            "current-context": "lab",
        })
        .to_string()
    }

    /// Closes every connection and refuses new ones, or accepts them again.
    pub fn set_disconnected(&self, disconnected: bool) {
        self.state.disconnected.send_replace(disconnected);
    }

    /// Sets the process that a fault kills.
    pub fn set_target(&self, process: u32) {
        self.state.process.store(process, Ordering::Release);
    }

    /// Waits until the process was killed.
    pub async fn killed(&self) {
        self.state.killed.notified().await;
    }

    /// Injects this fault while that is done. Only writes from now on count.
    pub async fn inject<T>(
        &self,
        fault: Option<Injection>,
        during: impl Future<Output = Result<T>>,
    ) -> Result<Interrupted<T>> {
        self.state.seen().begin(fault);
        let result = during.await?;
        let (writes, injected) = self.state.seen().end();
        Ok(Interrupted {
            writes,
            injected,
            result,
        })
    }

    /// Forwards the first of the writes at which the process was killed. Returns it with the HTTP status of the answer;
    /// `None` if no write is held.
    pub async fn forward_held(&self) -> Result<Option<(Write, StatusCode)>> {
        let Some((write, request)) = self.state.held().pop_front() else {
            return Ok(None);
        };
        let status = self.state.client.send(request).await?.status();
        Ok(Some((write, status)))
    }

    /// Whether a write is held at which the process was killed.
    pub fn holds_a_write(&self) -> bool {
        !self.state.held().is_empty()
    }

    /// The counted writes received so far, in order.
    pub fn writes(&self) -> Vec<String> {
        self.state.seen().writes.clone()
    }

    /// The violated invariants, each with the write that would have violated it.
    pub fn violations(&self) -> Vec<String> {
        self.state.seen().violations.clone()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    // Aborting this task ends every connection with the set.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream, state.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    let service = service_fn(|request| {
        let state = state.clone();
        async move { state.forward_request(request).await }
    });
    let mut disconnected = state.disconnected.subscribe();
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // An error is expected: the client disconnects, or a fault drops the response.
        _ = connection => {}
        _ = disconnected.wait_for(|it| *it) => {}
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl State {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, VecDeque<(Write, Request<Body>)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn forward_request(self: Arc<Self>, request: Request<Incoming>) -> Result<Answer> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let path = self.scope.path(parts.uri.path());
        let query = parts.uri.query().unwrap_or_default();
        let query = &self.scope.query(&path, query);
        let upstream = Request::builder()
            .method(&parts.method)
            .uri(format!("{path}?{query}"))
            .header(
                header::CONTENT_TYPE,
                parts
                    .headers
                    .get(header::CONTENT_TYPE)
                    .cloned()
                    .unwrap_or(header::HeaderValue::from_static("application/json")),
            )
            .body(Body::from(body.to_vec()))?;
        if query.contains("watch=true") {
            return self.watch(&path, upstream).await;
        }
        // Neither is part of a Machine's state: no fault is injected there.
        let unrelated = path.contains("/leases") || path.contains("/events");
        if parts.method == Method::GET || unrelated {
            return whole(self.client.send(upstream).await?).await;
        }
        let write = Write {
            method: parts.method.to_string(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
            path,
        };
        self.write(&write, upstream).await
    }

    async fn write(&self, write: &Write, upstream: Request<Body>) -> Result<Answer> {
        let counted = self.scope.counts(write);
        let fault = counted.then(|| self.seen().record(write)).flatten();
        if let Some(violation) = (self.check)(write).await {
            self.seen().violations.push(format!("{write}: {violation}"));
        }
        match fault {
            Some(Fault::KilledBefore) => {
                self.held().push_back((write.clone(), upstream));
                return self.kill();
            }
            Some(Fault::Rejected(status)) => return failure(status),
            Some(Fault::WatchesDelayed) => {
                self.watches_delayed.send_replace(true);
            }
            _ => {}
        }
        let answer = whole(self.client.send(upstream).await?).await;
        match fault {
            Some(Fault::KilledAfter) => return self.kill(),
            // Pending until the client's own timeout.
            Some(Fault::ResponseLost) => return std::future::pending().await,
            Some(Fault::WatchesDelayed) => {
                let watches_delayed = self.watches_delayed.clone();
                tokio::spawn(async move {
                    sleep(WATCH_DELAY).await;
                    watches_delayed.send_replace(false);
                });
            }
            Some(Fault::WatchesExpired) => self.expirations.send_modify(|times| *times += 1),
            _ => {}
        }
        answer
    }

    fn kill(&self) -> Result<Answer> {
        let process = i32::try_from(self.process.load(Ordering::Acquire))?;
        let process = Pid::from_raw(process).context("no process to kill was set")?;
        kill_process(process, Signal::KILL)?;
        self.killed.notify_one();
        anyhow::bail!("the client was killed")
    }

    async fn watch(self: Arc<Self>, path: &str, upstream: Request<Body>) -> Result<Answer> {
        if self.seen().take_outdated(path) {
            return failure(410);
        }
        let response = self.client.send(upstream).await?;
        let (parts, body) = response.into_parts();
        let times = *self.expirations.borrow();
        let state = self;
        let path = path.to_owned();
        let chunks = stream::unfold(body.into_data_stream(), move |mut body| {
            let (state, path) = (state.clone(), path.clone());
            async move {
                let expired = async {
                    // Fails only without a sender, which is part of the state.
                    let _ = state
                        .expirations
                        .subscribe()
                        .wait_for(|now| *now > times)
                        .await;
                };
                let chunk = tokio::select! {
                    chunk = body.next() => chunk?.ok()?,
                    () = expired => {
                        state.seen().outdated.push(path);
                        return None;
                    }
                };
                let _ = state
                    .watches_delayed
                    .subscribe()
                    .wait_for(|delayed| !delayed)
                    .await;
                Some((Ok(Frame::data(chunk)), body))
            }
        });
        let body = StreamBody::new(chunks).boxed_unsync();
        Ok(Response::from_parts(parts, body))
    }
}

async fn whole(response: Response<Body>) -> Result<Answer> {
    let (mut parts, body) = response.into_parts();
    // Both describe the connection to the API server, not the one to the client.
    parts.headers.remove(header::TRANSFER_ENCODING);
    parts.headers.remove(header::CONTENT_LENGTH);
    let body = body.collect().await?.to_bytes();
    Ok(Response::from_parts(parts, Full::new(body).boxed_unsync()))
}

/// A failure as the API server reports it.
fn failure(status: u16) -> Result<Answer> {
    let reason = match status {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": status,
        "reason": reason, "message": format!("injected by the fault proxy: {status}"),
    });
    let response = Response::builder()
        .status(StatusCode::from_u16(status)?)
        .header(header::CONTENT_TYPE, "application/json");
    Ok(response.body(Full::from(body.to_string()).boxed_unsync())?)
}
