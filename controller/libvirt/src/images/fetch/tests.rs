use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use sha2::{Digest as _, Sha256};

use super::*;
use crate::access::fake::{FakeLibvirt, FakePool, FakeVolume, HostState, When};
use crate::access::{Connector as _, Target};
use crate::guard::OtherHosts;
use crate::images::names::hex;

const POOL: &str = "vms";
const CONTENT: &[u8] = b"MBR\xfb and what a guest boots from";

/// Answers one request: with a head, and a body that may break off.
fn server(head: impl Into<String>, body: impl Into<Vec<u8>>) -> String {
    let (head, body) = (head.into(), body.into());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/image.qcow2", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
            request.push(byte[0]);
        }
        stream.write_all(head.as_bytes()).unwrap();
        // A client that refuses what it has read so far does not read the rest.
        let _ = stream.write_all(&body);
    });
    url
}

fn request(number: i64, url: String, checksum: Option<&str>) -> FetchRequest {
    FetchRequest {
        pool: POOL.into(),
        base: "image".into(),
        number,
        credentials: None,
        checksum: checksum.map(Into::into),
        sources: Some(vec![origin(&url)]),
        url,
        made: ImageUse::Disk(1 << 30),
    }
}

/// The server of a URL, as a prefix.
fn origin(url: &str) -> String {
    let path = url.rfind('/').unwrap();
    url[..=path].to_owned()
}

fn whole(body: &[u8]) -> String {
    server(
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        ),
        body,
    )
}

/// A qcow2 of 1 MiB for a disk of 16 MiB, as qemu-img writes it, with these bytes changed.
fn qcow2(edits: &[(usize, &[u8])]) -> Vec<u8> {
    let mut file = vec![0; 1 << 20];
    file[..4].copy_from_slice(b"QFI\xfb");
    for (offset, number) in [(4, 3_u32), (20, 16), (36, 1), (56, 1), (96, 4), (100, 104)] {
        file[offset..offset + 4].copy_from_slice(&number.to_be_bytes());
    }
    for (offset, number) in [(24, 16_u64 << 20), (40, 3 << 16), (48, 1 << 16)] {
        file[offset..offset + 8].copy_from_slice(&number.to_be_bytes());
    }
    for (offset, bytes) in edits {
        file[*offset..*offset + bytes.len()].copy_from_slice(bytes);
    }
    file
}

fn target() -> Target {
    Target {
        uri: String::new(),
        credentials: None,
    }
}

fn fetched(host: &FakeLibvirt, request: &FetchRequest) -> Result<(), String> {
    let mut connection = host.open(&target()).unwrap();
    fetch(
        &mut *connection,
        request,
        &FetchPermit::default(),
        &crate::environment::guard(),
    )
}

fn volumes(host: &FakeLibvirt) -> Vec<String> {
    host.state().pools[POOL].volumes.keys().cloned().collect()
}

const FIRST: &str = "image.attempt-00000001";
const FIRST_MARKER: &str = "image.attempt-00000001.complete";
const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 32\r\nConnection: close\r\n\r\n";

#[test]
fn an_image_is_complete_once_its_marker_is_there() {
    let host = FakeLibvirt::new();
    let checksum = format!("sha256:{}", hex(Sha256::digest(CONTENT).as_slice()));
    let request = request(1, server(WHOLE, CONTENT), Some(&checksum));
    assert_eq!(CONTENT.len(), 32);
    fetched(&host, &request).unwrap();
    assert_eq!(volumes(&host), [FIRST, FIRST_MARKER]);
    assert_eq!(host.state().pools[POOL].volumes[FIRST].content, CONTENT);
}

#[test]
fn an_image_is_complete_also_while_libvirt_copies_another_in_its_pool() {
    let host = FakeLibvirt::new();
    // Before the download, to know its space, and after it.
    for _ in 0..2 {
        let busy = AccessError::Busy("pool 'images' has asynchronous jobs running.".into());
        host.fail("refresh", When::Before, busy);
    }
    fetched(&host, &request(1, server(WHOLE, CONTENT), None)).unwrap();
    assert_eq!(volumes(&host), [FIRST, FIRST_MARKER]);
}

#[test]
fn an_interrupted_fetch_leaves_nothing_and_one_whose_host_is_away_is_removed_by_the_next() {
    let host = FakeLibvirt::new();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 900000\r\nConnection: close\r\n\r\n";
    let broken = request(1, server(head, vec![7; 800_000]), None);
    let why = fetched(&host, &broken).unwrap_err();
    assert!(why.contains("was interrupted"), "{why}");
    assert_eq!(volumes(&host), [""; 0]);
    // The connection ended in the middle.
    let other = FakeLibvirt::new();
    other.fail(
        "upload",
        When::During,
        AccessError::Disconnected("gone".into()),
    );
    fetched(&other, &request(1, server(WHOLE, CONTENT), None)).unwrap_err();
    assert_eq!(volumes(&other), [FIRST], "its size looks complete");
    fetched(&other, &request(2, server(WHOLE, CONTENT), None)).unwrap();
    let second = "image.attempt-00000002";
    let marker = marker(second);
    assert_eq!(
        volumes(&other),
        [second, &marker],
        "the first one is removed"
    );
    assert_eq!(other.state().pools[POOL].volumes[second].content, CONTENT);
}

/// A volume of the pool, and an overlay of it in another pool that libvirt knows.
fn image_with_overlay(host: &FakeLibvirt, name: &str) {
    let mut state = host.state();
    let base = FakeVolume {
        content: CONTENT.to_vec(),
        ..FakeVolume::default()
    };
    let overlay = FakeVolume {
        backing: Some(HostState::path(POOL, name)),
        ..FakeVolume::default()
    };
    let mut other = FakePool::of(1 << 30);
    other.volumes.insert("disk.qcow2".into(), overlay);
    state.pools.insert("other".into(), other);
    let pool = state.pools.get_mut(POOL).unwrap();
    pool.volumes.insert(name.into(), base);
}

#[test]
fn an_image_whose_marker_was_lost_stays_below_its_overlays_and_is_fetched_beside() {
    for name in ["image", FIRST] {
        let host = FakeLibvirt::new();
        image_with_overlay(&host, name);
        fetched(&host, &request(2, server(WHOLE, CONTENT), None)).unwrap();
        let all = volumes(&host);
        assert!(all.iter().any(|it| it == name), "{all:?}");
        assert!(all.contains(&marker("image.attempt-00000002")), "{all:?}");
    }
}

#[test]
fn an_image_whose_marker_was_lost_stays_while_a_pool_that_may_hold_an_overlay_is_undefined() {
    let host = FakeLibvirt::new();
    image_with_overlay(&host, FIRST);
    host.state().pools.remove("other");
    let (request, permit) = (
        request(2, server(WHOLE, CONTENT), None),
        FetchPermit::default(),
    );
    let guard = crate::environment::guard_with(&[POOL, "other"]);
    fetch(
        &mut *host.open(&target()).unwrap(),
        &request,
        &permit,
        &guard,
    )
    .unwrap();
    let all = volumes(&host);
    assert!(all.iter().any(|it| it == FIRST), "{all:?}");
    assert!(all.contains(&marker("image.attempt-00000002")), "{all:?}");
}

#[test]
fn a_fetch_whose_replica_lost_the_lease_ends_before_its_next_change() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    let whole = FakeLibvirt::new();
    fetched(&whole, &request(1, server(WHOLE, CONTENT), None)).unwrap();
    // How often the guard is asked before the Lease is lost.
    for asked in 0..3 {
        let host = FakeLibvirt::new();
        let mut connection = host.open(&target()).unwrap();
        let left = AtomicUsize::new(asked);
        let may_act = move || {
            let took = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
            took.map(drop)
                .map_err(|_| AccessError::Cancelled("the Lease is lost".into()))
        };
        let guard = Guard::new(may_act, OtherHosts::default, || Ok(BTreeSet::new()));
        let request = request(1, server(WHOLE, CONTENT), None);
        let why = fetch(&mut *connection, &request, &FetchPermit::default(), &guard).unwrap_err();
        assert!(why.contains("the Lease is lost"), "{asked}: {why}");
        let calls = host.calls();
        assert!(whole.calls().starts_with(&calls), "{asked}: {calls:?}");
        assert!(
            !volumes(&host).contains(&FIRST_MARKER.to_owned()),
            "{asked}"
        );
    }
}

#[test]
fn an_image_of_another_checksum_is_removed() {
    let host = FakeLibvirt::new();
    let wrong = format!("sha256:{}", "0".repeat(64));
    let why = fetched(&host, &request(1, server(WHOLE, CONTENT), Some(&wrong))).unwrap_err();
    assert!(why.contains("correct image.checksum"), "{why}");
    assert_eq!(volumes(&host), [""; 0]);
}

#[test]
fn the_message_of_a_failed_fetch_names_the_address_without_user_and_query() {
    let host = FakeLibvirt::new();
    let url = server("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "");
    let mut request = request(1, url.clone(), None);
    request.url = url.replace("http://", "http://user:word@") + "?token=1";
    let why = fetched(&host, &request).unwrap_err();
    assert!(why.starts_with(&url) && why.contains("404"), "{why}");
    assert!(!why.contains("word") && !why.contains("token"), "{why}");
    request.url = server("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", CONTENT);
    request.sources = Some(vec![origin(&request.url)]);
    let why = fetched(&host, &request).unwrap_err();
    assert!(why.contains("sent no Content-Length"), "{why}");
    assert_eq!(host.calls(), [""; 0]);
}

#[test]
fn nothing_of_an_image_whose_header_is_refused_reaches_the_host() {
    let backing: &[(usize, &[u8])] = &[
        (8, &512_u64.to_be_bytes()),
        (16, &11_u32.to_be_bytes()),
        (512, b"/etc/shadow"),
    ];
    for (content, expected) in [
        (qcow2(backing), "has the backing file '/etc/shadow'"),
        (qcow2(&[(72, &4_u64.to_be_bytes())]), "external data file"),
        (qcow2(&[(32, &1_u32.to_be_bytes())]), "is encrypted"),
        (
            qcow2(&[(24, &(1_u64 << 63).to_be_bytes())]),
            "less than 2^63",
        ),
        (
            qcow2(&[
                (24, &(2_u64 << 30).to_be_bytes()),
                (36, &4_u32.to_be_bytes()),
            ]),
            "make the disk at least as large",
        ),
        (b"KDMV and more".to_vec(), "is a VMDK image"),
        (b"QFI\xfb".to_vec(), "is cut off"),
    ] {
        let host = FakeLibvirt::new();
        let request = request(1, whole(&content), None);
        let why = fetched(&host, &request).unwrap_err();
        assert!(why.starts_with(&request.url), "{why}");
        assert!(why.contains(expected), "{why}");
        assert_eq!(host.calls(), [""; 0], "{why}");
    }
}

#[test]
fn an_image_is_uploaded_whole_and_its_volume_has_the_format_of_its_header() {
    let host = FakeLibvirt::new();
    let content = qcow2(&[]);
    fetched(&host, &request(1, whole(&content), None)).unwrap();
    let state = host.state();
    let volume = &state.pools[POOL].volumes[FIRST];
    assert!(volume.content == content && !volume.raw);
    assert_eq!(volume.capacity, 16 << 20);
}

#[test]
fn an_image_that_the_pool_has_no_room_for_is_not_fetched() {
    let host = FakeLibvirt::new();
    host.state().pools.get_mut(POOL).unwrap().capacity = 1 << 19;
    let why = fetched(&host, &request(1, whole(&qcow2(&[])), None)).unwrap_err();
    assert!(why.contains("has room for 512Ki"), "{why}");
    assert_eq!(host.calls(), [""; 0]);
}

#[test]
fn a_file_that_is_larger_than_its_disk_can_need_is_refused_before_it_is_read() {
    let head = |length: u128| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
    };
    let most = (1 << 30) + (1 << 27) + (64 << 20);
    let of_disk = |length| {
        let host = FakeLibvirt::new();
        let why = fetched(&host, &request(1, server(head(length), CONTENT), None)).unwrap_err();
        assert_eq!(host.calls(), [""; 0], "{why}");
        why
    };
    let why = of_disk(most + 1);
    assert!(why.contains("1216Mi"), "{why}");
    assert!(why.contains("make the disk larger"), "{why}");
    // One byte less is fetched, and this server breaks off.
    assert!(of_disk(most).contains("was interrupted"));
    let of_drive = |length, most| {
        let host = FakeLibvirt::new();
        let mut request = request(1, server(head(length), CONTENT), None);
        request.made = ImageUse::Medium(most);
        fetched(&host, &request).unwrap_err()
    };
    let why = of_drive(MEDIUM_MAX + 1, MEDIUM_MAX);
    assert!(why.contains("a medium may have 64Gi"), "{why}");
    assert!(of_drive(MEDIUM_MAX, MEDIUM_MAX).contains("was interrupted"));
    let why = of_drive((1 << 30) + 1, 1 << 30);
    assert!(
        why.contains("a medium of this namespace may have 1Gi"),
        "{why}"
    );
    assert!(of_drive(1 << 30, 1 << 30).contains("was interrupted"));
}

#[test]
fn two_images_that_are_fetched_at_once_do_not_fill_more_than_the_pool() {
    use crate::images::fetches::{FetchKey, Fetches, Request};

    let host = FakeLibvirt::new();
    // Room for one image and a half.
    host.state().pools.get_mut(POOL).unwrap().capacity = 3 << 19;
    let fetches = Fetches::default();
    let key = |image: &str| FetchKey {
        image: image.into(),
        secret: None,
    };
    let begin = |image, namespace| {
        let request = Request {
            key: key(image),
            secret_version: None,
            namespace,
            machine: "web",
            made: ImageUse::Medium(MEDIUM_MAX),
        };
        fetches.begin(&request, std::time::Instant::now()).unwrap()
    };
    let (other, own) = (begin("other", "a"), begin("image", "b"));
    other.announce(1 << 20);
    let mut connection = host.open(&target()).unwrap();
    let request = request(1, whole(&qcow2(&[])), None);
    let guard = crate::environment::guard();
    let why = fetch(&mut *connection, &request, &own, &guard).unwrap_err();
    assert!(
        why.contains("has room for 512Ki beside 1Mi that are being fetched"),
        "{why}"
    );
    assert_eq!(host.calls(), [""; 0]);
    fetches.end(
        &key("other"),
        Err("no route".into()),
        std::time::Instant::now(),
    );
    let request = FetchRequest {
        url: whole(&qcow2(&[])),
        ..request
    };
    let request = FetchRequest {
        sources: Some(vec![origin(&request.url)]),
        ..request
    };
    fetch(&mut *connection, &request, &own, &guard).unwrap();
}
