//! Whether a LibvirtHost leads to the host on which its Machines are.
//!
//! ```text
//! open ─▶ UUID of the host ─┬─ recorded in the status, or confirmed by the annotation ─▶ connection
//!                           └─ another one ─┬─ a domain of a Machine is there ─────────▶ connection
//!                                           └─ none, and the former host had some ─────▶ error
//! ```
//! Another `uri`, or another address of the same name, may lead to another host. Where it has the same storage, the domain of
//! each Machine would look lost there and be defined again, while its guest still runs on the former host. The UUID alone does
//! not tell: a daemon makes one up at each start if neither firmware nor configuration has one
//! (`another_host_that_has_none_of_the_domains_is_refused`,
//! `a_host_that_makes_up_a_uuid_at_each_start_is_known_by_a_domain`).

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use common::names;
use common::render::libvirt::DomainMetadata;
use controller_core::caches::Caches;
use controller_core::objects::Meta as _;
use uuid::Uuid;

use crate::access::{AccessError, Connection, Connector, Result, Target};
use crate::libvirt_host::LibvirtHost;

/// By what the host that a LibvirtHost leads to is recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostIdentity {
    /// The UUIDs that it may have; none: any.
    uuids: BTreeSet<Uuid>,
    /// The uids of deleted Machines that may have something on it.
    deleted: BTreeSet<String>,
}

impl HostIdentity {
    pub(super) fn of(host: &LibvirtHost) -> Self {
        let status = &host.status;
        let domains = status.domains.unwrap_or_default();
        let recorded = status.host_uuid.as_deref().and_then(|it| it.parse().ok());
        let had_domains = domains.ours > 0 || !status.tombstones.is_empty();
        let Some(recorded) = recorded.filter(|_| had_domains) else {
            return Self::default();
        };
        let confirmed = host.named_in(names::ANNOTATION_ACCEPT_HOST);
        let confirmed = confirmed.filter_map(|it| it.parse().ok());
        Self {
            uuids: confirmed.chain([recorded]).collect(),
            deleted: status.tombstones.iter().map(|it| it.uid.clone()).collect(),
        }
    }
}

/// Opens connections of a LibvirtHost to the host that is known, and to no other one.
#[derive(Debug)]
pub(super) struct KnownHostConnector {
    /// Name of the LibvirtHost.
    pub(super) name: String,
    /// Set before each poll.
    pub(super) known: Arc<RwLock<HostIdentity>>,
    /// The Machines whose domains may be there.
    pub(super) caches: Caches,
    pub(super) connector: Arc<dyn Connector>,
}

impl Connector for KnownHostConnector {
    fn open(&self, target: &Target) -> Result<Box<dyn Connection>> {
        let mut connection = self.connector.open(target)?;
        // The calls below may hang, and the poller does not wait for them.
        let known = self.known();
        if known.uuids.is_empty() {
            return Ok(connection);
        }
        let found = connection.host_uuid()?;
        if found.is_some_and(|it| known.uuids.contains(&it))
            || self.has_domain(connection.as_mut(), &known)?
        {
            return Ok(connection);
        }
        let why = if *self.caches.machines_listed.borrow() {
            self.refusal(&known, found)
        } else {
            "the host has another UUID than before, and the Machines are not listed yet".to_owned()
        };
        Err(AccessError::Disconnected(why))
    }
}

impl KnownHostConnector {
    fn known(&self) -> HostIdentity {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    /// Whether the host has the domain of a Machine that is on the host of this LibvirtHost, as far as is known. Another host
    /// has none, unless somebody moved a domain there.
    fn has_domain(&self, host: &mut dyn Connection, known: &HostIdentity) -> Result<bool> {
        let is_bound_here = |uid: &str| {
            let machine = self.caches.machine_index.of_uid(uid);
            let binding = machine.and_then(|it| it.binding.clone());
            binding.is_some_and(|it| it.host.as_ref().is_none_or(|host| **host == *self.name))
        };
        let is_ours = |uid: &str| is_bound_here(uid) || known.deleted.contains(uid);
        let domains = host.domains()?;
        let mut metadata = domains.iter().filter_map(|it| it.metadata.as_deref());
        Ok(metadata.any(|it| DomainMetadata::parse(it).is_some_and(|it| is_ours(&it.uid))))
    }

    fn refusal(&self, known: &HostIdentity, found: Option<Uuid>) -> String {
        let uuids: Vec<_> = known.uuids.iter().map(Uuid::to_string).collect();
        let uuids = uuids.join(" or ");
        let (name, annotation) = (&self.name, names::ANNOTATION_ACCEPT_HOST);
        let advice = "change the URI so that it leads to the former host again; or, if no guest of a Machine can run on the former host any more,";
        match found {
            Some(found) => format!(
                "its URI leads to another host (UUID {found}) than the one with the domains of its Machines (UUID {uuids}): {advice} confirm the new host: kubectl annotate libvirthost {name} {annotation}={found} --overwrite"
            ),
            None => format!(
                "its URI leads to a host without a UUID, and not to the one with the domains of its Machines (UUID {uuids}): {advice} delete the LibvirtHost and create it again, which loses status.keptVolumes and status.tombstones"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use common::api::left_volumes::Tombstone;
    use common::api::libvirt_host::HostDomains;
    use controller_core::fixtures;
    use kube::runtime::reflector::store;
    use kube::runtime::watcher::Event;

    use super::*;
    use crate::access::State;
    use crate::access::fake::FakeLibvirt;
    use crate::environment::{Environment, block, host_object};

    const FORMER: Uuid = Uuid::from_u128(1);
    const OTHER: Uuid = Uuid::from_u128(2);
    const UID: &str = "uid-of-web";

    /// A LibvirtHost whose host had so many domains of Machines.
    fn host(ours: u32) -> LibvirtHost {
        let mut host = host_object("alpha");
        host.status.host_uuid = Some(FORMER.to_string());
        host.status.domains = Some(HostDomains {
            ours,
            ..HostDomains::default()
        });
        host
    }

    /// Opens a connection to the host of `environment` with this UUID. The Machine is bound to the LibvirtHost `bound`.
    fn open_bound(
        environment: &Environment,
        object: &LibvirtHost,
        uuid: Option<Uuid>,
        bound: &str,
    ) -> Result<(), String> {
        let fake = environment.host.clone();
        fake.state().info.uuid = uuid;
        let caches = Caches::new(store().0);
        let machine = fixtures::cached("web", UID, block(), Some(bound));
        caches.machine_index.apply(&Event::Apply(machine));
        caches.machines_listed.send_replace(true);
        let connector = KnownHostConnector {
            name: "alpha".into(),
            known: Arc::new(RwLock::new(HostIdentity::of(object))),
            caches,
            connector: Arc::new(fake),
        };
        let target = Target {
            uri: "qemu:///system".into(),
            credentials: None,
        };
        let opened = connector.open(&target);
        opened.map(|_| ()).map_err(|error| error.to_string())
    }

    fn open(
        environment: &Environment,
        object: &LibvirtHost,
        uuid: Option<Uuid>,
    ) -> Result<(), String> {
        open_bound(environment, object, uuid, "alpha")
    }

    fn empty() -> Environment {
        Environment::new(block())
    }

    #[test]
    fn a_host_without_domains_of_machines_may_be_replaced() {
        assert_eq!(open(&empty(), &host(0), Some(OTHER)), Ok(()));
        let mut new = host(1);
        new.status.host_uuid = None;
        assert_eq!(open(&empty(), &new, Some(OTHER)), Ok(()));
    }

    #[test]
    fn another_host_that_has_none_of_the_domains_is_refused() {
        assert_eq!(open(&empty(), &host(1), Some(FORMER)), Ok(()));
        let refused = open(&empty(), &host(1), Some(OTHER)).unwrap_err();
        let command = "kubectl annotate libvirthost alpha machine.vitistack.io/accept-host=00000000-0000-0000-0000-000000000002 --overwrite";
        assert!(refused.ends_with(command), "{refused}");
        let refused = open(&empty(), &host(1), None).unwrap_err();
        assert!(refused.contains("a host without a UUID"), "{refused}");
    }

    #[test]
    fn a_host_that_makes_up_a_uuid_at_each_start_is_known_by_a_domain() {
        let mut environment = empty();
        environment.settle();
        let states = |it: &Environment| {
            it.host
                .state()
                .domains
                .values()
                .map(|it| it.state)
                .collect::<Vec<_>>()
        };
        assert_eq!(states(&environment), [State::Running]);
        assert_eq!(open(&environment, &host(1), Some(OTHER)), Ok(()));
        // The host of another LibvirtHost has domains, too.
        assert!(open_bound(&environment, &host(1), Some(OTHER), "beta").is_err());
        let mut deleted = host(1);
        deleted.status.tombstones.push(Tombstone {
            machine: "default/web".into(),
            uid: UID.into(),
            since: "2026-01-01T00:00:00Z".into(),
            volumes: None,
        });
        let opened = open_bound(&environment, &deleted, Some(OTHER), "beta");
        assert_eq!(opened, Ok(()));
    }

    #[test]
    fn the_poller_does_not_wait_for_a_host_that_hangs() {
        let fake = FakeLibvirt::new();
        let hang = fake.hang("host_uuid");
        let known = Arc::new(RwLock::new(HostIdentity::of(&host(1))));
        let connector = KnownHostConnector {
            name: "alpha".into(),
            known: known.clone(),
            caches: Caches::new(store().0),
            connector: Arc::new(fake.clone()),
        };
        let target = Target {
            uri: "qemu:///system".into(),
            credentials: None,
        };
        let opening = thread::spawn(move || connector.open(&target).is_ok());
        while fake.most_under_way() == 0 {
            thread::yield_now();
        }
        assert!(known.try_write().is_ok());
        drop(hang);
        assert!(!opening.join().unwrap());
    }

    #[test]
    fn an_administrator_confirms_the_other_host() {
        let mut confirmed = host(1);
        let key = names::ANNOTATION_ACCEPT_HOST.to_owned();
        let value = format!("unreadable, {OTHER}");
        confirmed.metadata.annotations = Some([(key, value)].into());
        for (uuid, is_accepted) in [(OTHER, true), (FORMER, true), (Uuid::from_u128(3), false)] {
            let opened = open(&empty(), &confirmed, Some(uuid));
            assert_eq!(opened.is_ok(), is_accepted, "{uuid}");
        }
    }
}
