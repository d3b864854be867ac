//! What KubeVirt, CDI and the garbage collector do by themselves, a move at a time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use super::{World, decode, sometime};
use crate::objects::{Claim, DataVolume, Instance, InstanceInterface, VirtualMachine};
use controller_core::objects::Meta;

impl World {
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
                    claim.metadata.resource_version = Some("1".into());
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
}

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
