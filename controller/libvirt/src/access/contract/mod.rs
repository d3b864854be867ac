//! Behaviour of every connection, the fake's and a real libvirtd's: one list of tests for all of them.
//!
//! ```text
//!            ┌─ the fake
//! contracts ─┼─ libvirt's test driver: in this process, over a socket, over TLS
//!            └─ QEMU, by the system's libvirtd, where there is one
//! ```

#[cfg(feature = "native")]
mod daemon;
mod definitions;
mod guests;
mod list;
#[cfg(feature = "native")]
mod real;
#[cfg(feature = "native")]
mod ssh;
mod volumes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use uuid::Uuid;

use super::fake::FakeLibvirt;
use super::{
    AccessError, CardAddresses, Connection, Connector, DomainState, FirmwareState, Result, Target,
};

/// Driver behind a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    Memory,
    /// libvirt's test driver: it has no QEMU and no streams, and accepts most calls without a check.
    Test,
    Qemu,
}

/// All drivers.
const ALL: &[Driver] = &[Driver::Memory, Driver::Test, Driver::Qemu];
/// The drivers that run guests.
const RUNNING: &[Driver] = &[Driver::Memory, Driver::Qemu];

/// One contract, and the drivers that it holds for.
struct Contract {
    name: &'static str,
    binds: &'static [Driver],
    test: fn(&mut TestHost),
}

/// Where a contract is tested: a connection, and names that no other test uses.
struct TestHost {
    host: Box<dyn Connection>,
    driver: Driver,
    pool: String,
    prefix: String,
}

/// Tests every contract of the driver, each on a host of its own.
fn keep(connector: &dyn Connector, target: &Target, driver: Driver, pool: &str) {
    let all = list::CONTRACTS
        .iter()
        .filter(|it| it.binds.contains(&driver));
    let broken = all.filter(|contract| {
        let began = Instant::now();
        let test = || (contract.test)(&mut TestHost::new(connector, target, driver, pool));
        let broken = catch_unwind(AssertUnwindSafe(test)).is_err();
        println!("{driver:?}, {:?}: {}", began.elapsed(), contract.name);
        broken
    });
    let broken: Vec<&str> = broken.map(|it| it.name).collect();
    assert!(broken.is_empty(), "broken by {driver:?}: {broken:?}");
}

impl TestHost {
    fn new(connector: &dyn Connector, target: &Target, driver: Driver, pool: &str) -> Self {
        static NAMES: AtomicU32 = AtomicU32::new(0);
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        Self {
            host: connector.open(target).unwrap(),
            driver,
            pool: pool.to_owned(),
            prefix: format!("access-{}-{number}", std::process::id()),
        }
    }

    fn name(&self, what: &str) -> String {
        format!("{}-{what}", self.prefix)
    }

    /// A domain of that name, and its definition with these devices.
    fn domain(&self, what: &str, devices: &str) -> (Uuid, String) {
        let name = self.name(what);
        let uuid = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes());
        let (kind, system) = match self.driver {
            Driver::Test => ("test", "<type arch='i686'>hvm</type>"),
            _ => ("qemu", "<type arch='x86_64' machine='q35'>hvm</type>"),
        };
        let ports = match self.driver {
            Driver::Test => "",
            _ => {
                "<controller type='pci' index='0' model='pcie-root'/>
                 <controller type='pci' index='1' model='pcie-root-port'/>
                 <controller type='pci' index='2' model='pcie-root-port'/>
                 <controller type='pci' index='3' model='pcie-root-port'/>
                 <controller type='pci' index='4' model='pcie-root-port'/>
                 <controller type='pci' index='5' model='pcie-root-port'/>
                 <controller type='pci' index='6' model='pcie-root-port'/>"
            }
        };
        let text = format!(
            "<domain type='{kind}'><name>{name}</name><uuid>{uuid}</uuid>
               <memory unit='KiB'>131072</memory><currentMemory unit='KiB'>65536</currentMemory>
               <vcpu current='1'>2</vcpu><os>{system}</os><features><acpi/></features>
               <devices>{ports}{devices}</devices></domain>"
        );
        (uuid, text)
    }

    /// A domain that is defined.
    fn defined(&mut self, what: &str, devices: &str) -> Uuid {
        let (uuid, text) = self.domain(what, devices);
        self.host.define(&text).unwrap();
        uuid
    }

    fn state(&mut self, uuid: Uuid) -> Option<DomainState> {
        let mut all = self.host.domains().unwrap().into_iter();
        all.find(|it| it.uuid == uuid)
    }

    /// A volume of 1 MiB, and its disk device.
    fn disk(&mut self, what: &str, target: &str) -> (String, String) {
        let name = self.name(what);
        self.host
            .create_volume(&self.pool, &volume(&name, 1 << 20))
            .unwrap();
        let disk = disk(&self.pool, &name, target);
        (name, disk)
    }

    /// Removes what a test left.
    fn clear(&mut self) -> Result<()> {
        for domain in self.host.domains()? {
            if domain.name.starts_with(&self.prefix) {
                if domain.state.active() {
                    self.host.destroy(domain.uuid)?;
                }
                self.host.undefine(domain.uuid, FirmwareState::Remove)?;
            }
        }
        for volume in self.host.volumes(&self.pool)? {
            if volume.name.starts_with(&self.prefix) {
                self.host.delete_volume(&self.pool, &volume.name)?;
            }
        }
        Ok(())
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            println!("what {} left: {error}", self.prefix);
        }
    }
}

fn volume(name: &str, bytes: u64) -> String {
    format!(
        "<volume><name>{name}</name><capacity unit='bytes'>{bytes}</capacity>
           <target><format type='raw'/></target></volume>"
    )
}

fn disk(pool: &str, volume: &str, target: &str) -> String {
    format!(
        "<disk type='volume' device='disk'><driver name='qemu' type='raw'/>
           <source pool='{pool}' volume='{volume}'/><target dev='{target}' bus='virtio'/></disk>"
    )
}

fn kind<T>(outcome: Result<T>) -> &'static str {
    outcome.map_or_else(|error| AccessError::kind(&error), |_| "done")
}

#[test]
fn the_fake_keeps_them() {
    let target = Target {
        uri: "test:///default".into(),
        credentials: None,
    };
    let fake = FakeLibvirt::new();
    // Nothing is installed in the guests of these tests.
    fake.state().guest.acpi = false;
    keep(&fake, &target, Driver::Memory, "vms");
}
