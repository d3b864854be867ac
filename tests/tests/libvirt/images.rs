//! An image from a server: downloaded once, verified, and the backing file of two disks.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use lab::libvirt::image;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::environment::Environment;

/// A server of one file: its URL, and the number of requests for the file.
fn served(content: Vec<u8>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/guest.qcow2", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            let request = BufReader::new(stream.try_clone().unwrap()).lines();
            let head = request.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
            assert!(head.count() > 0);
            let length = content.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            )
            .and_then(|()| stream.write_all(&content))
            .unwrap_or_default();
        }
    });
    (url, requests)
}

/// The tiny guest's disk in the format qcow2, in which most images are distributed.
fn qcow2(raw: &Path, to: &Path) -> Vec<u8> {
    let done = Command::new("qemu-img")
        .args(["convert", "-O", "qcow2"])
        .args([raw, to])
        .status()
        .unwrap();
    assert!(done.success());
    fs::read(to).unwrap()
}

fn root(size: &str, url: &str, checksum: &str) -> Value {
    json!({
        "disks": [{
            "name": "root", "size": size, "storageClass": "local",
            "image": {"url": url, "checksum": checksum},
        }],
    })
}

#[tokio::test]
async fn an_image_is_downloaded_once_and_its_checksum_is_verified() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let content = qcow2(&image().await.unwrap(), &env.libvirt.path("guest.qcow2"));
    let digest = Sha256::digest(&content);
    let checksum = digest.iter().fold("sha256:".to_owned(), |mut text, byte| {
        text.write_fmt(format_args!("{byte:02x}")).unwrap();
        text
    });
    let (url, requests) = served(content);
    for name in ["first", "second"] {
        env.apply(name, &root("1Gi", &url, &checksum)).await;
    }
    for name in ["first", "second"] {
        env.until_reachable(name).await;
        let report = env.until_report(name, "its boot", |it| it.boots == 1).await;
        // The disk has the size of the spec, not that of the image.
        assert_eq!(
            report.disks.values().copied().collect::<Vec<_>>(),
            [1 << 30]
        );
    }
    assert_eq!(requests.load(Ordering::SeqCst), 1, "one host, one fetch");

    // An image with another checksum than the spec's is not booted, and the condition reports it.
    let wrong = format!("sha256:{}", "0".repeat(64));
    env.apply("wrong", &root("1Gi", &url, &wrong)).await;
    let reported = env
        .machines()
        .until_condition("wrong", "StorageReady", "False", "ImageImportFailed")
        .await
        .unwrap();
    let message = reported["status"]["conditions"].to_string();
    assert!(message.contains("correct image.checksum"), "{message}");
    let only = [env.domain("first").await, env.domain("second").await];
    assert_eq!(env.domains().await, only.into());
}
