//! Which servers get credentials, tried with servers of a TLS certificate of their own.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use k8s_openapi::ByteString;
use rcgen::CertifiedKey;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, Stream};
use ureq::tls::Certificate;

use super::*;

const BEARER: &str = "authorization: bearer hidden";
const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nimage";

/// The certificate and the key of every server of a test.
struct Site(CertifiedKey<rcgen::KeyPair>);

/// A server, and the heads of the requests that it got, in lower case.
struct Server {
    origin: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Site {
    fn new() -> Self {
        // Another test of this process may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self(rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap())
    }

    fn roots(&self) -> RootCerts {
        let certificate = Certificate::from_der(self.0.cert.der()).to_owned();
        RootCerts::new_with_certs(&[certificate])
    }

    /// A server that answers a path with what `answer` makes of it.
    fn serve(&self, answer: impl Fn(&str) -> String + Send + 'static) -> Server {
        let key = PrivatePkcs8KeyDer::from(self.0.signing_key.serialize_der());
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![self.0.cert.der().clone()], key.into());
        let config = Arc::new(config.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = format!("https://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let requests = seen.clone();
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
                let request = String::from_utf8(request).unwrap();
                let path = request.split(' ').nth(1).unwrap();
                let answer = answer(path);
                requests.lock().unwrap().push(request.to_lowercase());
                stream.write_all(answer.as_bytes()).unwrap();
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        Server { origin, seen }
    }
}

impl Server {
    /// Whether each request had the credentials.
    fn authorized(&self) -> Vec<bool> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|head| head.contains(BEARER)).collect()
    }
}

fn redirect(to: &str) -> String {
    format!(
        "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
}

fn credentials() -> Credentials {
    let token = ("token".to_owned(), ByteString(b"hidden".to_vec()));
    Credentials::of("images", &BTreeMap::from([token])).unwrap()
}

/// Opens a URL of a host that fetches from all of these servers.
fn opened(
    url: &str,
    servers: &[&Server],
    credentials: Option<&Credentials>,
    roots: &RootCerts,
) -> Result<(), String> {
    let allowed: Vec<_> = servers.iter().map(|server| server.origin.clone()).collect();
    let from = Source {
        url,
        allowed: Some(&allowed),
        credentials,
    };
    open_trusting(from, roots).map(|mut download| {
        let mut content = String::new();
        download.body.read_to_string(&mut content).unwrap();
        assert_eq!(content, "image");
    })
}

#[test]
fn credentials_reach_the_server_of_the_url_with_every_request_there() {
    let site = Site::new();
    let server = site.serve(|path| match path {
        "/a" => redirect("/b?signature=1"),
        _ => WHOLE.to_owned(),
    });
    let credentials = credentials();
    let url = format!("{}/a", server.origin);
    opened(&url, &[&server], Some(&credentials), &site.roots()).unwrap();
    assert_eq!(server.authorized(), [true, true]);
    opened(&url, &[&server], None, &site.roots()).unwrap();
    assert_eq!(server.authorized(), [true, true, false, false]);
}

/// Another port is another server. A redirect back is where that server leads, not the user.
#[test]
fn a_redirect_to_another_server_gets_no_credentials_and_neither_does_one_back() {
    let site = Site::new();
    let own = Arc::new(Mutex::new(String::new()));
    let back = own.clone();
    let other = site.serve(move |path| match path {
        "/back" => redirect(&format!("{}/secret", back.lock().unwrap())),
        _ => WHOLE.to_owned(),
    });
    let to = other.origin.clone();
    let server = site.serve(move |path| match path {
        "/a" => redirect(&format!("{to}/a?signature=1")),
        "/b" => redirect(&format!("{to}/back")),
        _ => WHOLE.to_owned(),
    });
    own.lock().unwrap().clone_from(&server.origin);
    let credentials = credentials();
    let open = |path: &str| {
        let url = format!("{}{path}", server.origin);
        opened(&url, &[&server, &other], Some(&credentials), &site.roots())
    };
    open("/a").unwrap();
    assert_eq!(
        (server.authorized(), other.authorized()),
        (vec![true], vec![false])
    );
    open("/b").unwrap();
    assert_eq!(server.authorized(), [true, true, false]);
    assert_eq!(other.authorized(), [false, false]);
}

#[test]
fn credentials_are_not_sent_without_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let from = Source {
        url: &format!("{origin}/a?token=1"),
        allowed: Some(std::slice::from_ref(&origin)),
        credentials: Some(&credentials()),
    };
    let why = open(from).map(drop).unwrap_err();
    assert_eq!(
        why,
        format!(
            "{origin}/a is not encrypted, and credentials are sent over https only: use a URL that begins with https://, or remove image.secretRef"
        )
    );
    let connected = listener.accept().map(drop).unwrap_err();
    assert_eq!(connected.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_refusal_names_the_secret_and_nothing_of_it() {
    let site = Site::new();
    let status = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let server = site.serve(|_| status.to_owned());
    let url = format!("{}/a", server.origin);
    let credentials = credentials();
    let open = |credentials| opened(&url, &[&server], credentials, &site.roots()).unwrap_err();
    let why = open(Some(&credentials));
    assert!(
        why.ends_with("the server answers 401 Unauthorized to the credentials of Secret 'images': correct the Secret"),
        "{why}"
    );
    assert!(!why.contains("hidden"), "{why}");
    let why = open(None);
    assert!(
        why.ends_with("name a Secret with credentials in image.secretRef"),
        "{why}"
    );
}
