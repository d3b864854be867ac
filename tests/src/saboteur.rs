//! A way to the API server that breaks where it is told to.
//!
//! ```text
//! controller ──HTTP──► Saboteur ──as the controller's account──► kube-apiserver
//!                         │ counts the writes, lets a witness look at each before it goes on,
//!                         │ and at the one it was told: kills, refuses, loses, holds up
//!                         └ shows one namespace only, if it was told, so that many controllers
//!                           work side by side
//! ```

use std::{
    convert::Infallible,
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
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
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::AbortHandle,
    time::sleep,
};

/// Longer than the controller waits for what it wrote to come back: then it acts on what it knows.
const HELD_UP: Duration = Duration::from_secs(6);

/// Kinds that are watched in the whole cluster, and here in one namespace.
const SCOPED: [&str; 8] = [
    "machines",
    "networkconfigurations",
    "virtualmachines",
    "virtualmachineinstances",
    "persistentvolumeclaims",
    "secrets",
    "network-attachment-definitions",
    "datavolumes",
];

/// What happens at a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The controller is killed, and the write never comes.
    KilledBefore,
    /// The write is done, and the controller is killed before it hears of it.
    KilledAfter,
    /// The write is not done, and answered with this status.
    Refused(u16),
    /// The write is done, and never answered.
    Lost,
    /// The write is done; for some seconds no watch tells anything.
    HeldUp,
    /// The write is done; every watch ends, and what it would have told is too old to be had.
    Expired,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KilledBefore => f.write_str("killed before"),
            Self::KilledAfter => f.write_str("killed after"),
            Self::Refused(status) => write!(f, "HTTP {status} instead of"),
            Self::Lost => f.write_str("no answer to"),
            Self::HeldUp => f.write_str("watches held up after"),
            Self::Expired => f.write_str("watches expired after"),
        }
    }
}

/// A write on its way.
#[derive(Debug, Clone)]
pub struct Write {
    /// `POST`, `PATCH`, `DELETE`.
    pub method: String,
    /// The path, without its query.
    pub path: String,
    /// What is sent; null if it is no JSON.
    pub body: Value,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.body["metadata"]["name"].as_str().unwrap_or_default();
        let made = if self.method == "POST" { name } else { "" };
        let path = self.path.split_once("/namespaces/").map_or("", |at| at.1);
        let path = path.split_once('/').map_or("", |at| at.1);
        write!(f, "{} {path} {made}", self.method)
    }
}

type Told = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// Looks at a write before it is done; tells what must not be.
pub type Witness = Box<dyn Fn(&Write) -> Told + Send + Sync>;

/// The way. It ends when this is dropped.
pub struct Saboteur {
    address: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
}

impl fmt::Debug for Saboteur {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "saboteur at {}", self.address)
    }
}

struct State {
    client: Client,
    namespace: Option<String>,
    /// What happens, and at which write, counted from 1.
    fault: Option<(usize, Fault)>,
    witness: Witness,
    seen: Mutex<Seen>,
    /// Who is killed; 0: nobody yet.
    process: AtomicU32,
    killed: Notify,
    /// Watches tell what they know only while this is false.
    held_up: watch::Sender<bool>,
    /// How often all watches have been ended.
    expired: watch::Sender<u32>,
    /// Whether nothing goes this way.
    cut: watch::Sender<bool>,
}

#[derive(Default)]
struct Seen {
    writes: Vec<String>,
    violations: Vec<String>,
    /// Watches that have to be told that they are too old.
    outdated: Vec<String>,
}

impl Seen {
    /// Whether this watch has to be told that it is too old; once.
    fn forget(&mut self, path: &str) -> bool {
        let at = self.outdated.iter().position(|it| it == path);
        at.map(|at| self.outdated.swap_remove(at)).is_some()
    }
}

impl Saboteur {
    /// Opens a way for the account that the client has, on which nothing happens by itself.
    pub async fn open(client: Client) -> Result<Self> {
        let blind: Witness = Box::new(|_| Box::pin(std::future::ready(None)));
        Self::start(client, None, None, blind).await
    }

    /// Opens a way for the account that the client has, into one namespace or all.
    pub async fn start(
        client: Client,
        namespace: Option<&str>,
        fault: Option<(usize, Fault)>,
        witness: Witness,
    ) -> Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            client,
            namespace: namespace.map(ToOwned::to_owned),
            fault,
            witness,
            seen: Mutex::default(),
            process: AtomicU32::new(0),
            killed: Notify::new(),
            held_up: watch::Sender::new(false),
            expired: watch::Sender::new(0),
            cut: watch::Sender::new(false),
        });
        let task = tokio::spawn(accept(listener, state.clone())).abort_handle();
        Ok(Self {
            address,
            state,
            task,
        })
    }

    /// The text of a kubeconfig that goes this way.
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "saboteur", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "saboteur"}}],
            "current-context": "lab",
        })
        .to_string()
    }

    /// Ends every connection and takes no other, or takes them again.
    pub fn cut(&self, cut: bool) {
        self.state.cut.send_replace(cut);
    }

    /// Whom to kill, from now on.
    pub fn aim(&self, process: u32) {
        self.state.process.store(process, Ordering::Release);
    }

    /// Waits until somebody was killed.
    pub async fn killed(&self) {
        self.state.killed.notified().await;
    }

    /// The writes that came, in order.
    pub fn writes(&self) -> Vec<String> {
        self.state.seen().writes.clone()
    }

    /// Whether what was to happen has happened.
    pub fn struck(&self) -> bool {
        let writes = self.state.seen().writes.len();
        self.state.fault.is_some_and(|(at, _)| at <= writes)
    }

    /// What the witness has told, with the write it was about.
    pub fn violations(&self) -> Vec<String> {
        self.state.seen().violations.clone()
    }
}

impl Drop for Saboteur {
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
        async move { state.pass(request).await }
    });
    let mut cut = state.cut.subscribe();
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // It ends with the client, or with an answer that is none: both are what was asked for.
        _ = connection => {}
        _ = cut.wait_for(|cut| *cut) => {}
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl State {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn pass(self: Arc<Self>, request: Request<Incoming>) -> Result<Answer> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let path = scoped(parts.uri.path(), self.namespace.as_deref());
        let query = parts.uri.query().unwrap_or_default();
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
        // Neither are part of what a Machine is.
        let beside = path.contains("/leases") || path.contains("/events");
        if parts.method == Method::GET || beside {
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
        let number = {
            let mut seen = self.seen();
            seen.writes.push(write.to_string());
            seen.writes.len()
        };
        if let Some(told) = (self.witness)(write).await {
            self.seen().violations.push(format!("{write}: {told}"));
        }
        let fault = self.fault.filter(|(at, _)| *at == number);
        let fault = fault.map(|(_, fault)| fault);
        match fault {
            Some(Fault::KilledBefore) => return self.kill(),
            Some(Fault::Refused(status)) => return refusal(status),
            Some(Fault::HeldUp) => {
                self.held_up.send_replace(true);
            }
            _ => {}
        }
        let answer = whole(self.client.send(upstream).await?).await;
        match fault {
            Some(Fault::KilledAfter) => return self.kill(),
            // Until whoever asked gives up.
            Some(Fault::Lost) => return std::future::pending().await,
            Some(Fault::HeldUp) => {
                let held_up = self.held_up.clone();
                tokio::spawn(async move {
                    sleep(HELD_UP).await;
                    held_up.send_replace(false);
                });
            }
            Some(Fault::Expired) => self.expired.send_modify(|times| *times += 1),
            _ => {}
        }
        answer
    }

    fn kill(&self) -> Result<Answer> {
        let process = i32::try_from(self.process.load(Ordering::Acquire))?;
        let process = Pid::from_raw(process).context("nobody to kill")?;
        kill_process(process, Signal::KILL)?;
        self.killed.notify_one();
        anyhow::bail!("nobody to answer to")
    }

    async fn watch(self: Arc<Self>, path: &str, upstream: Request<Body>) -> Result<Answer> {
        if self.seen().forget(path) {
            return refusal(410);
        }
        let response = self.client.send(upstream).await?;
        let (parts, body) = response.into_parts();
        let times = *self.expired.borrow();
        let state = self;
        let path = path.to_owned();
        let chunks = stream::unfold(body.into_data_stream(), move |mut body| {
            let (state, path) = (state.clone(), path.clone());
            async move {
                let expired = async {
                    // The sender is part of the state, which is held here.
                    let _ = state.expired.subscribe().wait_for(|now| *now > times).await;
                };
                let chunk = tokio::select! {
                    chunk = body.next() => chunk?.ok()?,
                    () = expired => {
                        state.seen().outdated.push(path);
                        return None;
                    }
                };
                let _ = state.held_up.subscribe().wait_for(|held_up| !held_up).await;
                Some((Ok(Frame::data(chunk)), body))
            }
        });
        let body = StreamBody::new(chunks).boxed_unsync();
        Ok(Response::from_parts(parts, body))
    }
}

/// A list or watch of the whole cluster becomes one of the namespace.
fn scoped(path: &str, namespace: Option<&str>) -> String {
    match (path.rsplit_once('/'), namespace) {
        (Some((before, kind)), Some(namespace))
            if SCOPED.contains(&kind) && !before.contains("/namespaces/") =>
        {
            format!("{before}/namespaces/{namespace}/{kind}")
        }
        _ => path.to_owned(),
    }
}

async fn whole(response: Response<Body>) -> Result<Answer> {
    let (mut parts, body) = response.into_parts();
    // Both are about how it came here.
    parts.headers.remove(header::TRANSFER_ENCODING);
    parts.headers.remove(header::CONTENT_LENGTH);
    let body = body.collect().await?.to_bytes();
    Ok(Response::from_parts(parts, Full::new(body).boxed_unsync()))
}

/// As the API server refuses.
fn refusal(status: u16) -> Result<Answer> {
    let reason = match status {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": status,
        "reason": reason, "message": format!("the saboteur says {status}"),
    });
    let response = Response::builder()
        .status(StatusCode::from_u16(status)?)
        .header(header::CONTENT_TYPE, "application/json");
    Ok(response.body(Full::from(body.to_string()).boxed_unsync())?)
}
