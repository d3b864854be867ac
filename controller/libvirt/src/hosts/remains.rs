//! Hosts that a Machine under deletion does not name and that may have something of it: its status was lost with a
//! restored backup, or written by somebody else. A tombstone on each of them lets the host itself decide.

use controller_core::cache::Cache;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::host_lookup::may_have_domain;
use super::registry::Hosts;
use crate::libvirt_host::LibvirtHost;

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

    /// The hosts that may have something of a Machine which names none and of which no host shows a domain: those whose last
    /// full poll showed volumes of it, and those that cannot be polled. What was made since that poll was made by this
    /// process, which has recorded the host. No host is called now: a deletion of many Machines would cause as many calls.
    pub(crate) fn hosts_of_remains(
        &self,
        machine: &Machine,
        objects: &Cache<LibvirtHost>,
    ) -> Vec<String> {
        let created = machine.metadata.creation_timestamp.as_ref().map(|at| at.0);
        let has = |object: &LibvirtHost| {
            let polled = self.get(object.name()).map(|it| it.snapshot());
            match polled {
                Some(Ok(snapshot)) => snapshot.may_have_volumes_of(machine.uid()),
                Some(Err(_)) | None => may_have_domain(object, created),
            }
        };
        let hosts = objects.all().into_iter().filter(has);
        hosts.map(|object| object.name().to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use common::api::libvirt_host::LibvirtHostStatus;
    use common::render::libvirt::short_id;
    use controller_core::fixtures;
    use kube::runtime::watcher::Event;

    use super::*;
    use crate::access::fake::FakeLibvirt;
    use crate::environment::{block, host_object};
    use crate::snapshot::Snapshot;

    /// A host that a controller reached at some time.
    fn object(name: &str) -> LibvirtHost {
        let mut host = host_object(name);
        host.status.last_seen_time = Some("2026-01-01T00:00:00Z".into());
        host
    }

    /// The last poll of a host with volumes of the Machine of this uid.
    fn with_volumes_of(owner: &str) -> Snapshot {
        Snapshot {
            owners: [short_id(owner)].into(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_machine_may_be_where_its_volumes_are_and_where_nobody_can_look() {
        let hosts = Hosts::new(Arc::new(FakeLibvirt::new()));
        let never_reached = LibvirtHost {
            status: LibvirtHostStatus::default(),
            ..object("never-reached")
        };
        let objects = Cache::default();
        let all = ["away", "empty", "full", "hidden"].map(object);
        let all = all.into_iter().chain([never_reached]);
        objects.apply(Event::Init, |_| ());
        all.for_each(|host| objects.apply(Event::InitApply(host), |_| ()));
        objects.apply(Event::InitDone, |_| ());
        let full = FakeLibvirt::new();
        hosts.connect("full", full.clone(), Ok(with_volumes_of("uid-of-web")));
        let empty = with_volumes_of("uid-of-another");
        hosts.connect("empty", FakeLibvirt::new(), Ok(empty));
        let hidden = Snapshot {
            has_hidden_volumes: true,
            ..Snapshot::default()
        };
        hosts.connect("hidden", FakeLibvirt::new(), Ok(hidden));
        let machine = fixtures::machine(block());
        let mut found = hosts.hosts_of_remains(&machine, &objects);
        found.sort();
        assert_eq!(found, ["away", "full", "hidden"]);
        assert_eq!(full.opened(), 0, "no host is asked for a deletion");
        assert_eq!(hosts.unknown_hosts(&machine, "other", &objects), ["away"]);
        assert_eq!(hosts.unknown_hosts(&machine, "away", &objects), [""; 0]);
    }
}
