//! The contracts on real libvirtd's, and what only those can do: freeze, crash, and require certificates.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use virt::connect::Connect;
use virt::storage_pool::StoragePool;

use super::daemon::{Authority, Daemon};
use super::ssh::Server;
use super::*;
use crate::access::native::Libvirt;
use crate::access::worker::Worker;
use crate::access::{Credentials, Host, HostInfo, connector};

/// Longer than any call here takes that returns at all.
const LONG: Duration = Duration::from_mins(2);

fn target(uri: &str) -> Target {
    Target {
        uri: uri.into(),
        credentials: None,
    }
}

#[test]
fn the_test_driver_keeps_them() {
    keep(
        &*connector(),
        &target("test:///default"),
        Driver::Test,
        "default-pool",
    );
}

/// A libvirtd of the test's own; without one the test is over.
fn daemon() -> Option<Daemon> {
    Daemon::start()
        .map_err(|why| println!("skipped: {why}"))
        .ok()
}

#[test]
fn a_daemon_keeps_them_over_its_socket_and_over_tls() {
    let Some(daemon) = daemon() else { return };
    for target in [
        daemon.local(),
        daemon.remote(Some(daemon.credentials.clone())),
    ] {
        keep(&*connector(), &target, Driver::Test, "default-pool");
    }
}

#[test]
fn tls_needs_the_right_credentials_on_both_sides() {
    let Some(daemon) = daemon() else { return };
    let open = |credentials| kind(connector().open(&daemon.remote(credentials)));
    assert_eq!(open(Some(daemon.credentials.clone())), "done");
    assert_eq!(open(None), "Disconnected");
    // The client trusts another CA, and presents a certificate of it.
    assert_eq!(open(Some(Authority::new().client())), "Disconnected");
    // The client trusts the right CA.
    let (
        Credentials::Tls { ca, .. },
        Credentials::Tls {
            certificate, key, ..
        },
    ) = (daemon.credentials.clone(), Authority::new().client())
    else {
        unreachable!("both are of TLS");
    };
    let stranger = daemon.remote(Some(Credentials::Tls {
        ca,
        certificate,
        key: key.clone(),
    }));
    let error = connector().open(&stranger).err().unwrap();
    assert_eq!(error.kind(), "Disconnected");
    let error = error.to_string();
    assert!(
        !error.contains("PRIVATE") && !error.contains(key.lines().nth(1).unwrap()),
        "{error}"
    );
}

#[test]
fn ssh_needs_a_key_that_the_host_accepts_and_a_known_host() {
    if let Err(error) = connector().open(&target("qemu:///system")) {
        println!("skipped: there is no libvirtd behind it: {error}");
        return;
    }
    let server = match Server::start() {
        Ok(server) => server,
        Err(why) => return println!("skipped: {why}"),
    };
    let open = |user: &str, host: &str| {
        kind(connector().open(&Target {
            uri: format!("qemu+ssh://root@127.0.0.1:{}/system", server.port),
            credentials: Some(server.credentials(user, host)),
        }))
    };
    assert_eq!(open("user", "host"), "done");
    assert_eq!(open("other", "host"), "Disconnected");
    assert_eq!(open("user", "other"), "Disconnected");
}

/// Two connections to it, which end one or two seconds after the host stopped answering.
fn host(target: Target) -> Host {
    Host::new(Arc::new(Libvirt::with_short_keepalive()), target)
}

async fn host_info(worker: &Worker, limit: Duration) -> Result<HostInfo> {
    worker.call(limit, |host| host.info()).await
}

/// Repeats a call until it is answered; returns the number of calls that were not.
async fn answered(worker: &Worker) -> usize {
    let began = Instant::now();
    for tries in 0.. {
        match host_info(worker, LONG).await {
            Ok(_) => return tries,
            Err(error) => assert!(error.unknown() && began.elapsed() < LONG, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    unreachable!()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_freezes_blocks_no_caller_and_answers_again_when_it_continues() {
    let (Some(frozen), Some(other)) = (daemon(), daemon()) else {
        return;
    };
    let (stuck, free) = (host(frozen.local()), host(other.local()));
    host_info(&stuck.fast, LONG).await.unwrap();
    let calls = 200;
    let measured = async || {
        let began = Instant::now();
        for _ in 0..calls {
            host_info(&free.fast, LONG).await.unwrap();
        }
        began.elapsed()
    };
    let before = measured().await;

    frozen.signal(Signal::STOP);
    let limit = Duration::from_millis(100);
    assert_eq!(kind(host_info(&stuck.fast, limit).await), "TimedOut");
    // With a limit that is longer than this test.
    let error = host_info(&stuck.fast, Duration::from_hours(1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), "TimedOut");
    let meanwhile = measured().await;
    println!("{calls} calls of another host: {before:?}, and {meanwhile:?} while one was stuck");

    // The call that hangs ends by keepalive, and the next one would open a connection again.
    frozen.signal(Signal::CONT);
    println!("back after {} tries", answered(&stuck.fast).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_to_a_daemon_that_froze_ends_without_it() {
    let Some(frozen) = daemon() else { return };
    let host = host(frozen.local());
    host_info(&host.fast, LONG).await.unwrap();
    frozen.signal(Signal::STOP);
    let error = host_info(&host.fast, LONG).await.unwrap_err();
    assert_eq!(error.kind(), "Disconnected", "{error}");
    frozen.signal(Signal::CONT);
    answered(&host.fast).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_was_killed_is_used_again_after_its_restart() {
    let Some(mut daemon) = daemon() else { return };
    let host = host(daemon.remote(Some(daemon.credentials.clone())));
    host_info(&host.fast, LONG).await.unwrap();
    daemon.kill();
    assert_eq!(kind(host_info(&host.fast, LONG).await), "Disconnected");
    daemon.start_again();
    answered(&host.fast).await;
    answered(&host.slow).await;
}

/// A pool of QEMU's host that is gone when the test is over.
pub(super) struct Pool {
    pool: StoragePool,
    pub(super) folder: tempfile::TempDir,
}

impl Pool {
    pub(super) fn new(host: &Connect, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // QEMU is another user.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().display();
        let text = format!(
            "<pool type='dir'><name>{name}</name><target><path>{path}</path></target></pool>"
        );
        Self {
            pool: host.create_storage_pool_xml(&text, 0).unwrap(),
            folder,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Err(error) = self.pool.destroy() {
            println!("a pool is left: {error}");
        }
    }
}

#[test]
fn qemu_keeps_them() {
    let uri = "qemu:///system";
    let connector = connector();
    if let Err(error) = connector.open(&target(uri)) {
        println!("skipped: {uri} cannot be opened: {error}");
        return;
    }
    let host = Connect::open(Some(uri)).unwrap();
    // libvirt takes blanks and other characters in names of pools, and so do LibvirtHosts.
    let name = format!("Access Ü {}", std::process::id());
    let _pool = Pool::new(&host, &name);
    keep(&*connector, &target(uri), Driver::Qemu, &name);
}
