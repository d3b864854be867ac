//! A Machine and its host in memory: plans are carried out on a fake host, with faults.
//!
//! ```text
//! Environment ─ question ─▶ FakeLibvirt ─▶ Observed ─▶ plan ─▶ actions ─ act, Applier ─▶ FakeLibvirt, API server …
//! ```
//! What asks the host, plans and carries actions out is the program. Imitated are libvirt, the API server, and of the program:
//!
//! | imitated | reason |
//! |---|---|
//! | what the observer does beside asking the host: the choice of the host, room, other hosts, Secrets, agents, probes | tests set their results; `observe::tests` and `hosts` test them |
//! | the guard of a job on the host: the hosts that it asks about | tests say what the other hosts show; `hosts::location::tests` |
//! | the worker that runs a job on the host | jobs are carried out at once, `apply::tests` and `access::worker` |
//! | the queue and the download of an image: it is there at once | nothing is downloaded, `images::fetch::tests` and `images::fetches::tests` |
//! | the queue of copies: they are made at once | `apply::tests` |
//! | the pass itself, which [`controller_core::laws`] repeats | it writes a status in memory |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::api::choice::{Backend, HostNetworkType, PowerState, Provisioning, VirtType};
use common::api::libvirt_host::{
    HostNetwork, HostResources, HostStorage, LibvirtHostSpec, LibvirtHostStatus,
};
use common::api::network::NetworkConfigurationSpec;
use common::api::normalized::Normalized;
use common::catalog::Policy;
use common::names;
use common::quantity::Bytes;
use common::render::libvirt::{DomainMetadata, VolumeFormat, VolumeSpec, domain_uuid, volume_xml};
use common::render::{SecretKey, SecretValue};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use time::{Duration, OffsetDateTime};

mod api;
mod samples;
mod two_hosts;

pub(crate) use samples::{
    POOL, block, guard, guard_beside, guard_of_another_host, guard_with, guard_without_lease,
    host_object, host_spec, running_domain,
};
use two_hosts::candidate;

use crate::Libvirt;
use crate::access;
use crate::access::fake::FakeLibvirt;
use crate::access::{
    AccessError, Connection, Connector as _, DomainState, State, Target, VolumeKey,
};
use crate::apply::explained;
use crate::apply::on_host::{Job, act};
use crate::capacity::UNLIMITED;
use crate::failure::failed;
use crate::guard::Guard;
use crate::hardware::Cpus;
use crate::images::fetches::{Fetches, ImageState};
use crate::images::names::{attempt, is_attempt_of, marker, marker_xml};
use crate::libvirt_host::LibvirtHost;
use crate::names::domain_of;
use crate::observe::Observation;
use crate::observe::query::HostQuery;
use crate::observed::{Binding, Observed, Password};
use crate::plan::action::{Action, KeptOnHost, Plan};
use crate::pool_space::StorageFactor;
use crate::probing::Readiness;
use crate::reservations::Reservations;
use crate::snapshot::{DomainSummary, Snapshot};
use crate::switches::Switches;
use controller_core::backend::{Failed, Growth};
use controller_core::conditions::Fault;
use controller_core::documented_reasons;
use controller_core::fixtures;
use controller_core::foreign_stop::OnForeignStop;
use controller_core::machine::{Block, Machine};
use controller_core::objects::{Meta as _, Network};
use controller_core::plan::{Now, Refusal, Step};
use controller_core::reconcile::plan;

/// A Machine and its host.
pub(crate) struct Environment {
    /// `None` once it was deleted and its finalizer removed.
    pub(crate) machine: Option<Machine>,
    pub(crate) host: FakeLibvirt,
    pub(crate) object: LibvirtHost,
    pub(crate) networks: BTreeMap<String, Arc<Network>>,
    /// Another host, with the same storage behind its pool.
    pub(crate) other: Option<(FakeLibvirt, LibvirtHost)>,
    /// Other hosts on which something of the Machine may be.
    pub(crate) elsewhere: Vec<String>,
    /// Other Machines.
    pub(crate) others: Vec<Machine>,
    pub(crate) on_foreign_stop: OnForeignStop,
    /// What is read of the password of the screen.
    pub(crate) password: Password,
    /// What the readiness probe of the guest shows, if there is one.
    pub(crate) readiness: Option<Readiness>,
    /// Folder of the pool for logs of consoles.
    pub(crate) console_logs: Option<String>,
    /// Answer of the API server for the user's Secrets.
    pub(crate) contents: Result<BTreeMap<SecretKey, Option<SecretValue>>, String>,
    /// What the Machine may have on the host at most.
    pub(crate) room: HostResources,
    /// How far copies of images to disks are that run in the background. Those of a plan are made at once.
    pub(crate) copies: BTreeMap<VolumeKey, ImageState>,
    /// Whether one of them is under way.
    pub(crate) is_copying: bool,
    pub(crate) now: OffsetDateTime,
    /// Why the growth of the Machine is held, if it is.
    pub(crate) hold: Option<Fault>,
    /// MachinePolicies of the Machine's namespace.
    pub(crate) policies: Vec<Arc<Policy>>,
    /// Whether this replica holds the Lease.
    pub(crate) has_lease: bool,
    /// Number of writes at the API server.
    pub(crate) writes: usize,
    /// Whether the Machine was bound to another host.
    pub(crate) is_bound_elsewhere: bool,
    version: u32,
}

impl Environment {
    pub(crate) fn new(block: Normalized) -> Self {
        Self {
            machine: Some(fixtures::machine(block)),
            host: FakeLibvirt::new(),
            object: host_object("alpha"),
            networks: BTreeMap::new(),
            other: None,
            elsewhere: vec![],
            others: vec![],
            on_foreign_stop: OnForeignStop::default(),
            contents: Ok(BTreeMap::new()),
            password: Password::NotRead,
            readiness: None,
            console_logs: None,
            room: UNLIMITED,
            copies: BTreeMap::new(),
            is_copying: false,
            now: OffsetDateTime::UNIX_EPOCH,
            hold: None,
            policies: vec![],
            has_lease: true,
            writes: 0,
            is_bound_elsewhere: false,
            version: 1,
        }
    }

    pub(crate) fn machine(&self) -> &Machine {
        self.machine.as_ref().expect("the Machine is gone")
    }

    pub(crate) fn machine_mut(&mut self) -> &mut Machine {
        self.machine.as_mut().expect("the Machine is gone")
    }

    /// A NetworkConfiguration of this bridge.
    pub(crate) fn add_network(&mut self, name: &str, bridge: &str) {
        let network = Network {
            metadata: ObjectMeta {
                name: Some(name.into()),
                ..ObjectMeta::default()
            },
            spec: NetworkConfigurationSpec {
                bridge: Some(bridge.into()),
                ..NetworkConfigurationSpec::default()
            },
            ..Network::default()
        };
        self.networks.insert(name.into(), Arc::new(network));
    }

    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut Normalized)) {
        let machine = self.machine_mut();
        let mut block = machine.desired().unwrap().clone();
        change(&mut block);
        machine.block = Block::Matching(Box::new(block));
    }

    pub(crate) fn power(&mut self, state: PowerState) {
        self.edit(|block| block.power_state = state);
    }

    pub(crate) fn delete(&mut self) {
        let machine = self.machine_mut();
        if machine.has_finalizer(names::FINALIZER) {
            machine.metadata.deletion_timestamp =
                Some(Time(std::time::SystemTime::UNIX_EPOCH.try_into().unwrap()));
        } else {
            self.machine = None;
        }
    }

    pub(crate) fn connection(&self) -> Result<Box<dyn Connection>, AccessError> {
        self.host.open(&Target {
            uri: String::new(),
            credentials: None,
        })
    }

    pub(crate) fn observe(&self) -> Result<Observation, AccessError> {
        let machine = self.machine();
        let binding = match &machine.status.host {
            None => Binding::Unbound(vec![candidate(&self.host, &self.object)]),
            Some(host) => match self.connection() {
                Err(error) => Binding::Unreachable {
                    host: host.clone(),
                    why: error.to_string(),
                },
                Ok(mut connection) => {
                    let query =
                        HostQuery::new(machine, &self.object.spec, domain_uuid(machine.uid()));
                    let answer = query.run(&mut *connection)?;
                    let (switches, fetches) = (self.switches(), Fetches::default());
                    let mut view = answer.view(machine, &self.object, switches, &fetches);
                    view.room = self.room;
                    let cpus = self.host.state().info.cpus;
                    view.cpus = Cpus::of(&self.object.spec, cpus);
                    view.console_logs.clone_from(&self.console_logs);
                    view.readiness.clone_from(&self.readiness);
                    (view.copies, view.is_copying) = (self.copies.clone(), self.is_copying);
                    Binding::Bound(Box::new(view))
                }
            },
        };
        let observed = Observed {
            cluster: "cluster".into(),
            on_foreign_stop: self.on_foreign_stop,
            binding,
            other_domains: self.other_domains(machine.uid()),
            targets: self.targets(),
            policies: self.policies.clone(),
            elsewhere: self.elsewhere.clone(),
            hold: self.hold.clone(),
            networks: self.networks.clone(),
            conflicts: fixtures::conflicts(machine, "cluster", &self.others, &self.networks),
            template: None,
            outdated_images: vec![],
            kept_of_former: self.kept_of_former(),
            contents: self.contents.clone(),
            password: self.password.clone(),
        };
        Ok(Observation {
            observed,
            placement: None,
        })
    }

    /// The switches of the host, as if it had just been polled.
    fn switches(&self) -> Switches {
        let host = self.host.state();
        let networks = host.networks.iter().map(|(name, network)| access::Network {
            name: name.clone(),
            active: network.active,
            bridge: network.bridge.clone(),
            linux_bridge: network.linux_bridge,
        });
        Switches::of(&Snapshot {
            info: host.info.clone(),
            networks: networks.collect(),
            ..Snapshot::default()
        })
    }

    pub(crate) fn plan(&self) -> Result<Plan, AccessError> {
        self.plan_after(None)
    }

    /// The plan of a pass after an action was refused.
    pub(crate) fn plan_after(&self, refusal: Option<&Refusal>) -> Result<Plan, AccessError> {
        let (observed, growth) = (self.observe()?, self.growth());
        let now = Now(self.now);
        Ok(plan::<Libvirt>(
            self.machine(),
            &observed,
            refusal,
            growth,
            now,
        ))
    }

    pub(crate) fn growth(&self) -> Growth<'_> {
        match &self.hold {
            Some(fault) => Growth::Held(fault),
            None => Growth::Permitted,
        }
    }

    /// One whole pass, a while after the last one. Returns the actions.
    pub(crate) fn pass(&mut self) -> Vec<String> {
        self.pass_until(usize::MAX)
    }

    /// A pass of a controller that is killed after so many actions.
    pub(crate) fn pass_until(&mut self, steps: usize) -> Vec<String> {
        self.now += Duration::seconds(10);
        self.follow();
        let Ok(plan) = self.plan() else { return vec![] };
        let mut done = Vec::new();
        for (number, step) in plan.steps().enumerate() {
            if number >= steps || self.step(&step).is_err() {
                return done;
            }
            done.push(step.to_string());
        }
        if let (Some(machine), Some(status)) = (&mut self.machine, &plan.status) {
            documented_reasons::assert_documented(status);
            machine.status = status.clone();
        }
        done
    }

    /// Passes until nothing changes any more. Returns the actions.
    pub(crate) fn settle(&mut self) -> Vec<String> {
        /// A guest that ignores requests takes a minute to be switched off.
        const PASSES_MAX: usize = 40;
        let mut done = Vec::new();
        for _ in 0..PASSES_MAX {
            if self.machine.is_none() {
                return done;
            }
            let before = self.machine().status.clone();
            let calls = self.host.calls().len();
            let actions = self.pass();
            let waits = self.machine.is_some()
                && self.plan().is_ok_and(|plan| plan.requeue_after.is_some());
            let rests = actions.is_empty()
                && !waits
                && calls == self.host.calls().len()
                && self
                    .machine
                    .as_ref()
                    .is_some_and(|machine| machine.status == before);
            done.extend(actions);
            if rests {
                return done;
            }
        }
        panic!("no stable state after {PASSES_MAX} passes: {done:#?}");
    }

    /// Carries out one step with the code of the program. What fails is refused by that code.
    pub(crate) fn step(&mut self, step: &Step<'_, Action>) -> Result<(), Failed> {
        let Step::Act(action) = step else {
            return self.at_api_server(step);
        };
        match action {
            Action::Bind { .. }
            | Action::RecordOrphan { .. }
            | Action::RecordKept { .. }
            | Action::RemoveAnnotation(_)
            | Action::MoveTo { .. } => self.at_api_server(step),
            Action::Leave { .. } | Action::ReleaseKept(_) => {
                let done = self.at_api_server(step);
                self.share();
                done
            }
            Action::FetchImage { volume, .. } => {
                // It begins in the background, and ends with the runtime of the step.
                self.at_api_server(step)?;
                self.fetched(volume).map_err(|error| failed(&error))
            }
            on_host => {
                let done = self.on_host(on_host);
                let is_reset = matches!(action, Action::Reset);
                done.map_err(|error| explained(is_reset, failed(&error)))
            }
        }
    }

    /// The guard of the Machine's jobs.
    pub(crate) fn guard(&self) -> Guard {
        if self.has_lease && self.is_bound_elsewhere {
            return guard_of_another_host();
        }
        self.guard_of(self.machine().uid())
    }

    /// The guard of a job about the Machine of this uid.
    fn guard_of(&self, uid: &str) -> Guard {
        if !self.has_lease {
            return guard_without_lease();
        }
        let others = self.other_domains(uid).into_iter();
        guard_beside(others.map(|it| it.host).collect())
    }

    /// An image has been fetched.
    fn fetched(&self, volume: &str) -> Result<(), AccessError> {
        let mut host = self.connection()?;
        // As a fetch does: what an interrupted attempt left is removed first.
        let names: Vec<_> = host.volumes(POOL)?.into_iter().map(|it| it.name).collect();
        let incomplete = names
            .iter()
            .filter(|name| is_attempt_of(name, volume) && !names.contains(&marker(name)));
        for name in incomplete {
            host.delete_volume(POOL, name)?;
        }
        let volume = &attempt(volume, self.now.unix_timestamp());
        let xml = volume_xml(&VolumeSpec {
            name: volume,
            format: VolumeFormat::Raw,
            capacity: Bytes::mib(1),
            backing: None,
        });
        host.create_volume(POOL, &xml)?;
        host.create_volume(POOL, &marker_xml(volume)).map(drop)
    }

    /// Carries out an action on the host that the Machine is on.
    fn on_host(&mut self, action: &Action) -> Result<(), AccessError> {
        let owner = self.machine().uid().to_owned();
        let domain = domain_of(self.machine());
        let mut host = self.connection()?;
        let job = Job {
            uuid: domain_uuid(&owner),
            owner,
            domain,
            guard: self.guard(),
            factor: StorageFactor::of(&self.object.spec),
            reservations: Reservations::default(),
        };
        let done = act(&mut *host, &job, action.clone());
        self.share();
        done
    }

    /// Kept volumes of deleted Machines, as the status of the host lists them.
    fn kept_of_former(&self) -> Vec<KeptOnHost> {
        let kept = self.object.status.kept_volumes.iter();
        let on_host = kept.map(|volume| KeptOnHost {
            host: self.object.name().to_owned(),
            volume: volume.clone(),
        });
        on_host.collect()
    }
}
