use std::io::Write as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;

/// A server that answers every request with this head; its address, and how often it was asked.
fn server(head: impl Fn(&str) -> String + Send + 'static) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, own) = (asked.clone(), origin.clone());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                request.push(byte[0]);
            }
            let _ = stream.write_all(head(&own).as_bytes());
        }
    });
    (origin, asked)
}

fn whole() -> (String, Arc<AtomicUsize>) {
    server(|_| "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nimage".into())
}

fn redirecting(to: &str) -> (String, Arc<AtomicUsize>) {
    let to = to.to_owned();
    server(move |own| {
        let to = to.replace("{own}", own);
        format!(
            "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
    })
}

fn opened(url: &str, sources: Option<&[&str]>) -> Result<String, String> {
    let sources = sources.map(|all| all.iter().map(|&it| it.to_owned()).collect::<Vec<_>>());
    let mut download = open(Source {
        url,
        allowed: sources.as_deref(),
        credentials: None,
    })?;
    let mut content = String::new();
    download.body.read_to_string(&mut content).unwrap();
    assert_eq!(download.length, content.len() as u64);
    Ok(content)
}

#[test]
fn a_name_with_one_private_address_among_public_ones_is_refused() {
    let addresses = |all: &[&str]| -> Vec<SocketAddr> {
        let all = all
            .iter()
            .map(|it| SocketAddr::new(it.parse().unwrap(), 443));
        all.collect()
    };
    let public = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"];
    let check = |reach, found: &[&str]| check_addresses(reach, "a.example", &addresses(found));
    assert!(check(Reach::Public, &public).is_ok());
    for private in [
        "10.0.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "fd00::1",
        "::ffff:10.0.0.1",
    ] {
        for found in [[public[0], private], [private, public[1]]] {
            let why = check(Reach::Public, &found).unwrap_err().to_string();
            assert!(!why.contains(private), "{why}");
            assert!(check(Reach::Any, &found).is_ok());
        }
    }
}

#[test]
fn a_listed_source_may_have_a_private_address_and_redirect_to_another_listed_one() {
    let (to, _) = whole();
    let (from, _) = redirecting(&format!("{to}/x?signature=1"));
    let sources = [from.as_str(), to.as_str()];
    assert_eq!(
        opened(&format!("{from}/a"), Some(&sources)).as_deref(),
        Ok("image")
    );
}

#[test]
fn a_redirect_to_what_is_not_listed_is_refused_before_anything_is_connected() {
    let (to, asked) = whole();
    let (from, _) = redirecting(&format!("{to}/secret?signature=1"));
    let why = opened(&format!("{from}/a?token=1"), Some(&[&from])).unwrap_err();
    assert!(
        why.starts_with(&format!("{to}/secret is not within")),
        "{why}"
    );
    assert!(!why.contains("signature"), "{why}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[test]
fn a_redirect_to_another_scheme_is_refused() {
    for target in ["file:///etc/shadow", "ftp://host/x"] {
        let (from, _) = redirecting(target);
        let why = opened(&format!("{from}/a"), Some(&[&from])).unwrap_err();
        assert!(
            why.contains(target) && why.contains("no https:// or http://"),
            "{why}"
        );
    }
}

#[test]
fn redirects_are_followed_five_times() {
    let (from, asked) = redirecting("{own}/again");
    let why = opened(&format!("{from}/a"), Some(&[&from])).unwrap_err();
    assert!(why.contains("redirects more than 5 times"), "{why}");
    assert_eq!(asked.load(Ordering::SeqCst), 6);
}

/// Names that resolve to a private address without a name server: what a resolver makes of numbers.
#[test]
fn without_sources_a_name_that_resolves_to_a_private_address_is_refused() {
    let (origin, asked) = whole();
    let port = origin.rsplit_once(':').unwrap().1;
    for host in ["2130706433", "0x7f000001", "0177.0.0.1", "127.1"] {
        let why = opened(&format!("http://{host}:{port}/x?token=1"), None).unwrap_err();
        assert!(
            why.contains(&format!("is at {host}, which is not a public address")),
            "{why}"
        );
        assert!(
            why.contains("spec.imageSources") && !why.contains("token"),
            "{why}"
        );
    }
    let why = opened(&format!("{origin}/x"), None).unwrap_err();
    assert!(why.contains("is at 127.0.0.1"), "{why}");
    assert_eq!(asked.load(Ordering::SeqCst), 0, "nothing was connected");
}
