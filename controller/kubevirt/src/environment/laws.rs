//! The laws that every backend obeys, over this environment.

use std::collections::BTreeSet;

use common::api::status::MachineStatus;
use common::names;
use controller_core::action_kinds;
use controller_core::backend::{Backend, Growth};
use controller_core::conditions::Fault;
use controller_core::laws::{self, Environment, Refused, Waiting};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::{Now, Step};
use controller_core::preconditions::{Effect, Precondition};
use serde_json::json;
use time::Duration;

use super::inputs::{
    changed, confirmed, existing, full, hanging, importing, migrating, new, of_machine_image,
    resetting, restarting, unmoved, waiting, with_secret, with_state, with_taken_claim,
    with_taken_kept_claim, without_class, without_kubevirt, without_network,
};
use super::{FakeCluster, decode};
use crate::apply::claim_user::UserKind;
use crate::backend::KubeVirt;
use crate::objects::VirtualMachine;
use crate::plan::action::Action;

impl Environment for FakeCluster {
    type Backend = KubeVirt;

    fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    fn machine_mut(&mut self) -> &mut Machine {
        FakeCluster::machine_mut(self)
    }

    fn write_status(&mut self, status: MachineStatus) {
        controller_core::documented_reasons::assert_documented(&status);
        self.machine_mut().status = status;
        self.changes += 1;
    }

    fn delete_machine(&mut self) {
        FakeCluster::delete_machine(self);
    }

    fn observe(&self) -> <KubeVirt as Backend>::Observed {
        self.observed()
    }

    fn step(&mut self, step: &Step<'_, <KubeVirt as Backend>::Action>) -> Result<(), Refused> {
        FakeCluster::step(self, step)
    }

    const PARTS: &'static [&'static str] =
        &["kubevirt", "multus", "cdi", "secrets", "state claims"];

    fn set_readable(&mut self, part: &str, readable: bool) {
        match part {
            "kubevirt" => self.kubevirt = readable,
            "multus" => self.multus = readable,
            "cdi" => self.cdi = readable,
            "secrets" => self.secrets_error = (!readable).then(|| "forbidden".into()),
            "state claims" => self.state_claims_error = (!readable).then(|| "forbidden".into()),
            other => unreachable!("{other} is no part"),
        }
    }

    fn advance(&mut self) -> bool {
        self.now += Duration::seconds(10);
        self.advance_kubevirt()
    }

    fn now(&self) -> Now {
        Now(self.now)
    }

    fn lose_lease(&mut self) {
        self.holds_lease = false;
    }

    action_kinds!(
        Action: CreateAttachment, UpdateAttachment, CreateClaim, PatchClaim, CreateDataVolume, CreateImport, ReleaseClaim,
        DeleteDataVolume, CreateSecret, UpdateSecret, CreateVm, UpdateVm, SetRunStrategy, DeleteVm, KeepState,
        RemoveDiscardConfirmation, DeleteInstance, ResetGuest, CreateMigration, ConfirmGuestGone, DeleteClaim,
        RemoveRecreateRequest, SetProtection,
    );

    fn unplanned(_: &str) -> Option<&'static str> {
        None
    }

    fn changes(&self) -> usize {
        self.changes
    }

    fn volumes(&self) -> BTreeSet<String> {
        self.claims.keys().cloned().collect()
    }

    fn set_hold(&mut self, hold: Option<Fault>) {
        self.hold = hold;
    }

    fn growth(&self) -> Growth<'_> {
        FakeCluster::growth(self)
    }

    fn guest(&self) -> Option<String> {
        let running = self.instance.as_ref();
        running.map(|instance| instance.uid().to_owned())
    }

    fn resources(&self) -> BTreeSet<String> {
        let defined = self.vm.as_ref().map(|vm| &vm.spec.template.spec.domain);
        let runs = self.instance.as_ref().map(|it| &it.spec.domain);
        let domains = defined.into_iter().chain(runs);
        let sizes = domains.map(|domain| format!("{:?} {:?}", domain.cpu, domain.memory));
        let claims = self.claims.iter().map(|(name, claim)| {
            let requests = claim.spec.resources.requests;
            format!("{name}: {requests:?}")
        });
        sizes.chain(claims).collect()
    }

    fn use_volume(&mut self, name: &str) {
        let spec = json!({"volumes": [{"persistentVolumeClaim": {"claimName": name}}]});
        let vm = json!({"metadata": {"name": "db"}, "spec": {"template": {"spec": spec}}});
        self.claim_users.push((UserKind::VirtualMachine, vm));
    }

    /// A claim and a DataVolume are deleted in the version that was observed, everything else by uid: after any
    /// write the former is another object; of the latter, one that was recreated is.
    fn break_precondition(&mut self, action: &Action, precondition: Precondition) -> bool {
        match (precondition, action) {
            (Precondition::LeaseHeld, _) => self.holds_lease = false,
            (
                Precondition::StateKept,
                Action::DeleteVm {
                    uid,
                    keeps_state: true,
                },
            ) => {
                let owner = json!({
                    "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                    "name": "web", "uid": uid,
                });
                let claim = decode(json!({
                    "metadata": {
                        "name": "state", "labels": {names::LABEL_STATE: "web"},
                        "ownerReferences": [owner],
                    },
                }));
                self.claims.insert("state".into(), claim);
            }
            (Precondition::Unused, Action::DeleteClaim(claim)) => {
                let name = claim.exact().name().to_owned();
                self.use_volume(&name);
            }
            (Precondition::Unused, Action::DeleteDataVolume(import)) => {
                let name = import.exact().name().to_owned();
                self.use_volume(&name);
            }
            (
                Precondition::Owned | Precondition::Unchanged | Precondition::Deletable,
                Action::DeleteClaim(claim),
            ) => {
                let claim = self.claims.get_mut(claim.exact().name());
                let claim = claim.expect("a deletion is planned of a claim that exists");
                let annotations = claim.metadata.annotations.get_or_insert_default();
                let (key, value) = match precondition {
                    Precondition::Owned => (names::ANNOTATION_MACHINE_UID, "uid-of-another"),
                    Precondition::Deletable => (names::ANNOTATION_RECLAIM_POLICY, "Retain"),
                    _ => ("example.com/note", "written"),
                };
                annotations.insert(key.to_owned(), value.to_owned());
                claim.metadata.resource_version = Some("written".to_owned());
            }
            (Precondition::Incomplete, Action::DeleteDataVolume(import)) => {
                let import = self.data_volumes.get_mut(import.exact().name());
                let import = import.expect("a deletion is planned of a DataVolume that exists");
                import.metadata.resource_version = Some("finished".to_owned());
            }
            (Precondition::Owned, Action::CreateVm(desired)) => {
                let mut other: VirtualMachine = decode(json!(desired));
                other.metadata.uid = Some("uid-of-another".to_owned());
                let annotations = other.metadata.annotations.get_or_insert_default();
                let key = names::ANNOTATION_MACHINE_UID.to_owned();
                annotations.insert(key, "uid-of-another".to_owned());
                self.vm = Some(other);
            }
            (Precondition::ExistingDisksFree, Action::CreateVm(_)) => {
                let disks = self.machine().desired().into_iter();
                let disks = disks.flat_map(|block| &block.existing_disks);
                let Some(claim) = disks.map(|disk| disk.source().to_owned()).next() else {
                    return false;
                };
                self.use_volume(&claim);
            }
            (Precondition::NeverRan, Action::DeleteInstance { .. }) => {
                let instance = self.instance.as_mut().expect("there is an instance");
                "Running".clone_into(&mut instance.status.phase);
            }
            (Precondition::Movable, Action::CreateMigration { .. }) => {
                let instance = self.instance.as_mut().expect("there is an instance");
                "Succeeded".clone_into(&mut instance.status.phase);
            }
            (
                Precondition::Owned,
                Action::DeleteInstance { .. }
                | Action::CreateMigration { .. }
                | Action::ResetGuest { .. },
            ) => {
                let instance = self.instance.as_mut().expect("there is an instance");
                instance.metadata.uid = Some("uid-of-another".to_owned());
            }
            (
                Precondition::Owned,
                Action::UpdateVm(_) | Action::SetRunStrategy { .. } | Action::DeleteVm { .. },
            ) => {
                let vm = self.vm.as_mut().expect("there is a VirtualMachine");
                vm.metadata.uid = Some("uid-of-another".to_owned());
            }
            _ => return false,
        }
        true
    }

    fn excluded(effect: Effect, precondition: Precondition) -> Option<&'static str> {
        match (effect, precondition) {
            (Effect::FillVolume, _) => Some("CDI fills volumes, and none of a claim that exists"),
            (Effect::Grow, _) => Some("the storage grows a claim, also below a guest that runs"),
            (Effect::Record, _) => Some("nothing is recorded in an object before it is changed"),
            (Effect::RemoveUnusedImage, _) => Some("no image is kept beside the claims"),
            (Effect::Start, Precondition::ExistingDisksFree) => {
                Some("a_machine_that_is_off_is_not_started_while_another_guest_has_the_claim")
            }
            (_, Precondition::HardwareFree) => Some("the kubelet gives a device to one pod"),
            (_, Precondition::NotABackingFile) => Some("a claim is no backing file of another"),
            (_, Precondition::NotBoundElsewhere | Precondition::OnlyDefinition) => {
                Some("a cluster is one place")
            }
            _ => None,
        }
    }
}

#[test]
fn a_plan_is_empty_once_it_was_carried_out() {
    laws::a_plan_is_empty_once_it_was_carried_out(new());
}

#[test]
fn a_deletion_ends() {
    laws::a_deletion_ends(&[
        &new,
        &importing,
        &waiting,
        &existing,
        &hanging,
        &full,
        &without_class,
        &without_network,
        &with_taken_claim,
        &with_taken_kept_claim,
        &laws::held(new),
    ]);
}

#[test]
fn a_machine_that_waits_reports_why() {
    let because = |reason, part| Some(("Ready", reason, part));
    let waits = |new, exists, deleted| Waiting {
        new,
        exists,
        deleted,
    };
    laws::a_machine_that_waits_reports_why(
        new,
        &[
            waits(
                &hanging,
                because("ImageImporting", "the image of 'root' is being imported"),
                None,
            ),
            waits(
                &full,
                because("InsufficientResources", "no node can run the guest"),
                None,
            ),
            waits(
                &without_class,
                because(
                    "StorageClassNotFound",
                    "StorageClass 'standard' of disk 'root' not found",
                ),
                None,
            ),
            waits(
                &without_network,
                because(
                    "NetworkConfigurationNotFound",
                    "NetworkConfiguration 'prod' not found",
                ),
                None,
            ),
            waits(
                &with_taken_claim,
                because(
                    "ClaimInUse",
                    "PersistentVolumeClaim old-disk of disk 'old' is used by VirtualMachine 'db'",
                ),
                None,
            ),
            waits(
                &with_taken_kept_claim,
                because(
                    "ClaimInUse",
                    "PersistentVolumeClaim web-data of disk 'data' is used by VirtualMachine 'db'",
                ),
                None,
            ),
            waits(
                &without_kubevirt,
                because("KubeVirtApiError", "KubeVirt is not installed"),
                None,
            ),
            waits(
                &restarting,
                because("InsufficientResources", "no node can run the guest"),
                None,
            ),
            waits(
                &migrating,
                Some(("status.lastMigration", "now", "the guest moves")),
                None,
            ),
            waits(
                &unmoved,
                because("KubeVirtApiError", "the API server has failed"),
                None,
            ),
            waits(
                &resetting,
                because("KubeVirtApiError", "the API server has failed"),
                None,
            ),
        ],
    );
}

#[test]
fn an_unreadable_part_costs_no_guest_and_no_volume() {
    laws::an_unreadable_part_costs_no_guest_and_no_volume(&[&new, &importing, &with_secret]);
}

#[test]
fn no_step_takes_effect_without_the_lease() {
    laws::no_step_takes_effect_without_the_lease(&[
        &new,
        &importing,
        &waiting,
        &existing,
        &changed,
        &of_machine_image,
        &with_state,
        &confirmed,
    ]);
}

/// It changes nothing, and what follows it in the plan deletes disks.
#[test]
fn without_the_lease_the_guest_is_not_confirmed_to_be_gone() {
    let mut cluster = new();
    cluster.settle();
    cluster.delete_machine();
    cluster.pass();
    while cluster.vm.is_some() || cluster.instance.is_some() {
        cluster.advance_kubevirt();
    }
    cluster.holds_lease = false;
    let confirmed = cluster.step(&Step::Act(&Action::ConfirmGuestGone));
    assert!(confirmed.is_err());
    cluster.holds_lease = true;
    let confirmed = cluster.step(&Step::Act(&Action::ConfirmGuestGone));
    assert_eq!(confirmed, Ok(()));
}

#[test]
fn no_volume_in_use_is_deleted() {
    laws::no_volume_in_use_is_deleted(new);
}

#[test]
fn no_effect_without_each_precondition() {
    let all: [&dyn Fn() -> FakeCluster; 4] = [&new, &importing, &waiting, &existing];
    laws::no_effect_without_each_precondition(&all);
}

#[test]
fn a_machine_whose_growth_is_held_is_switched_and_does_not_grow() {
    laws::a_machine_whose_growth_is_held_is_switched_and_does_not_grow(new());
}
