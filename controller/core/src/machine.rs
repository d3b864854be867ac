//! A Machine as the controller uses it: decoded once, when it arrives from the API server.
//!
//! ```text
//! API server ──Wire──▶ Machine ──compressed──▶ CachedMachine, in the store ──decompressed──▶ Machine, for a pass
//! ```

mod cached;
mod wire;

use std::collections::BTreeMap;

use common::api::choice::Backend;
use common::api::normalized::Normalized;
use common::api::status::MachineStatus;
use common::bounds::{OBJECT_NAME_MAX, TEXT_MAX};
use common::names;
use common::render::{CloudInitPlan, Identity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

pub use cached::{
    CachedMachine, DeviceCounts, HostBinding, NO_RESOURCES, named_networks, requested_resources,
};

use crate::held_addresses::Addresses;
use crate::objects::Meta as _;
use crate::resource;

/// A Machine for one pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Pruned: see [`prune`](crate::objects::prune).
    pub metadata: ObjectMeta,
    /// Its labels that are carried to its guest, at most [`LABELS_MAX`](common::bounds::LABELS_MAX).
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Its annotations that are carried to its guest: those whose keys the block names.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// `spec.normalized`, the desired state that the webhook wrote.
    pub block: Block,
    /// The backend that the block names, whatever else is in it. A block that no longer matches or that this release cannot
    /// read does not change which backend has the guest.
    pub backend: Option<Backend>,
    /// Whether a deletion is refused: `spec.deletionProtection`, else the value of the block. Read from both as they
    /// are, so that a block which does not match the spec protects, too.
    pub is_protected: bool,
    /// `spec.cloudInit`, empty if it does not decode, merged with that of the template in the block.
    pub cloud_init: CloudInitPlan,
    /// The status as it was last written; fields that do not decode have their default.
    pub status: MachineStatus,
    /// Of a Machine without a block, the template that the spec or the label names.
    #[serde(default)]
    pub named_template: Option<String>,
    /// Whether `named_template` does not exist. Set for a pass, never stored.
    #[serde(skip)]
    pub lacks_template: bool,
    /// Uid of its namespace; empty if the namespace has not been reported yet. Set for a pass, never stored.
    #[serde(skip)]
    pub namespace_uid: String,
    /// Its IP addresses. Set for a pass, never stored.
    #[serde(skip)]
    pub addresses: Addresses,
}
resource!(
    Machine,
    "Machine",
    "vitistack.io",
    "v1alpha1",
    "machines",
    NamespaceResourceScope
);

/// `spec.normalized`, and whether the controller may act on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Block {
    /// The block matches its intent: `intentHash` is the digest of the spec as it is now.
    Matching(Box<Normalized>),
    /// There is no block: the webhook was bypassed.
    Missing,
    /// A later release wrote the block: its version.
    Newer(u64),
    /// The block has no valid version, does not decode, or admission cannot have written one of its values; the text says
    /// which.
    Unreadable(String),
    /// The spec was changed without the webhook: the block was made from another intent.
    Stale,
}

impl Block {
    /// The block, if the controller may act on it.
    pub(crate) fn matching(&self) -> Option<&Normalized> {
        match self {
            Self::Matching(block) => Some(block),
            Self::Missing | Self::Newer(_) | Self::Unreadable(_) | Self::Stale => None,
        }
    }
}

impl Machine {
    /// The identity that rendering writes into every object it creates for this Machine. `cluster`: uid of the cluster.
    pub fn identity<'a>(&'a self, cluster: &'a str) -> Identity<'a> {
        Identity {
            cluster,
            namespace: self.namespace(),
            name: self.name(),
            uid: self.uid(),
        }
    }

    /// `metadata.generation`.
    pub fn generation(&self) -> Option<i64> {
        self.metadata.generation
    }

    /// Whether the libvirt backend runs the Machine, or will. If no block names a backend, a bound Machine is recognized
    /// by `status.host`; no status moves a Machine from KubeVirt to a host.
    pub fn is_on_libvirt(&self) -> bool {
        let own = self.desired().map(|block| block.backend).or(self.backend);
        own.map_or(self.status.host.is_some(), |backend| {
            backend == Backend::Libvirt
        })
    }

    /// Whether the paused annotation is `true`: the Machine is observed and not changed.
    pub fn is_paused(&self) -> bool {
        self.annotation(names::ANNOTATION_PAUSED) == Some("true")
    }

    /// See [`restart::new_request`](crate::restart::new_request).
    pub(crate) fn new_restart_request(&self) -> Option<String> {
        let last = self.status.last_restart.as_ref();
        let last = last.map(|last| last.request.as_str());
        self.new_request(names::ANNOTATION_RESTART_REQUESTED, last)
    }

    /// Text of the reset-requested annotation, as that of a restart.
    pub fn new_reset_request(&self) -> Option<String> {
        let last = self.status.last_reset.as_ref();
        let last = last.map(|last| last.request.as_str());
        self.new_request(names::ANNOTATION_RESET_REQUESTED, last)
    }

    /// Text of the migrate-requested annotation, as that of a restart.
    pub fn new_migration_request(&self) -> Option<String> {
        let last = self.status.last_migration.as_ref();
        let last = last.map(|last| last.request.as_str());
        self.new_request(names::ANNOTATION_MIGRATE_REQUESTED, last)
    }

    /// Name of the object of a requested migration that has not ended.
    pub fn open_migration(&self) -> Option<&str> {
        self.status.last_migration.as_ref()?.migration.as_deref()
    }

    /// The LibvirtHost that the Machine leaves, while it is moved to another one.
    pub fn leaves_host(&self) -> Option<&str> {
        let last = self.status.last_migration.as_ref()?;
        last.from.as_deref().filter(|_| last.result.is_none())
    }

    /// The node of the migrate-to annotation.
    pub fn migration_target(&self) -> Option<&str> {
        let node = self.annotation(names::ANNOTATION_MIGRATE_TO);
        node.filter(|node| (1..=OBJECT_NAME_MAX).contains(&node.len()))
    }

    /// Text of an annotation that requests something, cut to what the status can store, unless it is the last request.
    fn new_request(&self, annotation: &str, last: Option<&str>) -> Option<String> {
        let text = self.annotation(annotation)?;
        let request: String = text.chars().take(TEXT_MAX).collect();
        (!request.is_empty() && last != Some(&*request)).then_some(request)
    }

    /// The desired state; `None` unless the block matches its intent.
    pub fn desired(&self) -> Option<&Normalized> {
        self.block.matching()
    }

    /// Whether the annotation `discard-state` has no effect any more: nothing that it names is kept by the block.
    /// `has_new_firmware`: whether the guest is being given another firmware, which begins with new EFI variables.
    pub fn has_discarded_state(&self, has_new_firmware: bool) -> bool {
        let annotation = names::ANNOTATION_DISCARD_STATE;
        let Some((_, block)) = self.annotation(annotation).zip(self.desired()) else {
            return false;
        };
        let is_kept = |name: &str| match name {
            "efi" => block.keeps_efi() && !has_new_firmware,
            "tpm" => block.keeps_tpm(),
            _ => false,
        };
        !self.named_in(annotation).any(is_kept)
    }
}

#[cfg(test)]
mod tests;
