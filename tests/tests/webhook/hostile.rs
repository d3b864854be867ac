//! Clients that take more than their share, and everybody else is served.

use std::net::SocketAddr;

use bytes::Bytes;
use futures::future::join_all;
use lab::http::{self, Connection};
use lab::usage;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::{JSON, is_sound, lab, response, review, send, with_spec};

/// Most bytes of a body.
const BODY_MAX: usize = 7 * 1024 * 1024;
/// The webhook's limit of memory in `manifests/install`, in MiB.
const MEMORY_MAX: u64 = 512;

#[tokio::test]
async fn large_bodies_are_served_or_shed_within_the_memory_there_is() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let mut whole = review().to_string().into_bytes();
    whole.resize(BODY_MAX, b' ');
    let answer = response(&send(&lab, "/mutate", JSON, whole.clone()).await);
    assert_eq!(answer["allowed"], true);
    whole.push(b' ');
    let answer = send(&lab, "/mutate", JSON, whole).await;
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (413, "the body is larger than 7 MiB\n")
    );

    // What takes the most memory for its size: a list of numbers.
    let mut hostile = with_spec(&format!(
        "{{\"disks\":[{}0]}}",
        "0,".repeat(BODY_MAX / 2 - 1_000)
    ));
    assert!(hostile.len() <= BODY_MAX);
    hostile.extend(std::iter::repeat_n(' ', BODY_MAX - hostile.len()));
    let hostile = Bytes::from(hostile);
    let answers = (0..50).map(|_| send(&lab, "/mutate", JSON, hostile.clone()));
    for answer in join_all(answers).await {
        if answer.status == 429 {
            assert_eq!(answer.text(), "too many reviews at once, try again\n");
            continue;
        }
        let status = response(&answer)["status"].take();
        let code = status["code"].as_u64().unwrap();
        assert!(code == 422 || code == 504, "{status}");
    }
    let memory = usage::memory(webhook.process().id()).unwrap();
    assert!(memory.peak < MEMORY_MAX, "{memory:?}");
    is_sound(&lab, &mut webhook).await;
}

#[tokio::test]
async fn connections_that_misbehave_end_and_others_are_served() {
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
    // One that goes away in the middle of its body.
    drop(half_sent(address, &ca).await);

    let answer = healthy
        .post("/validate", review().to_string())
        .await
        .unwrap();
    response(&answer);

    // An alert of TLS (type 21) is all that is said to those who speak something else.
    assert_eq!(rest(&mut plain).await.first(), Some(&21));
    assert_eq!(rest(&mut garbage).await.first(), Some(&21));
    assert_eq!(rest(&mut slow_head).await, b"");
    let answer = String::from_utf8(rest(&mut slow_body).await).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"),
        "{answer}"
    );
    assert!(
        answer.ends_with("\r\n\r\nthe body did not arrive in time\n"),
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
    is_sound(&lab, &mut webhook).await;
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

/// What is still said until the other side closes, which it does.
async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(lab::wait::PATIENCE, stream.read_to_end(&mut bytes));
    // TLS that ends without a farewell, or a reset, is an end, too.
    let _ = read.await.unwrap();
    bytes
}
