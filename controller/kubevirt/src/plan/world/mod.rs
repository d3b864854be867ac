//! A cluster in memory: carries out plans as the API server does, and moves as KubeVirt does.
//!
//! ```text
//! World ─ observed ─▶ plan ─▶ actions ─ act ─▶ World ─ kubevirt ─▶ World …
//! ```
//! What the API server would refuse is refused here: a name that is taken, a uid that is another's.

mod moves;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::names;
use common::render::kubevirt::types;
use common::render::kubevirt::{attachment_name, volumes};
use common::render::{SecretKey, SecretValue};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

pub(crate) use self::moves::{owner, show_import};
use super::{Observed, Plan};
use crate::KubeVirt;
use crate::objects::data_volume::DataVolume;
use crate::objects::{Attachment, Claim, Instance, VirtualMachine};
use controller_core::machine::Machine;
use controller_core::machine::named_networks;
use controller_core::objects::{Meta, Network, Secret, Template};
use controller_core::plan::Now;
use controller_core::reconcile::plan;

/// Everything in it.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each part of a cluster is there or not"
)]
pub(crate) struct World {
    /// Gone when its finalizer is, after its deletion.
    pub(crate) machine: Option<Machine>,
    pub(crate) kubevirt: bool,
    pub(crate) multus: bool,
    pub(crate) cdi: bool,
    pub(crate) vm: Option<VirtualMachine>,
    pub(crate) instance: Option<Instance>,
    pub(crate) claims: BTreeMap<String, Claim>,
    pub(crate) data_volumes: BTreeMap<String, DataVolume>,
    /// Storage that waits until it knows the guest's node.
    pub(crate) first_consumer: bool,
    /// What the DataVolumes are to make.
    orders: BTreeMap<String, types::DataVolume>,
    pub(crate) secret: Option<Secret>,
    /// Secrets of the user.
    pub(crate) contents: BTreeMap<SecretKey, SecretValue>,
    pub(crate) networks: BTreeMap<String, Network>,
    pub(crate) attachments: BTreeMap<String, Attachment>,
    pub(crate) classes: BTreeMap<String, bool>,
    pub(crate) template: Option<Template>,
    /// Uids of other Machines that live.
    pub(crate) living: BTreeSet<String>,
    /// Other Machines, on the same networks or not.
    pub(crate) others: Vec<Machine>,
    /// Uids of the instances that a plan deleted, in order.
    pub(crate) restarted: Vec<String>,
    /// The strategy as KubeVirt last saw it.
    strategy: String,
    now: OffsetDateTime,
    uids: u32,
}

/// Why the API server, or the interpreter that asks it, does not go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl World {
    /// A cluster with everything a Machine may need, and this Machine.
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            machine: Some(machine),
            kubevirt: true,
            multus: true,
            cdi: true,
            vm: None,
            instance: None,
            claims: BTreeMap::new(),
            data_volumes: BTreeMap::new(),
            first_consumer: false,
            orders: BTreeMap::new(),
            secret: None,
            contents: BTreeMap::new(),
            networks: BTreeMap::new(),
            attachments: BTreeMap::new(),
            classes: [("standard".to_owned(), true)].into(),
            template: None,
            living: BTreeSet::new(),
            others: Vec::new(),
            restarted: Vec::new(),
            strategy: String::new(),
            now: OffsetDateTime::UNIX_EPOCH,
            uids: 0,
        }
    }

    pub(crate) fn machine(&self) -> &Machine {
        self.machine.as_ref().expect("the Machine is gone")
    }

    pub(crate) fn machine_mut(&mut self) -> &mut Machine {
        self.machine.as_mut().expect("the Machine is gone")
    }

    /// Somebody deletes the Machine.
    pub(crate) fn delete_machine(&mut self) {
        let machine = self.machine_mut();
        if machine.has_finalizer(names::FINALIZER) {
            machine.metadata.deletion_timestamp = Some(sometime());
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

    /// What the caches would know, had they seen everything.
    pub(crate) fn observed(&self) -> Observed {
        let machine = self.machine();
        let wish = machine.desired();
        let wished: Vec<_> = wish
            .into_iter()
            .flat_map(|block| volumes(machine.name(), block))
            .collect();
        let sources = wished.iter().filter_map(|volume| {
            let source = &volume.disk.image.as_ref()?.persistent_volume_claim;
            source.clone()
        });
        let sources = sources.filter(|source| self.claims.contains_key(source));
        let sources = sources.collect();
        let wished: BTreeSet<_> = wished.into_iter().map(|volume| volume.claim).collect();
        let imports = self.data_volumes.iter();
        let data_volumes = imports
            .filter(|(name, import)| {
                import.machine() == Some(machine.name()) || wished.contains(*name)
            })
            .map(|(name, import)| (name.clone(), Arc::new(import.clone())))
            .collect();
        let claims = self.claims.iter();
        let claims: BTreeMap<_, _> = claims
            .filter(|(name, claim)| {
                claim.machine() == Some(machine.name()) || wished.contains(*name)
            })
            .map(|(name, claim)| (name.clone(), Arc::new(claim.clone())))
            .collect();
        let networks: BTreeMap<_, _> = wish
            .into_iter()
            .flat_map(named_networks)
            .filter_map(|name| Some((name.to_owned(), Arc::new(self.networks.get(name)?.clone()))))
            .collect();
        let attachments = networks.values().filter_map(|network| {
            let name = attachment_name(network.name(), &network.spec);
            let attachment = self.attachments.get(name)?;
            Some((name.to_owned(), Arc::new(attachment.clone())))
        });
        // As the controller reads them: only while something has to be made of them.
        let rendered = self.secret.as_ref();
        let rendered = rendered.and_then(|secret| secret.annotation(names::ANNOTATION_RENDERED));
        let cloud_init = &machine.cloud_init;
        let outdated = cloud_init.needs_secret() && rendered != Some(&cloud_init.digest());
        let references = cloud_init
            .references()
            .filter(|_| outdated || self.is_behind());
        Observed {
            cluster: "cluster".into(),
            kubevirt: self.kubevirt,
            multus: self.multus,
            cdi: self.cdi,
            vm: self.vm.clone().map(Arc::new),
            instance: self.instance.clone().map(Arc::new),
            attachments: attachments.collect(),
            claims,
            data_volumes,
            sources,
            living: self.living.clone(),
            secret: self.secret.clone().map(Arc::new),
            contents: references
                .map(|key| (key.clone(), self.contents.get(key).cloned()))
                .collect(),
            conflicts: self.others.iter().cloned().map(Arc::new).collect(),
            networks,
            classes: self.classes.clone(),
            template: self.template.clone().map(Arc::new),
        }
    }

    /// Whether the user's Secrets were written since the VirtualMachine was.
    fn is_behind(&self) -> bool {
        let version = |name: &str| {
            let mut secrets = self.contents.iter().filter(|(key, _)| key.name == name);
            let (_, reading) = secrets.next()?;
            Some(reading.revision.version.clone())
        };
        let cloud_init = &self.machine().cloud_init;
        self.vm.as_ref().is_none_or(|vm| {
            cloud_init.is_outdated(&vm.spec.template.metadata.annotations, version)
        })
    }

    /// The user writes a Secret.
    pub(crate) fn write_secret(&mut self, key: &SecretKey, content: &str) {
        let version = self.uid();
        let uid = format!("uid-of-{}", key.name);
        let reading = SecretValue::new(&uid, &version, content.into());
        self.contents.insert(key.clone(), reading);
    }

    pub(crate) fn plan(&self) -> Plan {
        plan::<KubeVirt>(self.machine(), &self.observed(), None, Now(self.now))
    }

    /// One whole pass; tells what was done.
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
            if self.step(&step) == Err(Refused) {
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

    /// Passes and moves of KubeVirt until nothing happens any more; tells what was done.
    pub(crate) fn settle(&mut self) -> Vec<String> {
        /// More than the longest way from anywhere to rest.
        const PASSES_MAX: usize = 30;
        let mut done = Vec::new();
        for _ in 0..PASSES_MAX {
            let moved = self.kubevirt_moves();
            if self.machine.is_none() {
                if moved {
                    continue;
                }
                return done;
            }
            let before = self.machine().status.clone();
            let actions = self.pass();
            let rests = actions.iter().all(|action| action.starts_with("made sure"))
                && self
                    .machine
                    .as_ref()
                    .is_some_and(|machine| machine.status == before);
            done.extend(actions);
            if rests && !moved {
                return done;
            }
        }
        panic!("no rest after {PASSES_MAX} passes: {done:#?}");
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        format!("uid-{}", self.uids)
    }
}

/// How the API server marks what is deleted without its dependents.
pub(crate) const ORPHAN: &str = "orphan";

pub(crate) fn decode<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn sometime() -> Time {
    decode(json!("2026-01-01T00:00:00Z"))
}

pub(crate) fn claims_of(vm: &VirtualMachine) -> impl Iterator<Item = &str> {
    let volumes = vm.spec.template.spec.volumes.iter();
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}
