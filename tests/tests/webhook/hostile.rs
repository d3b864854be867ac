//! Clients that use more than their share of resources do not affect other clients.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use lab::http::{self, Connection};
use lab::load::LATE_BODY;
use lab::{Lab, ProgramUnderTest, usage, wait};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

use crate::{JSON, admit, assert_healthy, lab, response, review, send, with_spec};

/// How long the webhook may take to close a connection that misbehaves; its own limits are 5 and 10 s.
const CLOSED_WITHIN: Duration = Duration::from_secs(30);
/// The webhook's limit of a body, in bytes.
const BODY_MAX: usize = 7 * 1024 * 1024;
/// The webhook's limit of memory in `manifests/install`, in MiB.
const MEMORY_MAX: u64 = 512;
/// Memory of all connections, in MiB: 1,024 of them with 64 KiB of buffers each.
const CONNECTIONS_MAX: u64 = 64;

/// Awaits `others` while another client sends reviews without a pause, on an open connection and on new ones, and
/// checks that each is answered.
async fn while_served<T>(lab: &Lab, others: impl Future<Output = T>) -> T {
    let (address, ca) = (lab.webhook_address(), lab.ca_bundle().await.unwrap());
    let mut kept = Connection::tls(address, &ca).await.unwrap();
    let ca = String::from_utf8(ca).unwrap();
    let mut answered = 0;
    let healthy = async {
        loop {
            let answer = kept.post("/validate", review().to_string()).await;
            response(&answer.unwrap());
            admit(address, &ca).await.unwrap();
            answered += 2;
            sleep(Duration::from_millis(10)).await;
        }
    };
    let done = tokio::select! {
        () = healthy => unreachable!("the client never ends"),
        done = others => done,
    };
    assert!(answered > 0);
    done
}

/// Awaits `others` while the program is probed, checks that each probe is answered, and returns how long the slowest
/// took: kubelet waits for one second by default. On a busy machine it may take longer, which fails nothing here.
async fn while_probed<T>(health: SocketAddr, others: impl Future<Output = T>) -> (T, Duration) {
    let mut slowest = Duration::ZERO;
    let probes = async {
        loop {
            for path in ["/healthz", "/readyz"] {
                let start = Instant::now();
                assert_eq!(http::get(health, path).await.unwrap().status, 200, "{path}");
                slowest = slowest.max(start.elapsed());
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let done = tokio::select! {
        () = probes => unreachable!("the probes never end"),
        done = others => done,
    };
    assert!(slowest > Duration::ZERO, "a probe was answered");
    (done, slowest)
}

/// Peak memory of the webhook since its start, in MiB.
fn peak(webhook: &mut ProgramUnderTest) -> u64 {
    usage::memory(webhook.process().id()).unwrap().peak
}

#[tokio::test]
async fn large_bodies_are_answered_or_refused_within_the_memory_limit() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let mut whole = review().to_string().into_bytes();
    whole.resize(BODY_MAX, b' ');
    // On a busy machine the first one may take longer than a review has time.
    let answer = wait::until("a review of 7 MiB to be answered in time", async || {
        let answer = send(&lab, "/mutate", JSON, whole.clone()).await;
        if (answer.status, answer.text().as_str()) == (408, LATE_BODY) {
            return Ok(Err(answer.text()));
        }
        let answer = response(&answer);
        let is_late = answer["status"]["code"] == 504;
        Ok(if is_late {
            Err(answer.to_string())
        } else {
            Ok(answer)
        })
    });
    assert_eq!(answer.await.unwrap()["allowed"], true);
    whole.push(b' ');
    let answer = send(&lab, "/mutate", JSON, whole).await;
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (413, "the body is larger than 7 MiB\n")
    );

    // A list of numbers needs the most memory for its size.
    let mut hostile = with_spec(&format!(
        "{{\"disks\":[{}0]}}",
        "0,".repeat(BODY_MAX / 2 - 1_000)
    ));
    assert!(hostile.len() <= BODY_MAX);
    hostile.extend(std::iter::repeat_n(' ', BODY_MAX - hostile.len()));
    let hostile = Bytes::from(hostile);
    let answers = (0..50).map(|_| send(&lab, "/mutate", JSON, hostile.clone()));
    let health = webhook.health_address().await.unwrap();
    let answers = while_probed(health, while_served(&lab, join_all(answers)));
    let (answers, slowest) = answers.await;
    println!("slowest probe: {} ms", slowest.as_millis());
    let mut reviewed = 0;
    for answer in answers {
        match answer.status {
            429 => assert_eq!(answer.text(), "too many reviews at once, try again\n"),
            // The other bodies and their clients take the processors.
            408 => assert_eq!(answer.text(), LATE_BODY),
            _ => {
                let status = response(&answer)["status"].take();
                let code = status["code"].as_u64().unwrap();
                assert!(code == 422 || code == 504, "{status}");
                reviewed += 1;
            }
        }
    }
    assert!(reviewed > 0, "no body was read");
    let peak = peak(&mut webhook);
    println!("{peak} MiB at most");
    assert!(peak < MEMORY_MAX);
    assert_healthy(&lab, &mut webhook).await;
}

#[tokio::test]
async fn silent_slow_and_malformed_connections_are_closed_while_others_are_served() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let (address, ca) = (lab.webhook_address(), lab.ca_bundle().await.unwrap());
    let mut healthy = Connection::tls(address, &ca).await.unwrap();

    let silent = join_all((0..100).map(|_| http::tcp(address))).await;
    let mut plain = http::tcp(address).await.unwrap();
    plain
        .write_all(b"POST /mutate HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut garbage = http::tcp(address).await.unwrap();
    garbage
        .write_all(&[0x16, 0x03, 0x01, 0xff, 0xff, 0x00, 0x00])
        .await
        .unwrap();
    let mut slow_head = http::tls(address, &ca).await.unwrap();
    slow_head.write_all(b"POST /mutate HT").await.unwrap();
    slow_head.flush().await.unwrap();
    let mut slow_body = half_sent(address, &ca).await;
    // A client that disconnects in the middle of its body.
    drop(half_sent(address, &ca).await);

    let answer = healthy
        .post("/validate", review().to_string())
        .await
        .unwrap();
    response(&answer);

    // Clients that do not speak TLS get an alert (type 21) and nothing else.
    assert_eq!(rest(&mut plain).await.first(), Some(&21));
    assert_eq!(rest(&mut garbage).await.first(), Some(&21));
    assert_eq!(rest(&mut slow_head).await, b"");
    let answer = String::from_utf8(rest(&mut slow_body).await).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"),
        "{answer}"
    );
    assert!(
        answer.ends_with(&format!("\r\n\r\n{LATE_BODY}")),
        "{answer}"
    );
    for stream in silent {
        assert_eq!(rest(&mut stream.unwrap()).await, b"");
    }
    let answer = healthy
        .post("/validate", review().to_string())
        .await
        .unwrap();
    response(&answer);
    assert_healthy(&lab, &mut webhook).await;
}

/// Addresses of clients that open as many connections as they can. Together they may have 768 connections of 1,024.
const HOSTILE: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3)),
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 4)),
];

/// Ten times the limit of connections, every fifth with a TLS handshake, none with a request.
#[tokio::test]
async fn ten_thousand_idle_connections_do_not_block_other_clients() {
    const SILENT: usize = 8_000;
    const WITH_HANDSHAKE: usize = 2_000;
    // The client sides of these connections are file descriptors of this process.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let before = peak(&mut webhook);
    let (address, ca) = (lab.webhook_address(), lab.ca_bundle().await.unwrap());

    let flood = async {
        let mut silent = Vec::new();
        let mut sources = HOSTILE.into_iter().cycle();
        for source in sources.by_ref().take(SILENT) {
            silent.push(http::tcp_from(source, address).await.unwrap());
        }
        let mut idle = Vec::new();
        for source in sources.take(WITH_HANDSHAKE / 100) {
            let many = http::tls_many_from(source, address, &ca, 100).await;
            idle.extend(many.unwrap());
        }
        // The oldest connections are evicted long before the handshake timeout of the newest.
        rest(&mut silent[0]).await;
        rest(&mut idle[0]).await;
        (silent, idle)
    };
    let (silent, idle) = while_served(&lab, flood).await;
    let metrics = webhook.metrics().await.unwrap();
    let ended = |reason: &str| -> usize {
        let name = format!("machine_webhook_connections_refused_total{{reason=\"{reason}\"}} ");
        let count = metrics.lines().find_map(|line| line.strip_prefix(&name));
        count.unwrap().parse().unwrap()
    };
    let (displaced, late) = (ended("displaced"), ended("handshake"));
    assert!(displaced + late > SILENT + WITH_HANDSHAKE - 2 * 1_024);
    assert!(displaced > 1_024, "{displaced}");
    let grown = peak(&mut webhook) - before;
    println!(
        "{displaced} connections were displaced, {late} had no handshake in time; {grown} MiB"
    );
    assert!(grown < CONNECTIONS_MAX, "{grown} MiB");
    drop((silent, idle));
    assert_healthy(&lab, &mut webhook).await;
}

/// A client that sends its header byte by byte does not extend the deadline of the header.
#[tokio::test]
async fn headers_sent_byte_by_byte_are_closed_at_their_deadline() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let (address, ca) = (lab.webhook_address(), lab.ca_bundle().await.unwrap());
    let streams = http::tls_many_from(HOSTILE[0], address, &ca, 200)
        .await
        .unwrap();
    let drip = |mut stream: tokio_rustls::client::TlsStream<_>| async move {
        stream.write_all(b"POST /mutate HTTP/1.1\r\nx: ").await?;
        loop {
            stream.write_all(b"x").await?;
            stream.flush().await?;
            sleep(Duration::from_millis(200)).await;
        }
    };
    let dripping = timeout(CLOSED_WITHIN, join_all(streams.into_iter().map(drip)));
    let ends: Vec<std::io::Result<()>> = while_served(&lab, dripping).await.unwrap();
    assert!(ends.iter().all(Result::is_err));
    assert_healthy(&lab, &mut webhook).await;
}

#[tokio::test]
async fn compressed_bodies_are_refused_without_being_read() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let (address, ca) = (lab.webhook_address(), lab.ca_bundle().await.unwrap());
    for encoding in ["gzip", "br", "identity"] {
        let mut stream = http::tls(address, &ca).await.unwrap();
        let request = format!(
            "POST /mutate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             content-encoding: {encoding}\r\nconnection: close\r\ncontent-length: 4\r\n\r\n\x1f"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let answer = String::from_utf8(rest(&mut stream).await).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 415 Unsupported Media Type\r\n"),
            "{answer}"
        );
        let reported = "\r\n\r\nsend the AdmissionReview without Content-Encoding\n";
        assert!(answer.ends_with(reported), "{answer}");
    }
    assert_healthy(&lab, &mut webhook).await;
}

fn pipelined(uid: &str) -> String {
    let known = review()["request"]["uid"].as_str().unwrap().to_owned();
    let body = review().to_string().replace(&known, uid);
    format!(
        "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order_and_only_as_fast_as_answers_are_read() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let before = peak(&mut webhook);
    let (address, ca) = (lab.webhook_address(), lab.ca_bundle().await.unwrap());
    let mut stream = http::tls(address, &ca).await.unwrap();
    let uids: Vec<String> = (0..200).map(|number| format!("uid-{number:03}")).collect();
    let requests: String = uids.iter().map(|uid| pipelined(uid)).collect();
    stream.write_all(requests.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut answers = String::new();
    let all = async {
        let mut part = [0; 4_096];
        while !answers.contains("uid-199") {
            let read = stream.read(&mut part).await.unwrap();
            assert!(read > 0, "{answers}");
            answers.push_str(std::str::from_utf8(&part[..read]).unwrap());
        }
    };
    timeout(CLOSED_WITHIN, all).await.unwrap();
    let places: Vec<_> = uids.iter().map(|uid| answers.find(uid).unwrap()).collect();
    assert!(places.is_sorted(), "{answers}");

    // A client that never reads: the webhook stops reading its requests, so that it cannot write for ever.
    let greedy = async {
        let mut stream = http::tls(address, &ca).await.unwrap();
        let requests = requests.repeat(10);
        for written in 0.. {
            let write = timeout(
                Duration::from_secs(2),
                stream.write_all(requests.as_bytes()),
            );
            if write.await.is_err() {
                return stream;
            }
            assert!(written < 100, "the webhook reads without limit");
        }
        stream
    };
    let stream = while_served(&lab, greedy).await;
    let grown = peak(&mut webhook) - before;
    assert!(grown < CONNECTIONS_MAX, "{grown} MiB");
    drop(stream);
    assert_healthy(&lab, &mut webhook).await;
}

/// The webhook has one certificate; a client that expects another name rejects it.
#[tokio::test]
async fn a_client_that_expects_another_server_name_rejects_the_certificate() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let (address, ca) = (lab.webhook_address(), lab.ca_bundle().await.unwrap());
    let service = "machine-webhook.kubevirt-operator-system.svc";
    http::tls_named(address, &ca, service).await.unwrap();
    let error = http::tls_named(address, &ca, "wrong.example")
        .await
        .unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("certificate not valid for name \"wrong.example\""),
        "{error}"
    );
    assert!(error.contains(service), "{error}");
    assert_healthy(&lab, &mut webhook).await;
}

/// A request whose body does not come.
async fn half_sent(address: SocketAddr, ca: &[u8]) -> impl AsyncRead + Unpin + use<> {
    let mut stream = http::tls(address, ca).await.unwrap();
    let request = "POST /mutate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                   content-length: 1000\r\n\r\n{";
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

/// Reads until the other side closes the connection.
async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(CLOSED_WITHIN, stream.read_to_end(&mut bytes));
    // Closing without close_notify, or a reset, counts as closed, too.
    let _ = read.await.unwrap();
    bytes
}
