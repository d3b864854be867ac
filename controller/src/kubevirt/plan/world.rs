//! A cluster in memory: carries out plans as the API server does, and moves as KubeVirt does.
//!
//! ```text
//! World ─ observed ─▶ plan ─▶ actions ─ act ─▶ World ─ kubevirt ─▶ World …
//! ```
//! What the API server would refuse is refused here: a name that is taken, a uid that is another's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::names;
use common::render::kubevirt::types::{self, Metadata};
use common::render::kubevirt::{Reading, SecretKey, attachment_name, volumes};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

use super::{Action, ClaimPatch, Observed, Plan, named_networks, plan};
use crate::data_volume::DataVolume;
use crate::machine::Machine;
use crate::objects::{
    Attachment, Claim, Instance, InstanceInterface, Meta, Network, Secret, Template, VirtualMachine,
};
use crate::plan::Now;

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
    pub(crate) contents: BTreeMap<SecretKey, Reading>,
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
        let wish = machine.wish();
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
            rivals: self.others.iter().cloned().map(Arc::new).collect(),
            networks,
            classes: self.classes.clone(),
            template: self.template.clone().map(Arc::new),
            refusal: None,
        }
    }

    /// Whether the user's Secrets were written since the VirtualMachine was.
    fn is_behind(&self) -> bool {
        let version = |name: &str| {
            let mut secrets = self.contents.iter().filter(|(key, _)| key.name == name);
            let (_, reading) = secrets.next()?;
            Some(reading.mark.version.clone())
        };
        let cloud_init = &self.machine().cloud_init;
        self.vm
            .as_ref()
            .is_none_or(|vm| cloud_init.is_behind(&vm.spec.template.metadata.annotations, version))
    }

    /// The user writes a Secret.
    pub(crate) fn write_secret(&mut self, key: &SecretKey, content: &str) {
        let version = self.uid();
        let uid = format!("uid-of-{}", key.name);
        let reading = Reading::new(&uid, &version, content.into());
        self.contents.insert(key.clone(), reading);
    }

    pub(crate) fn plan(&self) -> Plan {
        plan(self.machine(), &self.observed(), Now(self.now))
    }

    /// One whole pass; tells what was done.
    pub(crate) fn pass(&mut self) -> Vec<String> {
        self.now += Duration::seconds(10);
        let plan = self.plan();
        let all = plan.actions.len();
        self.carry_out(&plan, all)
    }

    /// Carries a plan out until it ends, is refused, or `steps` actions were tried.
    pub(crate) fn carry_out(&mut self, plan: &Plan, steps: usize) -> Vec<String> {
        let mut done = Vec::new();
        for action in plan.actions.iter().take(steps) {
            if self.act(action) == Err(Refused) {
                return done;
            }
            done.push(action.to_string());
        }
        if steps >= plan.actions.len()
            && let (Some(machine), Some(status)) = (&mut self.machine, &plan.status)
        {
            crate::page::tells_of(status);
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

    /// What one action does at the API server.
    pub(crate) fn act(&mut self, action: &Action) -> Result<(), Refused> {
        match action {
            Action::AddFinalizer => {
                let finalizers = self
                    .machine
                    .as_mut()
                    .ok_or(Refused)?
                    .metadata
                    .finalizers
                    .get_or_insert_default();
                finalizers.push(names::FINALIZER.to_owned());
            }
            Action::RemoveFinalizer => {
                let machine = self.machine.as_mut().ok_or(Refused)?;
                machine.metadata.finalizers = None;
                if machine.is_deleting() {
                    self.machine = None;
                }
            }
            Action::CreateAttachment(wish) => {
                let made = self.made(wish);
                insert(&mut self.attachments, made)?;
            }
            Action::UpdateAttachment(wish) => {
                let live = self.attachments.get_mut(&wish.metadata.name);
                let live = same(live, wish.metadata.uid.as_deref())?;
                live.spec = decode(json!(wish.spec));
            }
            Action::CreateClaim(wish) => {
                let mut made: Claim = self.made(wish);
                made.status.phase = "Pending".into();
                insert(&mut self.claims, made)?;
            }
            Action::PatchClaim(patch) => self.patch_claim(patch)?,
            Action::DeleteClaim { name, uid, version } => {
                if let Some(live) = self.claims.get(name) {
                    let seen = (live.uid(), &live.metadata.resource_version);
                    refuse(seen != (uid.as_str(), version))?;
                    self.claims.remove(name);
                }
            }
            Action::CreateDataVolume(wish) => {
                // As CDI's webhook: it fills no claim that is there.
                refuse(!self.cdi || self.claims.contains_key(&wish.metadata.name))?;
                let made = self.made(wish);
                insert(&mut self.data_volumes, made)?;
                self.orders.insert(wish.metadata.name.clone(), wish.clone());
            }
            Action::ReleaseClaim { name, uid } => {
                if let Ok(live) = same(self.data_volumes.get_mut(name), Some(uid)) {
                    live.metadata.deletion_timestamp = Some(sometime());
                    live.metadata.finalizers = Some(vec![ORPHAN.to_owned()]);
                }
            }
            Action::DeleteDataVolume { name, uid, version } => {
                if let Ok(live) = same(self.data_volumes.get_mut(name), Some(uid)) {
                    refuse(live.metadata.resource_version != *version)?;
                    live.metadata.deletion_timestamp = Some(sometime());
                }
            }
            Action::CreateSecret(wish) => {
                refuse(self.secret.is_some())?;
                let metadata = self.metadata(&wish.metadata);
                self.secret = Some(Secret { metadata });
            }
            Action::UpdateSecret(wish) => {
                let live = same(self.secret.as_mut(), wish.metadata.uid.as_deref())?;
                live.metadata.annotations = Some(wish.metadata.annotations.clone());
            }
            Action::CreateVm(wish) => {
                refuse(self.vm.is_some())?;
                self.vm = Some(self.made(wish));
            }
            Action::UpdateVm(wish) => {
                let live = same(self.vm.as_mut(), wish.metadata.uid.as_deref())?;
                live.spec = decode(json!(wish.spec));
                live.metadata.annotations = Some(wish.metadata.annotations.clone());
            }
            Action::SetRunStrategy { uid, strategy } => {
                let live = same(self.vm.as_mut(), Some(uid))?;
                live.spec.run_strategy.clone_from(strategy);
            }
            Action::DeleteVm { uid } => {
                if let Ok(live) = same(self.vm.as_mut(), Some(uid)) {
                    live.metadata.deletion_timestamp = Some(sometime());
                }
            }
            Action::DeleteInstance { uid } => {
                if let Some(live) = self.instance.as_mut() {
                    refuse(live.uid() != uid)?;
                    if !live.is_deleting() {
                        live.metadata.deletion_timestamp = Some(sometime());
                        self.restarted.push(uid.clone());
                    }
                }
            }
            Action::ConfirmUnused { claim } => self.confirm_unused(claim.as_deref())?,
        }
        Ok(())
    }

    fn patch_claim(&mut self, patch: &ClaimPatch) -> Result<(), Refused> {
        let version = Some(self.uid());
        let live = same(self.claims.get_mut(&patch.name), Some(&patch.uid))?;
        live.metadata.resource_version = version;
        let annotations = live.metadata.annotations.get_or_insert_default();
        for (key, value) in &patch.annotations {
            match value {
                Some(value) => annotations.insert((*key).to_owned(), value.clone()),
                None => annotations.remove(*key),
            };
        }
        if let Some(storage) = &patch.storage {
            live.spec.resources.requests.storage = Some(storage.parse().unwrap());
        }
        Ok(())
    }

    /// As the interpreter asks the API server.
    fn confirm_unused(&self, claim: Option<&str>) -> Result<(), Refused> {
        let machine = self.machine.as_ref().ok_or(Refused)?;
        if let Some(vm) = &self.vm {
            let ours = vm.belongs_to(machine.name(), machine.uid());
            match claim {
                None if ours => return Err(Refused),
                None => return Ok(()),
                Some(claim) => refuse(claims_of(vm).any(|used| used == claim))?,
            }
        }
        let instance = self.instance.as_ref();
        refuse(instance.is_some_and(|instance| claim.is_none_or(|claim| instance.uses(claim))))
    }

    /// KubeVirt and the storage make one move; whether there was one.
    pub(crate) fn kubevirt_moves(&mut self) -> bool {
        let mut moved = self.collect_garbage() || self.cdi_moves();
        for claim in self.claims.values_mut() {
            if claim.status.phase == "Pending" && !(self.first_consumer && self.instance.is_none())
            {
                "Bound".clone_into(&mut claim.status.phase);
                claim.status.capacity = claim.spec.resources.requests;
                moved = true;
            }
            let lacks = claim.status.capacity != claim.spec.resources.requests;
            if claim.status.phase == "Bound" && lacks && claim.status.conditions.is_empty() {
                claim.status.capacity = claim.spec.resources.requests;
                moved = true;
            }
        }
        let deleting = self.vm.as_ref().is_none_or(Meta::is_deleting);
        let strategy = self.vm.as_ref().map_or("", |vm| &vm.spec.run_strategy);
        let runs = !matches!(strategy, "" | "Halted");
        // Without an instance, what has rerun on failure so far stays as it is.
        let starts = runs && (strategy != "RerunOnFailure" || self.strategy != strategy);
        self.strategy = strategy.to_owned();
        match &mut self.instance {
            Some(instance) if instance.is_deleting() => {
                self.instance = None;
                return true;
            }
            Some(instance) if deleting || !runs => {
                instance.metadata.deletion_timestamp = Some(sometime());
                return true;
            }
            None if deleting => return self.vm.take().is_some() || moved,
            None if starts => {
                let uid = self.uid();
                self.instance = self.vm.as_ref().map(|vm| started(vm, &uid));
                self.show("Starting");
                return true;
            }
            Some(instance) if instance.status.phase != "Running" => {
                "Running".clone_into(&mut instance.status.phase);
                instance.status.node_name = Some("node-1".into());
                instance.status.interfaces = vec![InstanceInterface {
                    name: "default".into(),
                    ip_addresses: vec!["10.0.0.1".into()],
                    ..InstanceInterface::default()
                }];
                moved = true;
            }
            _ => {}
        }
        let word = if runs && self.instance.is_some() {
            "Running"
        } else {
            "Stopped"
        };
        self.show(word) || moved
    }

    /// What was owned by a DataVolume that is deleted goes with it, or is left without an owner.
    pub(crate) fn collect_garbage(&mut self) -> bool {
        let gone = |import: &DataVolume| import.is_deleting();
        let imports: Vec<_> = self.data_volumes.values().filter(|it| gone(it)).collect();
        for import in &imports {
            let orphans = import.metadata.finalizers.is_some();
            let owned = |claim: &Claim| claim.data_volume() == Some(import.uid());
            if !orphans {
                self.claims.retain(|_, claim| !owned(claim));
            }
            for claim in self.claims.values_mut().filter(|claim| owned(claim)) {
                claim.metadata.owner_references = None;
            }
        }
        let moved = !imports.is_empty();
        self.data_volumes.retain(|_, import| !gone(import));
        moved
    }

    /// CDI makes one move; whether there was one.
    fn cdi_moves(&mut self) -> bool {
        let mut moved = false;
        for (name, import) in &mut self.data_volumes {
            let claim = self.claims.get(name);
            let phase = match (claim, self.orders.get(name)) {
                (None, Some(order)) => {
                    self.uids += 1;
                    let mut claim: Claim = decode(json!({
                        "metadata": order.metadata, "spec": order.spec.pvc,
                        "status": {"phase": "Pending"},
                    }));
                    claim.metadata.uid = Some(format!("uid-{}", self.uids));
                    claim.metadata.owner_references = Some(vec![owner(import)]);
                    self.claims.insert(name.clone(), claim);
                    "Pending"
                }
                (Some(claim), _) if claim.status.phase == "Bound" => {
                    match import.status.phase.as_str() {
                        "ImportInProgress" | "Succeeded" => "Succeeded",
                        _ => "ImportInProgress",
                    }
                }
                (Some(_), _) if self.first_consumer => "WaitForFirstConsumer",
                _ => continue,
            };
            moved |= show_import(import, phase);
        }
        moved
    }

    /// KubeVirt shows another state; whether it is another.
    pub(crate) fn show(&mut self, word: &str) -> bool {
        let status = &mut self.vm.as_mut().expect("no VirtualMachine").status;
        let moved = status.printable_status != word;
        word.clone_into(&mut status.printable_status);
        moved
    }

    fn made<K: DeserializeOwned + Meta>(&mut self, wish: &impl Serialize) -> K {
        let mut made: K = decode(json!(wish));
        made.meta_mut().uid = Some(self.uid());
        made
    }

    fn metadata(&mut self, wish: &Metadata) -> ObjectMeta {
        ObjectMeta {
            uid: Some(self.uid()),
            ..decode(json!(wish))
        }
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        format!("uid-{}", self.uids)
    }
}

/// How the API server marks what is deleted without its dependents.
pub(crate) const ORPHAN: &str = "orphan";

/// Whether the state is another.
pub(crate) fn show_import(import: &mut DataVolume, phase: &str) -> bool {
    let moved = import.status.phase != phase;
    if moved {
        phase.clone_into(&mut import.status.phase);
        import.metadata.resource_version = Some(phase.to_owned());
    }
    moved
}

pub(crate) fn owner(import: &DataVolume) -> OwnerReference {
    OwnerReference {
        api_version: "cdi.kubevirt.io/v1beta1".into(),
        kind: "DataVolume".into(),
        name: import.name().to_owned(),
        uid: import.uid().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

pub(crate) fn decode<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn sometime() -> Time {
    decode(json!("2026-01-01T00:00:00Z"))
}

/// The instance KubeVirt makes of a VirtualMachine.
fn started(vm: &VirtualMachine, uid: &str) -> Instance {
    let template = json!(vm.spec.template);
    decode(json!({
        "metadata": {
            "name": vm.name(), "namespace": vm.namespace(), "uid": uid,
            "labels": template["metadata"]["labels"],
            "annotations": template["metadata"]["annotations"],
        },
        "spec": template["spec"],
    }))
}

pub(crate) fn claims_of(vm: &VirtualMachine) -> impl Iterator<Item = &str> {
    let volumes = vm.spec.template.spec.volumes.iter();
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

fn refuse(when: bool) -> Result<(), Refused> {
    if when { Err(Refused) } else { Ok(()) }
}

fn insert<K: Meta>(objects: &mut BTreeMap<String, K>, made: K) -> Result<(), Refused> {
    refuse(objects.contains_key(made.name()))?;
    objects.insert(made.name().to_owned(), made);
    Ok(())
}

/// The object if it is there and still the one with this uid.
fn same<'a, K: Meta>(live: Option<&'a mut K>, uid: Option<&str>) -> Result<&'a mut K, Refused> {
    live.filter(|live| Some(live.uid()) == uid).ok_or(Refused)
}
