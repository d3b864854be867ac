//! The process: its end on a signal, and settings with which it does not start.

use lab::{Binary, http, wait};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::{admit, lab, review, reviewed, unready};

#[tokio::test]
async fn pending_requests_are_answered_before_the_process_ends() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[("DRAIN_DELAY", "0s")]).await.unwrap();
    let (address, ca) = (lab.webhook_address(), lab.ca_bundle().await.unwrap());
    let body = review().to_string();
    let (before, after) = body.split_at(body.len() / 2);
    let mut stream = http::tls(address, &ca).await.unwrap();
    let head = format!(
        "POST /validate HTTP/1.1\r\nhost: webhook\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{before}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    // An answer on another connection shows that the webhook has received the first request.
    admit(address, &String::from_utf8(ca).unwrap())
        .await
        .unwrap();

    webhook.process().terminate().unwrap();
    wait::until("new connections to be refused", async || {
        webhook.process().check_alive()?;
        Ok(match TcpStream::connect(address).await {
            Ok(_) => Err("connected"),
            Err(_) => Ok(()),
        })
    })
    .await
    .unwrap();
    stream.write_all(after.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nconnection: close"), "{head}");
    let answer: Value = serde_json::from_str(body).unwrap();
    assert_eq!(answer["response"]["uid"], review()["request"]["uid"]);

    let status = webhook.process().wait(wait::LIMIT).await.unwrap();
    assert_eq!(status.code(), Some(0));
    let lines = webhook.log_lines();
    let own = lines.iter().filter(|line| line["target"] == "webhook::run");
    let messages: Vec<_> = own.map(|line| &line["message"]).collect();
    assert_eq!(&messages[messages.len() - 2..], ["shutting down", "ended"]);
}

#[tokio::test]
async fn during_the_drain_delay_the_webhook_serves_unready_and_a_second_signal_ends_it() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[("DRAIN_DELAY", "10m")]).await.unwrap();
    webhook.process().terminate().unwrap();
    unready(&mut webhook, |reported| {
        reported == "server: shutting down\n"
    })
    .await;
    reviewed(&lab).await.unwrap();

    webhook.process().terminate().unwrap();
    let status = webhook.process().wait(wait::LIMIT).await.unwrap();
    assert_eq!(status.code(), Some(1));
    let last = webhook.log_lines().pop().unwrap();
    assert_eq!(
        last["error"],
        "received SIGTERM again: ended without answering pending requests"
    );
}

#[tokio::test]
async fn an_invalid_setting_ends_the_start_with_one_line() {
    for (setting, line) in [
        (
            "WEBHOOK_BIND_ADDRESS=9443",
            "error: invalid value '9443' for '--listen <LISTEN>': \
             no port: write host:port, or :port for every interface\n",
        ),
        (
            "DRAIN_DELAY=10",
            "error: invalid value '10' for '--drain-delay <DRAIN_DELAY>': \
             a number has no unit: one of ns, us, ms, s, m, h must follow, as in 10s\n",
        ),
        (
            "MISSING_NETWORKS=maybe",
            "error: invalid value 'maybe' for '--missing-networks <MISSING_NETWORKS>' \
             [possible values: warn, deny]\n",
        ),
        (
            "--max-vcpus=256",
            "error: invalid value '256' for '--max-vcpus <MAX_VCPUS>': 256 is not in 1..=255\n",
        ),
        (
            "--cloud-init-schema=/nowhere.json",
            "error: invalid value '/nowhere.json' for '--cloud-init-schema <FILE>': \
             cannot read it: No such file or directory (os error 2)\n",
        ),
        (
            "CLOUD_INIT_SCHEMA=/dev/null",
            "error: invalid value '/dev/null' for '--cloud-init-schema <FILE>': \
             not JSON: EOF while parsing a value at line 1 column 0\n",
        ),
        (
            "CLIENT_CA=/nowhere.crt",
            "error: invalid value '/nowhere.crt' for '--client-ca <FILE>': \
             cannot read /nowhere.crt: No such file or directory (os error 2)\n",
        ),
        (
            "CLIENT_CA=/dev/null",
            "error: invalid value '/dev/null' for '--client-ca <FILE>': there is no certificate\n",
        ),
        (
            "CLIENT_CN=kube-apiserver",
            "error: the following required arguments were not provided: --client-ca <FILE>\n",
        ),
        (
            "TLS_MIN_VERSION=1.1",
            "error: invalid value '1.1' for '--tls-min-version <TLS_MIN_VERSION>' \
             [possible values: 1.2, 1.3]\n",
        ),
        ("--wrong", "error: unexpected argument '--wrong' found\n"),
    ] {
        let path = Binary::Webhook.path().await.unwrap();
        let mut command = Command::new(path);
        command.env_clear();
        match setting.split_once('=') {
            Some((name, value)) if !name.starts_with('-') => command.env(name, value),
            _ => command.arg(setting),
        };
        let output = command.output().await.unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), line);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
    }
}
