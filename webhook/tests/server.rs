//! Limits and shutdown of the server, over TLS on the loopback interface.
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use certs::{CA_LIFETIME, Ca, LEAF_LIFETIME, ServerCertResolver, ServerNames};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS12;
use rustls::{RootCertStore, SupportedProtocolVersion};
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use webhook::body::{BODY_MAX, BodyBudget, IN_FLIGHT_MAX};
use webhook::server::{Closing, Limits, TlsVersion, serve, tls};

/// A limit that is short enough for a test, and long enough for a busy machine.
const SHORT: Duration = Duration::from_millis(300);
/// Limit for something that happens at once on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn limits() -> Limits {
    Limits {
        closing: SHORT,
        announced: SHORT,
        ..Limits::default()
    }
}

/// What the routes of these tests share.
#[derive(Clone)]
struct Routes {
    budget: BodyBudget,
    entered: Arc<Notify>,
    release: Arc<Notify>,
}

struct Server {
    address: SocketAddr,
    connector: TlsConnector,
    roots: RootCertStore,
    closing: Closing,
    routes: Routes,
    running: JoinHandle<()>,
}

async fn length(State(routes): State<Routes>, body: Body) -> (StatusCode, String) {
    match routes.budget.read(Ipv4Addr::LOCALHOST.into(), body).await {
        Ok(whole) => (StatusCode::OK, whole.bytes.len().to_string()),
        Err(error) => (error.status(), error.to_string()),
    }
}

async fn start(limits: Limits, budget: BodyBudget) -> Server {
    start_with(limits, budget, TlsVersion::default()).await
}

async fn start_with(limits: Limits, budget: BodyBudget, oldest: TlsVersion) -> Server {
    let now = OffsetDateTime::now_utc();
    let ca = Ca::generate("CA", now, CA_LIFETIME).unwrap();
    let resolver = ServerCertResolver::default();
    resolver.set_leaf(
        &ca.sign(
            &ServerNames::new(["127.0.0.1".to_owned()]).unwrap(),
            now,
            LEAF_LIFETIME,
        )
        .unwrap(),
    );

    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.certificate_pem().as_bytes()).unwrap())
        .unwrap();
    let connector = connector(&roots, rustls::DEFAULT_VERSIONS);

    let shared = Routes {
        budget,
        entered: Arc::default(),
        release: Arc::default(),
    };
    let router = Router::new()
        .route("/length", post(length))
        .route("/hello", get(async || "hello"))
        .route(
            "/wait",
            get(async |State(shared): State<Routes>| {
                shared.entered.notify_one();
                shared.release.notified().await;
                "waited"
            }),
        )
        .with_state(shared.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let closing = Closing::new();
    let tls = tls(Arc::new(resolver), oldest, None).unwrap();
    let running = tokio::spawn(serve(listener, tls, router, limits, closing.clone()));
    Server {
        address,
        connector,
        roots,
        closing,
        routes: shared,
        running,
    }
}

fn connector(
    roots: &RootCertStore,
    versions: &[&'static SupportedProtocolVersion],
) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots.clone())
        .with_no_client_auth();
    TlsConnector::from(Arc::new(client))
}

impl Server {
    async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        self.connector.connect(name, stream).await
    }
}

const HELLO: &str = "GET /hello HTTP/1.1\r\nhost: x\r\n\r\n";

/// Sends `request` and reads one response with a declared length: status, head, body.
async fn exchange(
    stream: &mut TlsStream<TcpStream>,
    request: &[u8],
) -> io::Result<(u16, String, String)> {
    stream.write_all(request).await?;
    stream.flush().await?;
    answer(stream).await
}

async fn answer(stream: &mut TlsStream<TcpStream>) -> io::Result<(u16, String, String)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await?;
    Ok((status, head, String::from_utf8(body).unwrap()))
}

/// Whether the peer closes the connection within [`TIMEOUT`]; what it still sends is skipped.
async fn closed(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> bool {
    let mut rest = Vec::new();
    timeout(TIMEOUT, stream.read_to_end(&mut rest))
        .await
        .is_ok()
}

fn post_head(length: usize) -> Vec<u8> {
    format!("POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn requests_use_http_1_1_over_tls_1_3_and_keep_the_connection() {
    let server = start(limits(), BodyBudget::default()).await;
    let mut stream = server.connect().await.unwrap();
    let version = stream.get_ref().1.protocol_version();
    assert_eq!(version, Some(rustls::ProtocolVersion::TLSv1_3));
    for _ in 0..3 {
        let (status, _, body) = exchange(&mut stream, HELLO.as_bytes()).await.unwrap();
        assert_eq!((status, body.as_str()), (200, "hello"));
    }
}

#[tokio::test]
async fn tls_1_2_is_accepted_only_if_allowed() {
    for (oldest, is_accepted) in [(TlsVersion::V1_2, true), (TlsVersion::V1_3, false)] {
        let mut server = start_with(limits(), BodyBudget::default(), oldest).await;
        let version = server
            .connect()
            .await
            .unwrap()
            .get_ref()
            .1
            .protocol_version();
        assert_eq!(version, Some(rustls::ProtocolVersion::TLSv1_3));
        server.connector = connector(&server.roots, &[&TLS12]);
        assert_eq!(server.connect().await.is_ok(), is_accepted, "{oldest:?}");
    }
}

#[tokio::test]
async fn an_incomplete_or_invalid_handshake_is_closed() {
    let limits = Limits {
        handshake: SHORT,
        ..limits()
    };
    let server = start(limits, BodyBudget::default()).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert!(closed(&mut silent).await);

    // With time for a handshake on a busy machine.
    let server = start(self::limits(), BodyBudget::default()).await;
    let mut garbled = TcpStream::connect(server.address).await.unwrap();
    garbled.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(closed(&mut garbled).await);
    assert!(server.connect().await.is_ok(), "others are still served");
}

#[tokio::test]
async fn a_slow_head_closes_the_connection_and_idling_does_not() {
    let limits = Limits {
        head: SHORT,
        ..limits()
    };
    let server = start(limits, BodyBudget::default()).await;
    let mut idle = server.connect().await.unwrap();
    let mut used = server.connect().await.unwrap();
    exchange(&mut used, HELLO.as_bytes()).await.unwrap();

    let mut slow = server.connect().await.unwrap();
    slow.write_all(b"GET /hello HT").await.unwrap();
    slow.flush().await.unwrap();
    let began = Instant::now();
    assert!(closed(&mut slow).await);
    assert!(began.elapsed() >= SHORT, "not before the limit");

    // The same for the head of a second request.
    used.write_all(b"G").await.unwrap();
    used.flush().await.unwrap();
    assert!(closed(&mut used).await);
    assert_eq!(exchange(&mut idle, HELLO.as_bytes()).await.unwrap().0, 200);
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_the_idle_limit_counted_from_the_last_request() {
    let idle = Duration::from_secs(2);
    let server = start(Limits { idle, ..limits() }, BodyBudget::default()).await;
    let mut stream = server.connect().await.unwrap();
    // If the limit were counted from the start of the connection, it would end earlier by this.
    tokio::time::sleep(idle / 8).await;
    let began = Instant::now();
    exchange(&mut stream, HELLO.as_bytes()).await.unwrap();
    assert!(closed(&mut stream).await);
    assert!(began.elapsed() >= idle, "{:?}", began.elapsed());
}

#[tokio::test]
async fn bodies_up_to_seven_mebibytes_are_read_and_larger_ones_answered_413() {
    let server = start(limits(), BodyBudget::default()).await;
    let mut stream = server.connect().await.unwrap();
    let mut request = post_head(BODY_MAX);
    request.resize(request.len() + BODY_MAX, b' ');
    let (status, _, body) = exchange(&mut stream, &request).await.unwrap();
    assert_eq!((status, body), (200, BODY_MAX.to_string()));

    let mut request = post_head(BODY_MAX + 1);
    request.resize(request.len() + BODY_MAX + 1, b' ');
    let (status, _, body) = exchange(&mut stream, &request).await.unwrap();
    assert_eq!(
        (status, body.as_str()),
        (413, "the body is larger than 7 MiB")
    );
}

#[tokio::test]
async fn a_chunked_body_has_the_same_limit() {
    let server = start(limits(), BodyBudget::default()).await;
    let mut stream = server.connect().await.unwrap();
    let mut request =
        b"POST /length HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let size = 1024 * 1024;
    for _ in 0..=BODY_MAX / size {
        request.extend_from_slice(format!("{size:x}\r\n").as_bytes());
        request.resize(request.len() + size, b' ');
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(exchange(&mut stream, &request).await.unwrap().0, 413);
}

#[tokio::test]
async fn a_slow_body_is_answered_408() {
    let server = start(limits(), BodyBudget::new(IN_FLIGHT_MAX, SHORT)).await;
    let mut stream = server.connect().await.unwrap();
    let mut request = post_head(100);
    request.push(b' ');
    let (status, _, body) = exchange(&mut stream, &request).await.unwrap();
    assert_eq!(
        (status, body.as_str()),
        (408, "the body did not arrive in time")
    );
}

#[tokio::test]
async fn bodies_share_a_budget_that_a_declared_length_alone_does_not_use() {
    let server = start(limits(), BodyBudget::new(1_000, Duration::from_secs(5))).await;
    let (mut one, mut two) = (
        server.connect().await.unwrap(),
        server.connect().await.unwrap(),
    );
    one.write_all(&post_head(1_000)).await.unwrap();
    one.flush().await.unwrap();
    let mut request = post_head(900);
    request.resize(request.len() + 900, b' ');
    assert_eq!(
        exchange(&mut two, &request).await.unwrap().0,
        200,
        "the declared length uses nothing"
    );

    let mut too_much = post_head(1_001);
    too_much.resize(too_much.len() + 1_001, b' ');
    let (status, _, body) = exchange(&mut two, &too_much).await.unwrap();
    assert_eq!(
        (status, body.as_str()),
        (429, "too many reviews at once, try again")
    );
    assert_eq!(
        exchange(&mut one, &[b' '; 1_000]).await.unwrap().0,
        200,
        "the share was released"
    );
}

#[tokio::test]
async fn at_the_limit_an_unused_connection_is_closed_and_a_busy_one_never() {
    let limits = Limits {
        connections: 2,
        ..limits()
    };
    let server = start(limits, BodyBudget::default()).await;
    let (mut unused, mut used) = (
        server.connect().await.unwrap(),
        server.connect().await.unwrap(),
    );
    exchange(&mut used, HELLO.as_bytes()).await.unwrap();
    let mut newest = server.connect().await.unwrap();
    assert!(closed(&mut unused).await);
    for stream in [&mut used, &mut newest] {
        assert_eq!(exchange(stream, HELLO.as_bytes()).await.unwrap().0, 200);
        let wait = b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n";
        stream.write_all(wait).await.unwrap();
        stream.flush().await.unwrap();
        server.routes.entered.notified().await;
    }

    assert!(server.connect().await.is_err(), "both are being answered");
    for stream in [&mut used, &mut newest] {
        server.routes.release.notify_one();
        assert_eq!(answer(stream).await.unwrap().2, "waited");
    }
    drop(used);
    drop(newest);
    let again = async { while server.connect().await.is_err() {} };
    timeout(TIMEOUT, again).await.expect("a permit is released");
}

#[tokio::test]
async fn an_oversized_head_is_refused_before_its_time_limit() {
    let limits = Limits {
        head: 10 * TIMEOUT,
        ..limits()
    };
    let server = start(limits, BodyBudget::default()).await;
    let mut stream = server.connect().await.unwrap();
    let mut request = b"GET /hello HTTP/1.1\r\nhost: x\r\nx: ".to_vec();
    request.resize(128 * 1024, b'x');
    let answered = timeout(TIMEOUT, exchange(&mut stream, &request))
        .await
        .unwrap();
    // The server may close while this is still being written.
    assert!(answered.is_err() || answered.unwrap().0 == 431);
}

#[tokio::test]
async fn the_shutdown_answers_pending_requests_and_closes_idle_connections() {
    // Time for a handshake and a request on a busy machine.
    let limits = Limits {
        announced: Duration::from_secs(10),
        ..limits()
    };
    let server = start(limits, BodyBudget::default()).await;
    let (mut busy, mut idle, mut unused) = (
        server.connect().await.unwrap(),
        server.connect().await.unwrap(),
        server.connect().await.unwrap(),
    );
    exchange(&mut idle, HELLO.as_bytes()).await.unwrap();
    busy.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    busy.flush().await.unwrap();
    server.routes.entered.notified().await;

    server.closing.cancel();
    // At first clients are served, with `Connection: close`.
    let (status, head, _) = exchange(&mut server.connect().await.unwrap(), HELLO.as_bytes())
        .await
        .unwrap();
    assert_eq!(status, 200);
    assert!(head.contains("connection: close"), "{head}");
    assert!(closed(&mut idle).await && closed(&mut unused).await);
    assert!(!server.running.is_finished(), "one request is pending");
    assert!(
        server.connect().await.is_err(),
        "no new connection is accepted"
    );

    server.routes.release.notify_one();
    let (status, head, body) = answer(&mut busy).await.unwrap();
    assert_eq!((status, body.as_str()), (200, "waited"));
    assert!(head.contains("connection: close"), "{head}");
    timeout(TIMEOUT, server.running).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_shutdown_ends_after_the_drain_time() {
    let limits = Limits {
        drain: SHORT,
        ..limits()
    };
    let server = start(limits, BodyBudget::default()).await;
    let mut busy = server.connect().await.unwrap();
    busy.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    busy.flush().await.unwrap();
    server.routes.entered.notified().await;
    server.closing.cancel();
    timeout(TIMEOUT, server.running).await.unwrap().unwrap();
    assert!(closed(&mut busy).await);
}
