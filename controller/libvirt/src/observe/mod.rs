//! Observes a Machine: its objects in the caches, and its host's answers.

pub(crate) mod query;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::names;
use common::render::libvirt::domain_uuid;
use controller_core::addresses::is_reported;
use controller_core::backend::Failed;
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::client::GuardedClient;
use controller_core::machine::{Machine, named_networks};
use controller_core::objects::Meta as _;
use controller_core::secrets::read;
use uuid::Uuid;

use self::query::HostQuery;
use crate::failure::failed;
use crate::hosts::registry::{ConnectedHost, Hosts, NOT_POLLED, PlacementLock};
use crate::libvirt_host::LibvirtHost;
use crate::observed::{Binding, HostView, Observed};
use crate::plan::action::KeptOnHost;

/// Limit of a query, which takes a millisecond or two. Queries of the guest's agent have another limit.
const QUERY_LIMIT: Duration = Duration::from_secs(5);
/// Limit of a query to a guest's agent, which has a timeout of 3 s of its own.
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
    /// Observes every input of a Machine's plan. A part that cannot be read is an error of that part.
    pub(crate) async fn observe(&self, machine: &Machine) -> Result<Observation, Failed> {
        let desired = machine.desired();
        let networks = desired
            .into_iter()
            .flat_map(named_networks)
            .filter_map(|name| {
                let network = self.caches.networks.get(machine.namespace(), name)?;
                Some((name.to_owned(), network))
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
            kept_of_former: self.kept_of_former(machine),
            contents: Ok(BTreeMap::new()),
        };
        let uuid = domain_uuid(machine.uid());
        let host = machine.status.host.clone();
        let host = host.or_else(|| self.hosts.with_domain(uuid, machine.uid()));
        let Some(host) = host else {
            let (lock, hosts) = self.hosts.candidates(&self.caches, &self.objects).await;
            observed.binding = Binding::Unbound(hosts);
            return Ok(Observation {
                observed,
                placement: Some(lock),
            });
        };
        observed.binding = self.bound(machine, &host, uuid).await?;
        if let Binding::Bound(view) = &mut observed.binding
            && self.needs_secrets(machine, view)
        {
            let contents = read(&self.api, machine.namespace(), &machine.cloud_init).await;
            observed.contents = contents.map_err(|error| error.message());
        }
        Ok(Observation {
            observed,
            placement: None,
        })
    }

    /// The volumes that hosts list as kept of former Machines of the name, if the annotation asks for any.
    fn kept_of_former(&self, machine: &Machine) -> Vec<KeptOnHost> {
        if machine
            .annotation(names::ANNOTATION_RELEASE_VOLUME)
            .is_none()
        {
            return vec![];
        }
        let name = format!("{}/{}", machine.namespace(), machine.name());
        let hosts = self.objects.all().into_iter();
        let kept = hosts.flat_map(|host| {
            let volumes = host.status.kept_volumes.clone().into_iter();
            volumes.map(move |volume| KeptOnHost {
                host: host.name().to_owned(),
                volume,
            })
        });
        kept.filter(|kept| kept.volume.machine == name).collect()
    }

    async fn bound(&self, machine: &Machine, name: &str, uuid: Uuid) -> Result<Binding, Failed> {
        let unreachable = |why: String| Binding::Unreachable {
            host: name.to_owned(),
            why,
        };
        let Some(object) = self.objects.get("", name) else {
            return Ok(unreachable(
                "its LibvirtHost was deleted: create it again".into(),
            ));
        };
        let Some(host) = self.hosts.get(name) else {
            return Ok(unreachable(NOT_POLLED.into()));
        };
        if let Err(why) = host.snapshot() {
            return Ok(unreachable(why));
        }
        let query = HostQuery::new(machine, &object.spec, uuid);
        let answer = host
            .host
            .fast
            .call(QUERY_LIMIT, move |host| query.run(host));
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error) if error.unknown() => return Ok(unreachable(error.to_string())),
            Err(error) => return Err(failed(&error)),
        };
        let mut view = answer.view(machine, &object, &host.fetches);
        ask_agent(&mut view, &host, uuid).await;
        Ok(Binding::Bound(Box::new(view)))
    }

    /// Whether the user's Secrets have to be read: if there is no seed of the current ones.
    fn needs_secrets(&self, machine: &Machine, view: &mut HostView) -> bool {
        let plan = &machine.cloud_init;
        if machine.is_deleting() || machine.desired().is_none() {
            return false;
        }
        let metadata = view
            .guest
            .as_ref()
            .and_then(|guest| guest.metadata.as_ref());
        let seed = metadata.and_then(|metadata| metadata.seed.as_ref());
        let version = |name: &str| self.caches.secret_versions.get(machine.namespace(), name);
        view.seed_is_behind = seed.is_some_and(|seed| plan.is_outdated(&seed.secrets, version));
        seed.is_none_or(|seed| seed.digest != plan.digest()) || view.seed_is_behind
    }
}

/// Adds the addresses that the guest's agent reports. An agent that does not answer counts as not connected; the
/// addresses of the leases stay.
async fn ask_agent(view: &mut HostView, host: &ConnectedHost, uuid: Uuid) {
    let Some(guest) = view.guest.as_mut().filter(|guest| guest.has_agent) else {
        return;
    };
    let slow = &host.host.slow;
    let reported = slow.call(AGENT_LIMIT, move |host| host.agent_interfaces(uuid));
    match reported.await {
        Ok(interfaces) => {
            for interface in interfaces {
                let Some(mac) = interface.mac else { continue };
                let known: &mut BTreeSet<String> =
                    view.addresses.entry(mac.to_lowercase()).or_default();
                let ips = interface.ips.iter().filter(|ip| is_reported(**ip));
                known.extend(ips.map(ToString::to_string));
            }
        }
        Err(error) => {
            tracing::debug!(%error, "the guest's agent does not answer");
            guest.has_agent = false;
        }
    }
}
