//! The kinds of KubeVirt, CDI and Multus that the simulator reads or writes.

use kube::{api::GroupVersionKind, core::ApiResource};

/// A kind of KubeVirt, CDI or Multus, read and written as JSON.
pub(super) struct Kind {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) name: &'static str,
    pub(super) plural: &'static str,
}

impl Kind {
    pub(super) fn resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.group, self.version, self.name);
        ApiResource::from_gvk_with_plural(&kind, self.plural)
    }
}

pub(super) const MACHINE: Kind = Kind {
    group: "kubevirt.io",
    version: "v1",
    name: "VirtualMachine",
    plural: "virtualmachines",
};

pub(super) const INSTANCE: Kind = Kind {
    group: "kubevirt.io",
    version: "v1",
    name: "VirtualMachineInstance",
    plural: "virtualmachineinstances",
};

pub(super) const MIGRATION: Kind = Kind {
    group: "kubevirt.io",
    version: "v1",
    name: "VirtualMachineInstanceMigration",
    plural: "virtualmachineinstancemigrations",
};

pub(super) const KUBEVIRT: Kind = Kind {
    group: "kubevirt.io",
    version: "v1",
    name: "KubeVirt",
    plural: "kubevirts",
};

pub(super) const DATA_VOLUME: Kind = Kind {
    group: "cdi.kubevirt.io",
    version: "v1beta1",
    name: "DataVolume",
    plural: "datavolumes",
};

pub(super) const NETWORK: Kind = Kind {
    group: "k8s.cni.cncf.io",
    version: "v1",
    name: "NetworkAttachmentDefinition",
    plural: "network-attachment-definitions",
};
