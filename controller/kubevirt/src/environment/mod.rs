//! A cluster in memory: it carries out plans as the API server does, and changes as KubeVirt does.
//!
//! ```text
//! FakeCluster ─ caches ─▶ observe ─▶ plan ─▶ steps ─ apply ─▶ requests ─ answer ─▶ FakeCluster ─ advance_kubevirt ─▶ …
//! ```
//! What observes, plans and applies is the program. Imitated are the API server, KubeVirt, CDI, the storage and the garbage
//! collector, and of the program: the watches, whose caches are filled with what is there now, so that they are never
//! behind; and the pass itself, which [`controller_core::laws`] repeats. Tests may set the results of looks instead of what
//! these would read: the configuration of KubeVirt, the pod of the guest and its events, why a guest was taken down, MachineImages
//! with another source, and whether another Machine has an existing claim. The laws set none of them.
//!
//! The API server refuses what the API server would refuse: a name that exists, or a uid that does not match.

mod api;
mod caches;
mod inputs;
mod laws;
pub(crate) mod moves;
pub(crate) mod server;
mod server_side_apply;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::catalog::{ClaimUser, KubevirtRow};
use common::names;
use common::render::{SecretKey, SecretValue};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

use crate::apply::claim_user::UserKind;
use crate::backend::KubeVirt;
use crate::objects::{
    Attachment, Claim, DataVolume, GuestMigration, GuestPod, Instance, VirtualMachine,
};
use crate::plan::action::Plan;
use crate::plan::observed::{Eviction, Observed, PodWarning};
use controller_core::backend::Growth;
use controller_core::conditions::Fault;
use controller_core::foreign_stop::OnForeignStop;
use controller_core::machine::Machine;
use controller_core::objects::{Meta, Network, Secret, Template};
use controller_core::plan::Now;
use controller_core::reconcile::plan;

/// The cluster and its one Machine `web`.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each part of a cluster is there or not"
)]
pub(crate) struct FakeCluster {
    /// `None` once it was deleted and its finalizer removed.
    pub(crate) machine: Option<Machine>,
    pub(crate) kubevirt: bool,
    /// How KubeVirt is configured.
    pub(crate) settings: Option<KubevirtRow>,
    pub(crate) multus: bool,
    pub(crate) cdi: bool,
    pub(crate) vm: Option<VirtualMachine>,
    pub(crate) instance: Option<Instance>,
    /// The pod in which the instance's guest runs.
    pub(crate) pod: Option<GuestPod>,
    /// The last migration that was created.
    pub(crate) migration: Option<GuestMigration>,
    /// What was found about the end of a guest.
    pub(crate) pod_warning: Option<PodWarning>,
    pub(crate) eviction: Option<Eviction>,
    pub(crate) on_foreign_stop: OnForeignStop,
    pub(crate) claims: BTreeMap<String, Claim>,
    pub(crate) data_volumes: BTreeMap<String, DataVolume>,
    /// Whether the StorageClass binds volumes only once the guest has a node.
    pub(crate) first_consumer: bool,
    /// Whether no node has room for a guest.
    pub(crate) is_full: bool,
    /// Whether no import ends.
    pub(crate) imports_hang: bool,
    /// Whether no migration ends.
    pub(crate) migrations_hang: bool,
    /// Kinds (plural) and API groups whose writes the API server answers with an error of its own.
    pub(crate) failing: BTreeSet<&'static str>,
    /// Shared imports of MachineImages, by name.
    pub(crate) imports: BTreeMap<String, DataVolume>,
    /// MachineImages that have another source now.
    pub(crate) unprofiled: BTreeSet<String>,
    pub(crate) outdated_images: Vec<String>,
    /// DataVolumes as they were created, by name.
    import_specs: BTreeMap<String, Value>,
    /// What this controller applied last to each object, by uid.
    applied: BTreeMap<String, Value>,
    pub(crate) secret: Option<Secret>,
    /// Secrets of the user.
    pub(crate) contents: BTreeMap<SecretKey, SecretValue>,
    /// Answer of the API server instead of a Secret.
    pub(crate) secrets_error: Option<String>,
    /// Answer of the API server instead of the claims with the state of the guest.
    pub(crate) state_claims_error: Option<String>,
    pub(crate) networks: BTreeMap<String, Network>,
    pub(crate) attachments: BTreeMap<String, Attachment>,
    pub(crate) classes: BTreeMap<String, bool>,
    pub(crate) template: Option<Template>,
    /// Uids of other Machines that exist.
    pub(crate) existing_uids: BTreeSet<String>,
    /// Other Machines, on the same networks or not.
    pub(crate) others: Vec<Machine>,
    /// Another Machine that has every existing claim.
    pub(crate) claim_holder: Option<ClaimUser>,
    /// Objects of others that may have claims as volumes.
    pub(crate) claim_users: Vec<(UserKind, Value)>,
    /// Why the growth of the Machine is held, if it is.
    pub(crate) hold: Option<Fault>,
    /// Whether this replica holds the Lease.
    pub(crate) holds_lease: bool,
    /// How many requests changed something.
    changes: usize,
    /// Uids of the instances that a plan deleted, in order.
    pub(crate) restarted: Vec<String>,
    /// Uids of the instances whose hardware was reset.
    pub(crate) resets: Vec<String>,
    /// The run strategy at KubeVirt's last step.
    strategy: String,
    now: OffsetDateTime,
    uids: u32,
    /// The version of the object that was written last.
    versions: u32,
}

/// Larger than any version that a test gives an object: no write may result in a version that was observed before.
const FIRST_VERSION: u32 = 1000;

impl FakeCluster {
    /// A cluster with everything a Machine may need, and this Machine.
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            machine: Some(machine),
            kubevirt: true,
            settings: None,
            multus: true,
            cdi: true,
            vm: None,
            instance: None,
            pod: None,
            migration: None,
            pod_warning: None,
            eviction: None,
            on_foreign_stop: OnForeignStop::default(),
            claims: BTreeMap::new(),
            data_volumes: BTreeMap::new(),
            first_consumer: false,
            is_full: false,
            imports_hang: false,
            migrations_hang: false,
            failing: BTreeSet::new(),
            imports: BTreeMap::new(),
            unprofiled: BTreeSet::new(),
            outdated_images: vec![],
            import_specs: BTreeMap::new(),
            applied: BTreeMap::new(),
            secret: None,
            contents: BTreeMap::new(),
            secrets_error: None,
            state_claims_error: None,
            networks: BTreeMap::new(),
            attachments: BTreeMap::new(),
            classes: [("standard".to_owned(), true)].into(),
            template: None,
            existing_uids: BTreeSet::new(),
            others: Vec::new(),
            claim_holder: None,
            claim_users: Vec::new(),
            hold: None,
            holds_lease: true,
            changes: 0,
            restarted: Vec::new(),
            resets: Vec::new(),
            strategy: String::new(),
            now: OffsetDateTime::UNIX_EPOCH,
            uids: 0,
            versions: FIRST_VERSION,
        }
    }

    pub(crate) fn machine(&self) -> &Machine {
        self.machine.as_ref().expect("the Machine is gone")
    }

    pub(crate) fn machine_mut(&mut self) -> &mut Machine {
        self.machine.as_mut().expect("the Machine is gone")
    }

    /// A user deletes the Machine.
    pub(crate) fn delete_machine(&mut self) {
        let machine = self.machine_mut();
        if machine.has_finalizer(names::FINALIZER) {
            machine.metadata.deletion_timestamp = Some(some_time());
        } else {
            self.machine = None;
        }
    }

    pub(crate) fn add_network(&mut self, name: &str, bridge: &str) {
        let network = decode(json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}")},
            "spec": {"bridge": bridge},
        }));
        self.networks.insert(name.to_owned(), network);
    }

    /// What the observer of the program sees, with caches that are up to date. What a test has set as the result of a look is
    /// that result.
    pub(crate) fn observed(&self) -> Observed {
        let machine = self.machine();
        let observed = self.clone().serve(async |api, _| {
            let observer = self.observer(api.clone());
            observer.observe(machine).await
        });
        let mut observed = observed.expect("no part of an observation of the tests fails it");
        if let Some(settings) = &self.settings {
            observed.settings = Some(settings.clone());
        }
        if self.pod.is_some() {
            let pod = self.pod.clone();
            observed.pod = pod.map(Arc::new);
        }
        if self.pod_warning.is_some() {
            observed.pod_warning.clone_from(&self.pod_warning);
        }
        if self.eviction.is_some() {
            observed.eviction.clone_from(&self.eviction);
        }
        if self.claim_holder.is_some() {
            for known in observed.existing.values_mut() {
                known.holder.clone_from(&self.claim_holder);
            }
        }
        let outdated = self.outdated_images.iter().cloned();
        observed.outdated_images.extend(outdated);
        observed
    }

    /// The user writes a Secret.
    pub(crate) fn write_secret(&mut self, key: &SecretKey, content: &str) {
        let version = self.uid();
        let uid = format!("uid-of-{}", key.name);
        let reading = SecretValue::new(&uid, &version, content.into());
        self.contents.insert(key.clone(), reading);
    }

    pub(crate) fn plan(&self) -> Plan {
        let (observed, growth) = (self.observed(), self.growth());
        plan::<KubeVirt>(self.machine(), &observed, None, growth, Now(self.now))
    }

    pub(crate) fn growth(&self) -> Growth<'_> {
        match &self.hold {
            Some(fault) => Growth::Held(fault),
            None => Growth::Permitted,
        }
    }

    /// One pass. Returns the log lines of the steps.
    pub(crate) fn pass(&mut self) -> Vec<String> {
        self.now += Duration::seconds(10);
        let plan = self.plan();
        let all = plan.steps().count();
        self.carry_out(&plan, all)
    }

    /// Carries a plan out until it ends, is refused, or `steps` actions were tried.
    pub(crate) fn carry_out(&mut self, plan: &Plan, steps: usize) -> Vec<String> {
        let mut done = Vec::new();
        for step in plan.steps().take(steps) {
            if self.step(&step).is_err() {
                return done;
            }
            done.push(step.to_string());
        }
        if steps >= plan.steps().count()
            && let (Some(machine), Some(status)) = (&mut self.machine, &plan.status)
        {
            controller_core::documented_reasons::assert_documented(status);
            machine.status = status.clone();
        }
        done
    }

    /// Passes and steps of KubeVirt until nothing changes any more. Returns the log lines.
    pub(crate) fn settle(&mut self) -> Vec<String> {
        /// More passes than the longest sequence takes.
        const PASSES_MAX: usize = 30;
        let mut done = Vec::new();
        for _ in 0..PASSES_MAX {
            let has_changed = self.advance_kubevirt();
            if self.machine.is_none() {
                if has_changed {
                    continue;
                }
                return done;
            }
            let before = self.machine().status.clone();
            let actions = self.pass();
            let rests = actions.iter().all(|action| action.starts_with("confirmed"))
                && self
                    .machine
                    .as_ref()
                    .is_some_and(|machine| machine.status == before);
            done.extend(actions);
            if rests && !has_changed {
                return done;
            }
        }
        panic!("no stable state after {PASSES_MAX} passes: {done:#?}");
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        format!("uid-{}", self.uids)
    }
}

/// The finalizer that the API server sets on an object that is deleted without its dependents.
pub(crate) const ORPHAN: &str = "orphan";

pub(crate) fn decode<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn some_time() -> Time {
    decode(json!("2026-01-01T00:00:00Z"))
}

pub(crate) fn claims_of(vm: &VirtualMachine) -> impl Iterator<Item = &str> {
    let volumes = vm.spec.template.spec.volumes.iter();
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}
