//! Observes a Machine: its objects in the caches, and its host's answers.

mod agent;
pub(crate) mod query;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::api::libvirt_host::LibvirtHostSpec;
use common::names;
use common::render::libvirt::{SeedRecord, domain_uuid};
use controller_core::backend::{Failed, Growth};
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::client::{GuardedClient, Remedy};
use controller_core::foreign_stop::OnForeignStop;
use controller_core::machine::{Machine, named_networks, requested_resources};
use controller_core::objects::{Meta as _, Network};
use controller_core::secrets::{read, read_display_password};

use self::agent::ask_agent;
use self::query::HostQuery;
use crate::access::VolumeKey;
use crate::capacity::fits;
use crate::failure::failed;
use crate::hardware::Cpus;
use crate::hosts::connected::{NOT_POLLED, QUERY_LIMIT};
use crate::hosts::registry::{Asking, Hosts, PlacementLock};
use crate::images::fetches::{Fetches, ImageState};
use crate::images::names::copy_name;
use crate::libvirt_host::LibvirtHost;
use crate::observed::{Binding, HostView, Observed, Password};
use crate::plan::action::KeptOnHost;
use crate::plan::disks::copies;
use crate::probing::Probing;
use crate::snapshot::Snapshot;
use crate::switches::Switches;

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
    /// What is done about guests that other clients stop.
    pub(crate) on_foreign_stop: OnForeignStop,
    /// Readiness probes of guests.
    pub(crate) probing: Probing,
}

/// What was observed, and the lock under which the Machine is placed if it has no host.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) observed: Observed,
    /// Held until the binding is written.
    #[expect(dead_code, reason = "a lock is held by being there")]
    pub(crate) placement: Option<PlacementLock>,
}

/// The NetworkConfigurations of the cards of a Machine, by name, those that exist.
pub(crate) fn networks_of(machine: &Machine, caches: &Caches) -> BTreeMap<String, Arc<Network>> {
    let names = machine.desired().into_iter().flat_map(named_networks);
    let network = |name: &str| {
        let network = caches.networks.get(machine.namespace(), name)?;
        Some((name.to_owned(), network))
    };
    names.filter_map(network).collect()
}

impl Observer {
    /// Observes every input of a Machine's plan. A part that cannot be read is an error of that part. Room on the host is
    /// reserved for the Machine as far as it may grow.
    pub(crate) async fn observe(
        &self,
        machine: &Machine,
        growth: Growth<'_>,
    ) -> Result<Observation, Failed> {
        let desired = machine.desired();
        let template = desired
            .and_then(|block| block.template.as_ref())
            .and_then(|pin| self.caches.templates.get("", &pin.name));
        let mut observed = Observed {
            cluster: self.cluster_uid.clone(),
            on_foreign_stop: self.on_foreign_stop,
            binding: Binding::Unbound(vec![]),
            other_domains: vec![],
            targets: vec![],
            policies: vec![],
            elsewhere: vec![],
            hold: match growth {
                Growth::Held(fault) => Some(fault.clone()),
                Growth::Permitted => None,
            },
            networks: networks_of(machine, &self.caches),
            conflicts: self.caches.conflicts(machine, &self.cluster_uid, &|| {
                let hosts = self.objects.all().into_iter();
                hosts
                    .map(|host| host.spec.networks.clone().unwrap_or_default())
                    .collect()
            }),
            template,
            outdated_images: self.caches.outdated_images(machine),
            kept_of_former: self.kept_of_former(machine),
            contents: Ok(BTreeMap::new()),
            password: Password::NotRead,
        };
        let Some(host) = self.hosts.host_of_machine(machine) else {
            if machine.is_deleting() {
                observed.elsewhere = self.hosts.hosts_of_remains(machine, &self.objects);
                return Ok(Observation {
                    observed,
                    placement: None,
                });
            }
            if let Some(binding) = self.possibly_elsewhere(machine, None) {
                observed.binding = binding;
                return Ok(Observation {
                    observed,
                    placement: None,
                });
            }
            let (lock, hosts) = self.hosts.candidates(&self.caches, &self.objects).await;
            observed.binding = Binding::Unbound(hosts);
            return Ok(Observation {
                observed,
                placement: Some(lock),
            });
        };
        observed.binding = self.bound(machine, &host, growth).await?;
        self.look_elsewhere(machine, &host, &mut observed);
        self.check_not_migrated(machine, &observed.binding).await?;
        let is_moved = machine.leaves_host().is_some() || machine.new_migration_request().is_some();
        if is_moved && !machine.is_deleting() {
            // The lock would be held while volumes are looked for: the step that chooses the host takes it again.
            observed.targets = self.hosts.candidates(&self.caches, &self.objects).await.1;
            observed.policies = self.caches.policies_of(machine.namespace());
        }
        if let Binding::Bound(view) = &mut observed.binding
            && self.needs_secrets(machine, view)
        {
            let contents = read(&self.api, machine.namespace(), &machine.cloud_init).await;
            observed.contents = contents.map_err(|error| error.message());
        }
        if let Binding::Bound(view) = &observed.binding
            && let Some(secret) = self.password_to_read(machine, view)
        {
            let read = read_display_password(&self.api, machine.namespace(), secret);
            observed.password = match read.await {
                Ok(password) => Password::Read(password),
                Err(error) => Password::Unreadable(error.message()),
            };
        }
        Ok(Observation {
            observed,
            placement: None,
        })
    }

    /// Finds out whether something of a Machine may be on another host than `host`, whose answer is the binding.
    fn look_elsewhere(&self, machine: &Machine, host: &str, observed: &mut Observed) {
        observed.other_domains = self.hosts.other_domains(machine.uid(), host);
        let view = match &observed.binding {
            Binding::Bound(view) => Some(view),
            Binding::Unbound(_) | Binding::Unregistered { .. } | Binding::Unreachable { .. } => {
                None
            }
        };
        let has_domain = view.is_some_and(|view| view.guest.is_some());
        let objects = &self.objects;
        let may_run = view.and_then(|view| self.hosts.may_run_elsewhere(machine, view, objects));
        if let Some(binding) = may_run {
            if machine.is_deleting() {
                // A forced deletion leaves a record of this definition, too.
                observed.elsewhere = vec![host.to_owned()];
            }
            observed.binding = binding;
        } else if machine.is_deleting() {
            if !has_domain {
                observed.elsewhere = self.hosts.unknown_hosts(machine, host, objects);
            }
        } else if view.is_some()
            && !has_domain
            && let Some(binding) = self.possibly_elsewhere(machine, Some(host))
        {
            observed.binding = binding;
        }
    }

    /// Fails if another host has the domain that the Machine had on its host at the last pass, and the polls do not show that
    /// yet: `virsh migrate --undefinesource` leaves nothing behind. Without this check the domain would be defined and
    /// started on its old host.
    async fn check_not_migrated(&self, machine: &Machine, binding: &Binding) -> Result<(), Failed> {
        let Binding::Bound(view) = binding else {
            return Ok(());
        };
        if view.guest.is_some() || machine.status.vm_name.is_none() {
            return Ok(());
        }
        let other = self.hosts.other_host_now(machine.uid(), &view.host);
        match other.await {
            None => Ok(()),
            Some(other) => {
                let message = format!(
                    "the domain of the Machine is on LibvirtHost '{other}' and no longer on '{}'",
                    view.host
                );
                Err(Failed::new(Remedy::Retry, message))
            }
        }
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

    /// The binding of a Machine whose domain `host` does not have, if another host may have it of which nothing is
    /// known.
    fn possibly_elsewhere(&self, machine: &Machine, host: Option<&str>) -> Option<Binding> {
        if let Some(from) = machine.leaves_host()
            && self.objects.get("", from).is_none()
        {
            return Some(Binding::Unregistered {
                host: from.to_owned(),
            });
        }
        let possible = self.hosts.possible_hosts(machine, &self.objects);
        let (other, why) = possible.into_iter().next()?;
        let why = match host {
            Some(host) => format!(
                "{why}; the Machine has no domain on LibvirtHost '{host}', and may have one there"
            ),
            None => format!("{why}; the Machine may have a domain there"),
        };
        Some(Binding::Unreachable { host: other, why })
    }

    async fn bound(
        &self,
        machine: &Machine,
        name: &str,
        growth: Growth<'_>,
    ) -> Result<Binding, Failed> {
        let uuid = domain_uuid(machine.uid());
        let unreachable = |why: String| Binding::Unreachable {
            host: name.to_owned(),
            why,
        };
        let Some(object) = self.objects.get("", name) else {
            return Ok(Binding::Unregistered {
                host: name.to_owned(),
            });
        };
        if let Some(why) = &object.unreadable {
            return Ok(unreachable(why.clone()));
        }
        let Some(host) = self.hosts.get(name) else {
            return Ok(unreachable(NOT_POLLED.into()));
        };
        let snapshot = match host.snapshot() {
            Ok(snapshot) => snapshot,
            Err(why) => return Ok(unreachable(why)),
        };
        // Before the host is asked: a copy that ends meanwhile is shown by the host, and is not made a second time.
        let copies = copies_of(machine, &object.spec, &host.copies);
        let is_copying = host.copies.works_for(machine.namespace(), machine.name());
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
        let mut view = answer.view(machine, &object, Switches::of(&snapshot), &host.fetches);
        (view.copies, view.is_copying) = (copies, is_copying);
        view.console_logs = console_logs(&object.spec, &snapshot);
        if view.guest.is_some() && machine.leaves_host().is_none() {
            self.hosts
                .release_reservation_elsewhere(machine.uid(), name);
        }
        view.cpus = Cpus::of(&object.spec, snapshot.info.cpus);
        match growth {
            Growth::Permitted => self.look_for_room(machine, &object, &snapshot, &mut view),
            // What it does not get is for others. Without a domain it keeps what was reserved when it was placed.
            Growth::Held(_) if view.guest.is_some() => {
                self.hosts
                    .reduce_reservation(machine.uid(), view.size_now_or_after_restart());
            }
            Growth::Held(_) => {}
        }
        ask_agent(machine, &mut view, &host, uuid).await;
        let guest = view.guest.as_ref();
        let runs = guest.is_some_and(|guest| guest.belongs_to(machine) && guest.running.is_some());
        view.readiness = self.probing.readiness(machine, runs, &host, uuid);
        Ok(Binding::Bound(Box::new(view)))
    }

    /// Finds out how much a Machine may have that asks for more than it has.
    fn look_for_room(
        &self,
        machine: &Machine,
        host: &LibvirtHost,
        snapshot: &Snapshot,
        view: &mut HostView,
    ) {
        let Some(block) = machine.desired().filter(|_| !machine.is_deleting()) else {
            return;
        };
        let (asks, has) = (requested_resources(block), view.size());
        let (hosts, uid) = (&self.hosts, machine.uid());
        if fits(asks, has) {
            hosts.reduce_reservation(uid, asks);
        } else {
            let is_dedicated = block.has_dedicated_cpus();
            let asking = Asking {
                uid,
                asks,
                has,
                is_dedicated,
                // A reservation is where the Machine is taken to be, so there is none on a host that it leaves.
                reserves: machine.leaves_host() != Some(host.name()),
            };
            view.room = hosts.room(host, snapshot, &self.caches, &asking);
        }
    }

    /// The Secret of the screen's password, if the running guest does not have the password of the Secret as it is.
    fn password_to_read<'m>(&self, machine: &'m Machine, view: &HostView) -> Option<&'m str> {
        let block = machine.desired().filter(|_| !machine.is_deleting())?;
        let secret = block.display_secret()?;
        let running = view.guest.as_ref()?.running.as_ref()?;
        let cached = self.caches.secret_versions.get(machine.namespace(), secret);
        let is_current = running.display.password.as_ref().is_some_and(|applied| {
            applied.secret == secret && Some(&applied.version) == cached.as_ref()
        });
        (!is_current).then_some(secret)
    }

    /// Whether the user's Secrets have to be read: if there is no seed of the current ones.
    fn needs_secrets(&self, machine: &Machine, view: &mut HostView) -> bool {
        let plan = &machine.cloud_init;
        if machine.is_deleting() || machine.desired().is_none() {
            return false;
        }
        let version = |name: &str| self.caches.secret_versions.get(machine.namespace(), name);
        let is_outdated = |seed: &SeedRecord| plan.is_outdated(&seed.secrets, version);
        view.seed_is_behind = view.seed().is_some_and(is_outdated);
        view.seed_is_behind || !view.has_seed_of(machine)
    }
}

/// The folder of the pool for logs of consoles, if the pool is active.
fn console_logs(spec: &LibvirtHostSpec, snapshot: &Snapshot) -> Option<String> {
    let name = spec.console_log_pool.as_deref()?;
    let mut pools = snapshot.pools.iter();
    let pool = pools.find(|pool| pool.name == name && pool.active)?;
    pool.path.clone()
}

/// How far the copies of images to the disks of a Machine are.
fn copies_of(
    machine: &Machine,
    spec: &LibvirtHostSpec,
    all: &Fetches,
) -> BTreeMap<VolumeKey, ImageState> {
    let volumes = copies(machine, spec).into_values();
    let state = |volume: VolumeKey| {
        let name = copy_name(&volume);
        let state = all.state(&name, machine.namespace(), machine.name())?;
        Some((volume, state))
    };
    volumes.filter_map(state).collect()
}

#[cfg(test)]
mod tests;
