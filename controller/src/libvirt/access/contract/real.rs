//! The contracts on real libvirtd's, and what only those can do: freeze, die, and want certificates.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use virt::connect::Connect;
use virt::storage_pool::StoragePool;

use super::*;
use crate::libvirt::access::connector;

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

/// A pool of QEMU's host that is gone when the test is over.
struct Pool {
    pool: StoragePool,
    _folder: tempfile::TempDir,
}

impl Pool {
    fn new(host: &Connect, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // QEMU is another user.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().display();
        let text = format!(
            "<pool type='dir'><name>{name}</name><target><path>{path}</path></target></pool>"
        );
        Self {
            pool: host.create_storage_pool_xml(&text, 0).unwrap(),
            _folder: folder,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.pool.destroy().unwrap();
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
    let name = format!("access-{}", std::process::id());
    let _pool = Pool::new(&host, &name);
    keep(&*connector, &target(uri), Driver::Qemu, &name);
}
