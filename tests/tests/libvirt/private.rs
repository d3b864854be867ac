//! An image that its server gives to those who have a token.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::Arc,
    thread,
};

use lab::{
    libvirt::image,
    objects::{MACHINE, Objects, condition, namespace},
};
use rcgen::CertifiedKey;
use rustls::{ServerConfig, ServerConnection, Stream, crypto::ring, pki_types::PrivatePkcs8KeyDer};
use serde_json::{Value, json};

use crate::environment::{Environment, machine};

const TOKEN: &str = "token-that-the-server-accepts";
const WRONG: &str = "token-that-the-server-refuses";

/// A server that gives a file to those who have [`TOKEN`].
struct Server {
    url: String,
    /// Its certificate.
    pem: String,
}

fn served(content: Vec<u8>) -> Server {
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key.into())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/guest.raw", listener.local_addr().unwrap());
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut connection = ServerConnection::new(config.clone()).unwrap();
            let mut stream = Stream::new(&mut connection, &mut socket);
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                request.push(byte[0]);
            }
            let request = String::from_utf8(request).unwrap().to_lowercase();
            let is_accepted = request.contains(&format!("authorization: bearer {TOKEN}\r\n"));
            let (status, body) = if is_accepted {
                ("200 OK", content.as_slice())
            } else {
                ("401 Unauthorized", [].as_slice())
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(body))
                .unwrap();
            stream.conn.send_close_notify();
            stream.flush().unwrap_or_default();
        }
    });
    Server {
        url,
        pem: cert.pem(),
    }
}

fn secret(namespace: &str, token: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "images", "namespace": namespace},
        "stringData": {"token": token},
    })
}

async fn apply(env: &Environment, namespace: &str, name: &str, image: &Value) {
    let disk = json!({"name": "root", "size": "1Gi", "storageClass": "local", "image": image});
    let spec = json!({"powerState": "Stopped", "disks": [disk]});
    let mut machine = machine(name, &spec);
    machine["metadata"]["namespace"] = json!(namespace);
    env.lab.apply_when_admitted(&machine).await.unwrap();
}

/// The message about the image of a Machine that does not get it.
async fn refused(machines: &Objects, name: &str) -> String {
    let machine = machines.until_condition(name, "StorageReady", "False", "ImageImportFailed");
    let machine = machine.await.unwrap();
    let message = &condition(&machine, "StorageReady")["message"];
    message.as_str().unwrap().to_owned()
}

/// The volumes of fetched images, without markers.
async fn fetched(env: &Environment) -> usize {
    let all = env.virsh(&["vol-list", "images"]).await;
    let names = all.split_whitespace();
    let images = names.filter(|name| name.starts_with("vitistack-image-"));
    images.filter(|name| !name.ends_with(".complete")).count()
}

#[tokio::test]
async fn a_private_image_is_only_for_namespaces_whose_credentials_its_server_accepts() {
    let content = fs::read(image().await.unwrap()).unwrap();
    let server = served(content);
    let folder = tempfile::tempdir().unwrap();
    let pem = folder.path().join("images.pem");
    fs::write(&pem, &server.pem).unwrap();
    let trusted = [("SSL_CERT_FILE", pem.to_str().unwrap())];
    let Some(env) = Environment::with(&trusted).await else {
        return;
    };
    env.allow(&server.url).await;
    let (url, private) = (&server.url, json!({"name": "images"}));
    let image = json!({"url": url, "secretRef": private});
    env.lab.apply(&secret("default", TOKEN)).await.unwrap();
    apply(&env, "default", "owner", &image).await;
    env.machines()
        .until_phase("owner", "Stopped")
        .await
        .unwrap();
    assert_eq!((fetched(&env).await, env.files_of("owner").len()), (1, 1));

    // The image is on the host. Another namespace gets it neither without nor with wrong credentials.
    let other = namespace("other", &json!({}));
    env.lab.apply(&other).await.unwrap();
    env.lab.apply(&secret("other", WRONG)).await.unwrap();
    apply(&env, "other", "bare", &json!({"url": url})).await;
    apply(&env, "other", "wrong", &image).await;
    let machines = env.lab.objects(MACHINE, "other");
    let why = refused(&machines, "bare").await;
    assert!(
        why.contains("401 Unauthorized; if the image is private"),
        "{why}"
    );
    let why = refused(&machines, "wrong").await;
    assert!(why.contains("correct the Secret"), "{why}");
    assert_eq!(fetched(&env).await, 1);
    assert_eq!(
        (env.files_of("bare").len(), env.files_of("wrong").len()),
        (0, 0)
    );

    // With credentials of its own that are accepted, it has an image of its own.
    env.lab.apply(&secret("other", TOKEN)).await.unwrap();
    machines.until_phase("wrong", "Stopped").await.unwrap();
    assert_eq!((fetched(&env).await, env.files_of("wrong").len()), (2, 1));
    assert_eq!(env.files_of("bare").len(), 0);

    // A new namespace of the name is another one: what the old one had credentials for is not its own.
    let delete = ["delete", "namespace", "other", "--timeout=10m"];
    env.lab.kubectl().run(&delete).await.unwrap().ok().unwrap();
    env.lab.apply(&other).await.unwrap();
    env.lab.apply(&secret("other", WRONG)).await.unwrap();
    apply(&env, "other", "later", &image).await;
    let why = refused(&machines, "later").await;
    assert!(why.contains("correct the Secret"), "{why}");
    assert_eq!((fetched(&env).await, env.files_of("later").len()), (2, 0));
    let log = env.controller.log();
    assert!(!log.contains(TOKEN) && !log.contains(WRONG), "{log}");
}
