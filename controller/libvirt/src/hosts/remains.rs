//! Hosts that a Machine under deletion does not name and that may have something of it: its status was lost with a
//! restored backup, or written by somebody else. A tombstone on each of them lets the host itself decide.

use std::time::Duration;

use common::render::libvirt::is_volume_of;
use controller_core::cache::Cache;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::registry::Hosts;
use super::whereabouts::may_have_domain;
use crate::access::{Connection, Result};
use crate::libvirt_host::LibvirtHost;

/// Limit of a question to a host, which takes milliseconds.
const LIMIT: Duration = Duration::from_secs(5);

impl Hosts {
    /// The hosts of which nothing is known and that may have the domain of a Machine, without the one that it names.
    pub(crate) fn unknown_hosts(
        &self,
        machine: &Machine,
        named: &str,
        objects: &Cache<LibvirtHost>,
    ) -> Vec<String> {
        let possible = self.possible_hosts(machine, objects).into_iter();
        let hosts = possible.map(|(host, _)| host);
        hosts.filter(|host| host != named).collect()
    }

    /// The hosts that may have something of a Machine which names none and of which no host shows a domain. Volumes are
    /// made before the domain, so each host that can be reached is asked for them.
    pub(crate) async fn hosts_of_remains(
        &self,
        machine: &Machine,
        objects: &Cache<LibvirtHost>,
    ) -> Vec<String> {
        let created = machine.metadata.creation_timestamp.as_ref().map(|at| at.0);
        let mut hosts = Vec::new();
        for object in objects.all() {
            let connected = self.get(object.name());
            let has = match connected.filter(|connected| connected.snapshot().is_ok()) {
                None => may_have_domain(&object, created),
                Some(connected) => {
                    let (pools, uid) = (pools_of(&object), machine.uid().to_owned());
                    let fast = &connected.host.fast;
                    let asked = fast.call(LIMIT, move |host| has_volumes(host, &pools, &uid));
                    // What cannot be read may be there.
                    asked.await.unwrap_or(true)
                }
            };
            if has {
                hosts.push(object.name().to_owned());
            }
        }
        hosts
    }
}

/// The pools in which volumes of Machines are made.
fn pools_of(host: &LibvirtHost) -> Vec<String> {
    let offers = host.spec.storage.iter().flatten();
    offers.map(|offer| offer.pool.clone()).collect()
}

/// Whether one of these pools has a volume of a Machine.
fn has_volumes(host: &mut dyn Connection, pools: &[String], uid: &str) -> Result<bool> {
    for pool in pools {
        let volumes = host.volumes(pool)?;
        if volumes.iter().any(|volume| is_volume_of(&volume.name, uid)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use common::api::libvirt_host::LibvirtHostStatus;
    use controller_core::fixtures;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::runtime::watcher::Event;

    use super::*;
    use crate::access::fake::{FakeLibvirt, FakeVolume};
    use crate::access::{Host, Target};
    use crate::environment::{POOL, block, host_spec};
    use crate::hosts::registry::ConnectedHost;
    use crate::snapshot::Snapshot;

    /// A host that a controller reached at some time.
    fn object(name: &str) -> LibvirtHost {
        LibvirtHost {
            metadata: ObjectMeta {
                name: Some(name.into()),
                ..ObjectMeta::default()
            },
            spec: host_spec(),
            status: LibvirtHostStatus {
                last_seen_time: Some("2026-01-01T00:00:00Z".into()),
                ..LibvirtHostStatus::default()
            },
        }
    }

    /// A host that answers, with this volume.
    fn connect(hosts: &Hosts, name: &str, volume: &str) -> FakeLibvirt {
        let fake = FakeLibvirt::new();
        let mut state = fake.state();
        let pool = state.pools.get_mut(POOL).unwrap();
        pool.volumes.insert(volume.into(), FakeVolume::default());
        drop(state);
        let target = Target {
            uri: String::new(),
            credentials: None,
        };
        let host = ConnectedHost::new(name, Host::new(Arc::new(fake.clone()), target));
        host.set_snapshot(Ok(Arc::new(Snapshot::default())));
        hosts.insert(Arc::new(host));
        fake
    }

    #[tokio::test]
    async fn a_machine_may_be_where_its_volumes_are_and_where_nobody_can_look() {
        let hosts = Hosts::new(Arc::new(FakeLibvirt::new()));
        let never_reached = LibvirtHost {
            status: LibvirtHostStatus::default(),
            ..object("never-reached")
        };
        let objects = Cache::default();
        let all = ["away", "broken", "empty", "full"].map(object);
        let all = all.into_iter().chain([never_reached]);
        objects.apply(Event::Init, |_| ());
        all.for_each(|host| objects.apply(Event::InitApply(host), |_| ()));
        objects.apply(Event::InitDone, |_| ());
        let of_machine = common::render::libvirt::seed_name("default", "web", "uid-of-web", b"");
        let of_another = of_machine.replace("-web-", "-web-0");
        connect(&hosts, "full", &of_machine);
        connect(&hosts, "empty", &of_another);
        let broken = connect(&hosts, "broken", &of_another);
        broken.state().pools.get_mut(POOL).unwrap().active = false;
        let machine = fixtures::machine(block());
        let mut found = hosts.hosts_of_remains(&machine, &objects).await;
        found.sort();
        assert_eq!(found, ["away", "broken", "full"]);
        assert_eq!(hosts.unknown_hosts(&machine, "other", &objects), ["away"]);
        assert_eq!(hosts.unknown_hosts(&machine, "away", &objects), [""; 0]);
    }
}
