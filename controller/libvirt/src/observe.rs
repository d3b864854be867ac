//! What is known of a Machine on a host: from the caches, and by asking the host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::api::libvirt_host::LibvirtHostSpec;
use common::render::libvirt::{Domain, Mark, VolumeFormat, Wire, domain_uuid, is_volume_of};
use uuid::Uuid;

use crate::access::{AccessError, Connection, DomainDetail, Volume};
use crate::failure::failed;
use crate::hosts::registry::{ConnectedHost, Hosts, NOT_POLLED, PlacementLock};
use crate::images::fetches::{Fetches, ImageState};
use crate::images::names::{image_volume, marker};
use crate::libvirt_host::LibvirtHost;
use crate::observed::{Binding, Guest, HostView, Observed};
use crate::offers::images;
use crate::plan::volumes::wanted;
use common::render::kubevirt::{Reading, SecretKey};
use controller_core::addresses::means_others;
use controller_core::backend::Failed;
use controller_core::cache::Cache;
use controller_core::client::GuardedClient;
use controller_core::machine::Machine;
use controller_core::machine::named_networks;
use controller_core::objects::Meta as _;
use controller_core::secrets::read;
use controller_core::watch::Caches;

/// A look takes a millisecond or two; a guest's agent is waited for elsewhere.
const LIMIT: Duration = Duration::from_secs(5);
/// An agent that does not answer costs its own timeout, and no more.
const AGENT_LIMIT: Duration = Duration::from_secs(4);

/// Observes Machines and their hosts.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    /// Caches of the API server's objects.
    pub(crate) caches: Caches,
    /// The hosts that are polled.
    pub(crate) hosts: Hosts,
    /// LibvirtHosts as the API server has them.
    pub(crate) objects: Cache<LibvirtHost>,
    /// The API server, for users' Secrets.
    pub(crate) api: GuardedClient,
    /// Uid of the cluster.
    pub(crate) cluster_uid: Arc<str>,
}

/// What was observed, and the lock under which the Machine is placed if it has no host.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) observed: Observed,
    /// Held until the binding is written.
    #[expect(dead_code, reason = "a lock is held by being there")]
    pub(crate) placement: Option<PlacementLock>,
}

impl Observer {
    /// Observes everything that matters to a Machine.
    pub(crate) async fn observe(&self, machine: &Machine) -> Result<Observation, Failed> {
        let desired = machine.desired();
        let networks = desired
            .into_iter()
            .flat_map(named_networks)
            .filter_map(|name| {
                Some((
                    name.to_owned(),
                    self.caches.networks.get(machine.namespace(), name)?,
                ))
            });
        let template = desired
            .and_then(|block| block.template.as_ref())
            .and_then(|pin| self.caches.templates.get("", &pin.name));
        let mut observed = Observed {
            cluster: self.cluster_uid.clone(),
            binding: Binding::Unbound(vec![]),
            networks: networks.collect(),
            conflicts: self.caches.conflicts(machine, &self.cluster_uid),
            template,
            contents: BTreeMap::new(),
        };
        let uuid = domain_uuid(machine.uid());
        let bound = machine.status.host.clone();
        let bound = bound.or_else(|| self.hosts.with_domain(uuid, machine.uid()));
        let Some(host) = bound else {
            let (lock, hosts) = self.hosts.candidates(&self.caches, &self.objects).await;
            observed.binding = Binding::Unbound(hosts);
            return Ok(Observation {
                observed,
                placement: Some(lock),
            });
        };
        observed.binding = self
            .bound(machine, &host, uuid, &mut observed.contents)
            .await?;
        Ok(Observation {
            observed,
            placement: None,
        })
    }

    async fn bound(
        &self,
        machine: &Machine,
        name: &str,
        uuid: Uuid,
        contents: &mut BTreeMap<SecretKey, Option<Reading>>,
    ) -> Result<Binding, Failed> {
        let away = |why: String| Binding::Unreachable {
            host: name.to_owned(),
            why,
        };
        let Some(object) = self.objects.get("", name) else {
            return Ok(away("its LibvirtHost was deleted: create it again".into()));
        };
        let Some(host) = self.hosts.get(name) else {
            return Ok(away(NOT_POLLED.into()));
        };
        if let Err(why) = host.snapshot() {
            return Ok(away(why));
        }
        let question = Question::of(machine, &object.spec, uuid);
        let answer = host.host.fast.call(LIMIT, move |host| question.ask(host));
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error) if error.unknown() => return Ok(away(error.to_string())),
            Err(error) => return Err(failed(&error)),
        };
        let mut view = answer.view(machine, &object, &host.fetches);
        ask_agent(&mut view, &host, uuid).await;
        self.read_secrets(machine, &mut view, contents).await?;
        Ok(Binding::Bound(Box::new(view)))
    }

    /// Reads the user's Secrets, when a seed has to be made of them.
    async fn read_secrets(
        &self,
        machine: &Machine,
        view: &mut HostView,
        contents: &mut BTreeMap<SecretKey, Option<Reading>>,
    ) -> Result<(), Failed> {
        let plan = &machine.cloud_init;
        if machine.is_deleting() || machine.desired().is_none() {
            return Ok(());
        }
        let mark = view
            .guest
            .as_ref()
            .and_then(|guest| guest.metadata.as_ref());
        let seed = mark.and_then(|mark| mark.seed.as_ref());
        let version = |name: &str| self.caches.versions.get(machine.namespace(), name);
        view.seed_is_behind = seed.is_some_and(|seed| plan.is_behind(&seed.secrets, version));
        let current = seed.is_some_and(|seed| seed.digest == plan.digest()) && !view.seed_is_behind;
        if current {
            return Ok(());
        }
        *contents = read(&self.api, machine.namespace(), plan).await?;
        Ok(())
    }
}

/// How far the images are that a Machine needs.
fn images_of(
    machine: &Machine,
    view: &HostView,
    fetches: &Fetches,
) -> BTreeMap<String, ImageState> {
    let pool = view.spec.image_pool.clone().unwrap_or_default();
    let has = |name: &str| view.volumes.get(&(pool.clone(), name.to_owned()));
    let state = |image: &common::api::machine::Image| {
        let volume = image_volume(image);
        let complete = image.volume.is_some() || has(&marker(&volume)).is_some();
        let state = match has(&volume).filter(|_| complete) {
            Some(found) => ImageState::Complete {
                format: format_of(found),
            },
            None => fetches.state(&volume).unwrap_or(ImageState::Absent),
        };
        (volume, state)
    };
    machine
        .desired()
        .into_iter()
        .flat_map(images)
        .map(state)
        .collect()
}

/// Addresses that the guest's agent tells, as far as it answers.
async fn ask_agent(view: &mut HostView, host: &ConnectedHost, uuid: Uuid) {
    let Some(guest) = view.guest.as_mut().filter(|guest| guest.has_agent) else {
        return;
    };
    let told = host
        .host
        .slow
        .call(AGENT_LIMIT, move |host| host.agent_interfaces(uuid))
        .await;
    match told {
        Ok(interfaces) => {
            for interface in interfaces {
                let Some(mac) = interface.mac else { continue };
                let known = view.addresses.entry(mac.to_lowercase()).or_default();
                let ips = interface.ips.iter().filter(|ip| means_others(**ip));
                known.extend(ips.map(ToString::to_string));
            }
        }
        Err(error) => {
            tracing::debug!(%error, "the guest's agent does not answer");
            guest.has_agent = false;
        }
    }
}

/// Everything a host is asked about one Machine, in one call.
pub(super) struct Question {
    uuid: Uuid,
    /// Pool and name of the volumes it has or is to have.
    wanted: BTreeSet<(String, String)>,
    /// Pools in which everything of the Machine is looked for, when it goes.
    sweep: BTreeSet<String>,
    uid: String,
}

/// What it answered.
pub(super) struct Answer {
    guest: Option<Guest>,
    volumes: BTreeMap<(String, String), Volume>,
    absent_pools: BTreeSet<String>,
    addresses: BTreeMap<String, BTreeSet<String>>,
}

impl Answer {
    pub(super) fn view(self, machine: &Machine, host: &LibvirtHost, fetches: &Fetches) -> HostView {
        let mut view = HostView {
            host: host.name().to_owned(),
            spec: host.spec.clone(),
            guest: self.guest,
            images: BTreeMap::new(),
            seed_is_behind: false,
            volumes: self.volumes,
            absent_pools: self.absent_pools,
            addresses: self.addresses,
        };
        view.images = images_of(machine, &view, fetches);
        view
    }
}

impl Question {
    pub(super) fn of(machine: &Machine, spec: &LibvirtHostSpec, uuid: Uuid) -> Self {
        let desired = machine.desired().into_iter();
        let pools = spec
            .storage
            .iter()
            .flatten()
            .map(|offer| offer.pool.clone());
        let pools = pools.chain(spec.image_pool.clone());
        Self {
            uuid,
            wanted: desired
                .flat_map(|block| wanted(machine, block, spec))
                .collect(),
            sweep: pools.filter(|_| machine.is_deleting()).collect(),
            uid: machine.uid().to_owned(),
        }
    }

    pub(super) fn ask(mut self, host: &mut dyn Connection) -> Result<Answer, AccessError> {
        let guest = host.domain(self.uuid)?.as_ref().map(guest);
        if let Some(mark) = guest.as_ref().and_then(|guest| guest.metadata.as_ref()) {
            let disks = mark.volumes.iter();
            self.wanted
                .extend(disks.map(|kept| (kept.pool.clone(), kept.volume.clone())));
            let seed = mark.seed.iter();
            self.wanted
                .extend(seed.map(|seed| (seed.pool.clone(), seed.volume.clone())));
        }
        let mut volumes = BTreeMap::new();
        let mut absent_pools = BTreeSet::new();
        for (pool, name) in self.wanted {
            // A pool that is not there says nothing about the volumes in it.
            match host.volume(&pool, &name) {
                Ok(Some(volume)) => {
                    volumes.insert((pool, name), volume);
                }
                Ok(None) => {}
                Err(AccessError::Absent(_)) => {
                    absent_pools.insert(pool);
                }
                Err(error) => return Err(error),
            }
        }
        for pool in self.sweep {
            for volume in host.volumes(&pool)? {
                if is_volume_of(&volume.name, &self.uid) {
                    volumes.insert((pool.clone(), volume.name.clone()), volume);
                }
            }
        }
        let addresses = addresses(
            host,
            guest.as_ref().and_then(|guest| guest.running.as_ref()),
        )?;
        Ok(Answer {
            guest,
            volumes,
            absent_pools,
            addresses,
        })
    }
}

/// What the networks gave the guest's cards.
fn addresses(
    host: &mut dyn Connection,
    running: Option<&Domain>,
) -> Result<BTreeMap<String, BTreeSet<String>>, AccessError> {
    let mut addresses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let Some(running) = running else {
        return Ok(addresses);
    };
    let networks = running
        .nics
        .iter()
        .filter_map(|nic| match &nic.attached.wire {
            Wire::Network(name) => Some(name.as_str()),
            Wire::Bridge(_) | Wire::Ovs(_) => None,
        });
    let networks: BTreeSet<_> = networks.collect();
    let cards: BTreeSet<_> = running.nics.iter().map(|nic| nic.mac.to_string()).collect();
    for network in networks {
        let leases = match host.leases(network) {
            // Not every driver gives addresses away.
            Err(AccessError::Unsupported(_)) => vec![],
            leases => leases?,
        };
        for lease in leases {
            let mac = lease.mac.to_lowercase();
            if cards.contains(&mac) {
                addresses
                    .entry(mac)
                    .or_default()
                    .insert(lease.ip.to_string());
            }
        }
    }
    Ok(addresses)
}

fn guest(found: &DomainDetail) -> Guest {
    let read = |xml: &str| match Domain::parse(xml) {
        Ok(domain) => Some(domain),
        Err(error) => {
            tracing::warn!(%error, "a domain cannot be read");
            None
        }
    };
    let live = found.live.as_deref();
    Guest {
        state: found.state.state,
        reason: found.state.reason,
        metadata: found.state.mark.as_deref().and_then(Mark::parse),
        defined: read(&found.inactive),
        running: live.and_then(read),
        has_agent: live.is_some_and(agent_is_connected),
    }
}

/// Whether the agent's channel is open from inside the guest.
fn agent_is_connected(xml: &str) -> bool {
    let targets = xml
        .split("<target ")
        .filter(|target| target.contains("org.qemu.guest_agent.0"));
    let mut heads = targets.filter_map(|target| target.split_once('>').map(|(head, _)| head));
    heads.any(|head| head.contains("state='connected'") || head.contains("state=\"connected\""))
}

fn format_of(volume: &Volume) -> VolumeFormat {
    if volume.format == "qcow2" {
        VolumeFormat::Qcow2
    } else {
        VolumeFormat::Raw
    }
}
