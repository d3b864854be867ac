//! A second host in memory, with the same storage behind its pool.

use std::collections::BTreeSet;
use std::sync::Arc;

use common::render::libvirt::domain_uuid;
use controller_core::machine::NO_RESOURCES;
use controller_core::objects::Meta as _;

use super::{Environment, POOL, host_object};
use crate::access::fake::FakeLibvirt;
use crate::access::{AccessError, Connection, Connector as _, Target, VolumeKey};
use crate::hardware::{self, Cpus};
use crate::hosts::location::Location;
use crate::libvirt_host::LibvirtHost;
use crate::observed::ShownDomain;
use crate::placement::Candidate;
use crate::snapshot::Snapshot;

impl Environment {
    /// Adds the host `beta`. Both hosts say that their pools have the same storage.
    pub(crate) fn with_other_host(mut self) -> Self {
        let mut beta = host_object("beta");
        for object in [&mut self.object, &mut beta] {
            for offer in object.spec.storage.iter_mut().flatten() {
                offer.shared_as = Some("nfs".into());
            }
        }
        self.other = Some((FakeLibvirt::new(), beta));
        self
    }

    /// What one host writes to the pool the other one sees.
    pub(super) fn share(&self) {
        if let Some((other, object)) = &self.other
            && object.spec.shared_storage() == self.object.spec.shared_storage()
        {
            let volumes = self.host.state().pools[POOL].volumes.clone();
            other.state().pools.get_mut(POOL).unwrap().volumes = volumes;
        }
    }

    /// The hosts that show the domain of the Machine of this uid.
    fn shown(&self, owner: &str) -> Vec<ShownDomain> {
        let uuid = domain_uuid(owner);
        let other = self.other.iter().map(|(host, object)| (host, object));
        let all = [(&self.host, &self.object)].into_iter().chain(other);
        let shown = all.filter_map(|(host, object)| {
            let state = host.state();
            let domain = state.domains.get(&uuid)?;
            Some(ShownDomain {
                host: object.name().to_owned(),
                is_active: domain.state.active(),
                answers: true,
            })
        });
        shown.collect()
    }

    /// The domain of the Machine of this uid on the host that the Machine of the environment is not on.
    pub(super) fn other_domains(&self, uid: &str) -> Vec<ShownDomain> {
        let shown = self.shown(uid).into_iter();
        shown.filter(|it| it.host != self.object.name()).collect()
    }

    /// Selects the host that the Machine is on: the one that shows its domain, else that of its status.
    pub(super) fn follow(&mut self) {
        let Some(machine) = &self.machine else {
            return;
        };
        let hint = machine.status.host.clone();
        let leaves = machine.leaves_host().filter(|_| machine.is_deleting());
        let named = leaves.map(ToOwned::to_owned).or(hint.clone());
        let shown = Location::choose(self.shown(machine.uid()), hint.as_deref()).map(|it| it.host);
        let Some((other, object)) = &mut self.other else {
            return;
        };
        if shown.or(named).as_deref() == Some(object.name()) {
            std::mem::swap(&mut self.host, other);
            std::mem::swap(&mut self.object, object);
        }
    }

    pub(crate) fn other_connection(&self) -> Result<Box<dyn Connection>, AccessError> {
        let (other, _) = self.other.as_ref().expect("there is another host");
        connection(other)
    }

    /// The hosts that the Machine can be moved to, if that is requested or under way.
    pub(super) fn targets(&self) -> Vec<Candidate> {
        let machine = self.machine();
        if machine.leaves_host().is_none() && machine.new_migration_request().is_none() {
            return vec![];
        }
        let other = self.other.iter().map(|(host, object)| (host, object));
        let all = [(&self.host, &self.object)].into_iter().chain(other);
        all.map(|(host, object)| candidate(host, object)).collect()
    }
}

fn connection(host: &FakeLibvirt) -> Result<Box<dyn Connection>, AccessError> {
    host.open(&Target {
        uri: String::new(),
        credentials: None,
    })
}

/// A host as placement sees it.
pub(super) fn candidate(host: &FakeLibvirt, object: &LibvirtHost) -> Candidate {
    let snapshot = connection(host).map_err(|error| error.to_string());
    let snapshot = snapshot.map(|mut open| {
        Arc::new(Snapshot {
            hardware: open.hardware_of_all().unwrap(),
            info: open.info().unwrap(),
            pools: open.pools().unwrap(),
            space_left: [(POOL.to_owned(), u128::MAX)].into(),
            existing_volumes: existing_volumes(host, object),
            ..Snapshot::default()
        })
    });
    let known = snapshot.as_ref().ok();
    let devices_left =
        known.map(|known| hardware::devices_left(&object.spec, &known.hardware, &[]));
    let cpus_left = known.map(|known| {
        let cpus = Cpus::of(&object.spec, known.info.cpus);
        hardware::cpus_left(&cpus, &known.hardware, std::iter::empty())
    });
    Candidate {
        name: object.name().to_owned(),
        labels: object.metadata.labels.clone().unwrap_or_default(),
        spec: object.spec.clone(),
        snapshot,
        allocated: NO_RESOURCES,
        cpus_left: cpus_left.unwrap_or_default(),
        devices_left: devices_left.unwrap_or_default(),
        groups: vec![],
    }
}

/// The volumes in the pools with existing volumes.
fn existing_volumes(host: &FakeLibvirt, object: &LibvirtHost) -> BTreeSet<VolumeKey> {
    let state = host.state();
    let offers = object.spec.existing_volumes.iter().flatten();
    let offered = offers.filter_map(|offer| Some((offer, state.pools.get(&offer.pool)?)));
    let names = offered.flat_map(|(offer, pool)| {
        let names = pool.volumes.keys();
        names.map(|name| (offer.pool.clone(), name.clone()))
    });
    names.collect()
}
