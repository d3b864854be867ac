//! Steps that KubeVirt, CDI and the garbage collector take, one at a time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use super::{FakeCluster, decode, some_time};
use crate::objects::{Claim, DataVolume, Instance, InstanceInterface, VirtualMachine};
use controller_core::objects::Meta;

impl FakeCluster {
    /// KubeVirt and the storage do one step. Returns whether anything changed.
    pub(crate) fn advance_kubevirt(&mut self) -> bool {
        let mut has_changed =
            self.collect_garbage() || self.advance_cdi() || self.advance_migration();
        for claim in self.claims.values_mut() {
            if claim.status.phase == "Pending" && !(self.first_consumer && self.instance.is_none())
            {
                "Bound".clone_into(&mut claim.status.phase);
                claim.status.capacity = claim.spec.resources.requests;
                has_changed = true;
            }
            let lacks = claim.status.capacity != claim.spec.resources.requests;
            if claim.status.phase == "Bound" && lacks && claim.status.conditions.is_empty() {
                claim.status.capacity = claim.spec.resources.requests;
                has_changed = true;
            }
        }
        let deleting = self.vm.as_ref().is_none_or(Meta::is_deleting);
        let strategy = self.vm.as_ref().map_or("", |vm| &vm.spec.run_strategy);
        let runs = !matches!(strategy, "" | "Halted");
        // RerunOnFailure starts a guest only after a failure or a change of the strategy.
        let starts = runs && (strategy != "RerunOnFailure" || self.strategy != strategy);
        self.strategy = strategy.to_owned();
        match &mut self.instance {
            Some(instance) if instance.is_deleting() => {
                self.instance = None;
                return true;
            }
            Some(instance) if deleting || !runs => {
                instance.metadata.deletion_timestamp = Some(some_time());
                return true;
            }
            None if deleting => return self.vm.take().is_some() || has_changed,
            None if starts => {
                let uid = self.uid();
                self.instance = self.vm.as_ref().map(|vm| started(vm, &uid));
                self.set_printable_status("Starting");
                return true;
            }
            Some(instance) if instance.status.phase == "Succeeded" => {
                if strategy == "Always" {
                    instance.metadata.deletion_timestamp = Some(some_time());
                    return true;
                }
                return self.set_printable_status("Stopped") || has_changed;
            }
            Some(instance) if self.is_full && instance.status.phase != "Running" => {
                let is_new = instance.status.phase != "Scheduling";
                "Scheduling".clone_into(&mut instance.status.phase);
                return self.set_printable_status("ErrorUnschedulable") || is_new || has_changed;
            }
            Some(instance) if instance.status.phase != "Running" => {
                "Running".clone_into(&mut instance.status.phase);
                instance.status.node_name = Some("node-1".into());
                instance.status.interfaces = vec![InstanceInterface {
                    name: "default".into(),
                    ip_addresses: vec!["10.0.0.1".into()],
                    ..InstanceInterface::default()
                }];
                has_changed = true;
            }
            _ => {}
        }
        let status = if runs && self.instance.is_some() {
            "Running"
        } else {
            "Stopped"
        };
        self.set_printable_status(status) || has_changed
    }

    /// A claim of a deleted DataVolume is deleted with it, or loses its owner reference.
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
        let has_changed = !imports.is_empty();
        self.data_volumes.retain(|_, import| !gone(import));
        has_changed
    }

    /// CDI does one step. Returns whether anything changed.
    fn advance_cdi(&mut self) -> bool {
        let mut has_changed = false;
        for (name, import) in &mut self.data_volumes {
            let claim = self.claims.get(name);
            let phase = match (claim, self.import_specs.get(name)) {
                (None, Some(import_spec)) => {
                    self.uids += 1;
                    let mut claim: Claim = decode(json!({
                        "metadata": import_spec["metadata"], "spec": import_spec["spec"]["pvc"],
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
                        "ImportInProgress" | "Succeeded" if !self.imports_hang => "Succeeded",
                        _ => "ImportInProgress",
                    }
                }
                (Some(_), _) if self.first_consumer => "WaitForFirstConsumer",
                _ => continue,
            };
            has_changed |= set_import_phase(import, phase);
        }
        has_changed
    }

    /// A migration begins, and then the guest is on another node.
    fn advance_migration(&mut self) -> bool {
        let (Some(migration), Some(instance)) = (&mut self.migration, &mut self.instance) else {
            return false;
        };
        let next = match migration.status.phase.as_str() {
            "" => "Running",
            "Running" if !self.migrations_hang => "Succeeded",
            _ => return false,
        };
        if next == "Succeeded" {
            instance.status.node_name = Some("node-2".into());
        }
        next.clone_into(&mut migration.status.phase);
        true
    }

    /// KubeVirt sets the state that it prints. Returns whether it changed.
    pub(crate) fn set_printable_status(&mut self, status: &str) -> bool {
        let vm = self.vm.as_mut().expect("no VirtualMachine");
        let has_changed = vm.status.printable_status != status;
        status.clone_into(&mut vm.status.printable_status);
        has_changed
    }
}

/// CDI sets the phase of an import. Returns whether it changed.
pub(crate) fn set_import_phase(import: &mut DataVolume, phase: &str) -> bool {
    let has_changed = import.status.phase != phase;
    if has_changed {
        phase.clone_into(&mut import.status.phase);
        import.metadata.resource_version = Some(phase.to_owned());
    }
    has_changed
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
