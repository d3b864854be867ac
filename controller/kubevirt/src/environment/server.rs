//! How the API server carries out an action, and what it refuses.

use std::collections::BTreeMap;

use common::api::normalized::ExistingDisk;
use common::names;
use common::render::kubevirt::types::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{FakeCluster, ORPHAN, decode, some_time};
use crate::apply::claim_user::{ClaimUser, UserKind};
use crate::apply::existing_disks::lets_run;
use crate::apply::preconditions::claim_at_risk;
use crate::objects::{Claim, Instance};
use crate::plan::action::{Action, ClaimPatch, Exact, ProtectedKind, Protection};
use crate::plan::state::goes_with;
use controller_core::backend::Act as _;
use controller_core::laws::Refused;
use controller_core::objects::{Meta, Secret};
use controller_core::plan::Step;
use controller_core::preconditions::Precondition;

impl FakeCluster {
    /// Carries out one step at the API server.
    pub(crate) fn step(&mut self, step: &Step<'_, Action>) -> Result<(), Refused> {
        refuse(!self.holds_lease)?;
        match step {
            Step::AddFinalizer => {
                let machine = self.machine.as_mut().ok_or(Refused)?;
                let finalizers = machine.metadata.finalizers.get_or_insert_default();
                finalizers.push(names::FINALIZER.to_owned());
            }
            Step::RemoveFinalizer => {
                let machine = self.machine.as_mut().ok_or(Refused)?;
                machine.metadata.finalizers = None;
                if machine.is_deleting() {
                    self.machine = None;
                }
            }
            Step::Act(action) => self.act(action)?,
        }
        self.changes += usize::from(!matches!(step, Step::Act(Action::ConfirmGuestGone)));
        Ok(())
    }

    /// Carries out one action at the API server.
    #[expect(clippy::too_many_lines, reason = "an arm for each action")]
    pub(crate) fn act(&mut self, action: &Action) -> Result<(), Refused> {
        self.check(action)?;
        match action {
            Action::CreateAttachment(desired) => {
                let made = self.made(desired);
                insert(&mut self.attachments, made)?;
            }
            Action::UpdateAttachment(desired) => {
                let live = self.attachments.get_mut(&desired.metadata.name);
                let live = same(live, desired.metadata.uid.as_deref())?;
                live.spec = decode(json!(desired.spec));
            }
            Action::RemoveRecreateRequest => {
                let machine = self.machine.as_mut().ok_or(Refused)?;
                let annotations = machine.metadata.annotations.as_mut();
                annotations.and_then(|it| it.remove(names::ANNOTATION_RECREATE_VOLUME));
            }
            Action::CreateClaim(desired) => {
                let mut made: Claim = self.made(desired);
                made.status.phase = "Pending".into();
                insert(&mut self.claims, made)?;
            }
            Action::PatchClaim(patch) => self.patch_claim(patch)?,
            Action::DeleteClaim(claim) => {
                let claim = claim.exact();
                if let Some(live) = self.claims.get(claim.name()) {
                    refuse(!is_as_observed(live, claim) || is_protected(live))?;
                    self.claims.remove(claim.name());
                }
            }
            Action::CreateDataVolume(desired) => {
                // As CDI's webhook: it fills no claim that is there.
                refuse(!self.cdi || self.claims.contains_key(&desired.metadata.name))?;
                let made = self.made(desired);
                insert(&mut self.data_volumes, made)?;
                self.import_specs
                    .insert(desired.metadata.name.clone(), desired.clone());
            }
            Action::CreateImport(desired) => {
                refuse(!self.cdi)?;
                let made = self.made(desired);
                // One that exists is left as it is.
                let _ = insert(&mut self.imports, made);
            }
            Action::ReleaseClaim { name, uid } => {
                if let Ok(live) = same(self.data_volumes.get_mut(name), Some(uid)) {
                    refuse(is_protected(live))?;
                    live.metadata.deletion_timestamp = Some(some_time());
                    live.metadata.finalizers = Some(vec![ORPHAN.to_owned()]);
                }
            }
            Action::DeleteDataVolume(import) => {
                let import = import.exact();
                if let Some(live) = self.data_volumes.get_mut(import.name()) {
                    refuse(!is_as_observed(live, import) || is_protected(live))?;
                    live.metadata.deletion_timestamp = Some(some_time());
                }
            }
            Action::CreateSecret(desired) => {
                refuse(self.secret.is_some())?;
                let metadata = self.metadata(&desired.metadata);
                self.secret = Some(Secret { metadata });
            }
            Action::UpdateSecret(desired) => {
                let live = same(self.secret.as_mut(), desired.metadata.uid.as_deref())?;
                live.metadata.annotations = Some(desired.metadata.annotations.clone());
            }
            Action::CreateVm(desired) => {
                refuse(self.vm.is_some())?;
                self.vm = Some(self.made(desired));
            }
            Action::UpdateVm(desired) => {
                let live = same(self.vm.as_mut(), desired.metadata.uid.as_deref())?;
                live.spec = decode(json!(desired.spec));
                live.metadata.annotations = Some(desired.metadata.annotations.clone());
            }
            Action::SetRunStrategy { uid, strategy } => {
                let live = same(self.vm.as_mut(), Some(uid))?;
                live.spec.run_strategy.clone_from(strategy);
                let annotations = live.metadata.annotations.get_or_insert_default();
                annotations.remove(names::ANNOTATION_RENDERED);
                let key = names::ANNOTATION_RUN_STRATEGY.to_owned();
                annotations.insert(key, strategy.clone());
            }
            Action::KeepState(kept) => {
                let version = self.uid();
                let exact = kept.exact();
                let live = self.claims.get(exact.name()).ok_or(Refused)?;
                refuse(!is_as_observed(live, exact))?;
                let mut value = json!(live);
                merge(&mut value, &kept.patch());
                let mut changed: Claim = decode(value);
                changed.metadata.resource_version = Some(version);
                self.claims.insert(exact.name().to_owned(), changed);
            }
            Action::RemoveDiscardConfirmation => {
                let machine = self.machine.as_mut().ok_or(Refused)?;
                let annotations = machine.metadata.annotations.as_mut();
                annotations.and_then(|it| it.remove(names::ANNOTATION_DISCARD_STATE));
            }
            Action::DeleteVm { uid, keeps_state } => {
                let machine = self.machine.as_ref().ok_or(Refused)?;
                let is_lost = |claim: &Claim| *keeps_state && goes_with(claim, machine, uid);
                refuse(self.claims.values().any(is_lost))?;
                if let Some(live) = self.vm.as_mut() {
                    refuse(live.uid() != uid || is_protected(live))?;
                    live.metadata.deletion_timestamp = Some(some_time());
                }
            }
            Action::DeleteInstance { uid, .. } => {
                if let Some(live) = self.instance.as_mut() {
                    refuse(live.uid() != uid)?;
                    if !live.is_deleting() {
                        live.metadata.deletion_timestamp = Some(some_time());
                        self.restarted.push(uid.clone());
                    }
                }
            }
            Action::SetProtection(protection) => self.protect(protection)?,
            Action::CreateMigration { desired, .. } => {
                let known = self.migration.as_ref().map(Meta::name);
                refuse(known == Some(&*desired.metadata.name))?;
                self.migration = Some(self.made(desired));
            }
            Action::ResetGuest { uid } => self.resets.push(uid.clone()),
            Action::ConfirmGuestGone => self.confirm_guest_gone()?,
        }
        Ok(())
    }

    fn protect(&mut self, protection: &Protection) -> Result<(), Refused> {
        let (name, uid) = (&protection.name, Some(protection.uid.as_str()));
        let version = Some(self.uid());
        let metadata = match protection.kind {
            ProtectedKind::VirtualMachine => &mut same(self.vm.as_mut(), uid)?.metadata,
            ProtectedKind::Secret => &mut same(self.secret.as_mut(), uid)?.metadata,
            ProtectedKind::Claim => &mut same(self.claims.get_mut(name), uid)?.metadata,
            ProtectedKind::DataVolume => &mut same(self.data_volumes.get_mut(name), uid)?.metadata,
        };
        metadata.resource_version = version;
        let labels = metadata.labels.get_or_insert_default();
        let label = names::LABEL_DELETION_PROTECTION.to_owned();
        if protection.is_protected {
            labels.insert(label, "true".to_owned());
        } else {
            labels.remove(&label);
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

    /// The calls of `apply` to the API server.
    fn confirm_guest_gone(&self) -> Result<(), Refused> {
        let machine = self.machine.as_ref().ok_or(Refused)?;
        if let Some(vm) = &self.vm {
            return refuse(vm.belongs_to(machine.name(), machine.uid()));
        }
        let instance = self.instance.as_ref();
        refuse(instance.is_some_and(|it| it.machine() == Some(machine.name())))
    }

    /// As `apply` checks the preconditions of the action.
    fn check(&self, action: &Action) -> Result<(), Refused> {
        refuse(!self.holds_lease)?;
        let is_used = |claim: &str| self.other_user(claim).is_some();
        refuse(self.foreign_claims(action).into_iter().any(is_used))?;
        let needs = |precondition| {
            let effect = action.effect();
            effect.is_some_and(|effect| effect.preconditions().contains(&precondition))
        };
        let instance = self.instance.as_ref().map(|instance| json!(instance));
        let has_run = instance.is_some_and(|it| !decode::<ClaimUser>(it).never_ran());
        refuse(needs(Precondition::NeverRan) && has_run)?;
        let guest = |uid: &str, holds: fn(&Instance) -> bool| {
            let instance = self.instance.as_ref();
            instance.is_some_and(|it| it.uid() == uid && holds(it))
        };
        refuse(match action {
            Action::CreateMigration { instance, .. } => !guest(instance, Instance::is_movable),
            Action::ResetGuest { uid } => !guest(uid, Instance::runs),
            _ => false,
        })?;
        let unused = needs(Precondition::Unused);
        let is_import = matches!(action, Action::DeleteDataVolume(_));
        // After a deletion only the Machine's remains are there, and its guest is gone.
        let machine = self.machine.as_ref();
        let Some((claim, kinds)) = claim_at_risk(action).filter(|_| unused) else {
            return Ok(());
        };
        let of_kind = |kind: &UserKind| {
            let users = self.claim_users.iter().filter(move |(it, _)| it == kind);
            let users = users.map(|(_, user)| user.clone());
            let guest = match kind {
                UserKind::VirtualMachine => self.vm.as_ref().map(|vm| json!(vm)),
                UserKind::Instance => self.instance.as_ref().map(|instance| json!(instance)),
                UserKind::Pod => None,
            };
            users.chain(guest).collect::<Vec<_>>()
        };
        refuse(kinds.iter().any(|kind| {
            let uses = |user| {
                let user: ClaimUser = decode(user);
                match machine {
                    Some(machine) => user.prevents(*kind, machine, claim, is_import),
                    None => user.uses(*kind, claim),
                }
            };
            of_kind(kind).into_iter().any(uses)
        }))
    }

    /// The claims of which others may not have one right before the action: existing and adopted ones.
    fn foreign_claims(&self, action: &Action) -> Vec<&str> {
        let Some(machine) = &self.machine else {
            return vec![];
        };
        match action {
            Action::PatchClaim(patch) if patch.adopts() => {
                let claim = self.claims.get_key_value(&patch.name);
                claim.map(|(name, _)| name.as_str()).into_iter().collect()
            }
            _ if lets_run(action) => {
                let disks = machine.desired().into_iter();
                let existing = disks.flat_map(|block| &block.existing_disks);
                let own = self.claims.values();
                let own = own.filter(|claim| claim.machine() == Some(machine.name()));
                let adopted = own.filter(|claim| !claim.was_made_for(machine));
                let claims = existing.map(ExistingDisk::source);
                let claims = claims.chain(adopted.map(Meta::name));
                let guest = self.instance.as_ref();
                let has_it = |claim: &str| guest.is_some_and(|guest| guest.uses(claim));
                claims.filter(|claim| !has_it(claim)).collect()
            }
            _ => vec![],
        }
    }

    fn made<K: DeserializeOwned + Meta>(&mut self, desired: &impl Serialize) -> K {
        let mut made: K = decode(json!(desired));
        made.meta_mut().uid = Some(self.uid());
        made.meta_mut().resource_version = Some("1".to_owned());
        made
    }

    fn metadata(&mut self, desired: &Metadata) -> ObjectMeta {
        ObjectMeta {
            uid: Some(self.uid()),
            ..decode(json!(desired))
        }
    }
}

fn refuse(when: bool) -> Result<(), Refused> {
    if when { Err(Refused) } else { Ok(()) }
}

/// Whether the policy refuses to delete an object.
fn is_protected(live: &impl Meta) -> bool {
    live.label(names::LABEL_DELETION_PROTECTION) == Some("true")
}

fn insert<K: Meta>(objects: &mut BTreeMap<String, K>, made: K) -> Result<(), Refused> {
    refuse(objects.contains_key(made.name()))?;
    objects.insert(made.name().to_owned(), made);
    Ok(())
}

/// As the API server checks the preconditions of a deletion.
fn is_as_observed(live: &impl Meta, observed: &Exact) -> bool {
    let version = live.meta().resource_version.as_deref();
    live.uid() == observed.uid() && version == Some(observed.version())
}

/// The object if it is there and still the one with this uid.
fn same<'a, K: Meta>(live: Option<&'a mut K>, uid: Option<&str>) -> Result<&'a mut K, Refused> {
    live.filter(|live| Some(live.uid()) == uid).ok_or(Refused)
}

/// Merges a patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key.as_str()], value);
        }
    }
}
