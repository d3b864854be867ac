//! The caches of KubeVirt's, CDI's and Multus' objects.

use common::catalog::KubevirtRow;
use controller_core::cache::{Cache, State};
use controller_core::machine_addresses::{Attachments, Guests};
use controller_core::network_usage::GuestAttachments;
use controller_core::objects::{Meta as _, Secret};
use runtime::checks::Check;

use crate::objects::{
    Attachment, Claim, DataVolume, GuestMigration, GuestPod, GuestSummary, Installation, Instance,
    StorageProfile, VirtualMachine,
};

/// Caches of the objects that Machines consist of on KubeVirt. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct KubeVirtCaches {
    pub(crate) vms: Cache<VirtualMachine>,
    pub(crate) instances: Cache<Instance>,
    /// The pods in which guests run.
    pub(crate) pods: Cache<GuestPod>,
    pub(crate) claims: Cache<Claim>,
    pub(crate) data_volumes: Cache<DataVolume>,
    /// Secrets that the controller made, without their content.
    pub(crate) secrets: Cache<Secret>,
    pub(crate) attachments: Cache<Attachment>,
    /// Migrations that this controller made. Nothing waits for them, as below.
    pub(crate) migrations: Cache<GuestMigration>,
    /// What CDI knows of storage classes. Nothing waits for them, either.
    pub(crate) profiles: Cache<StorageProfile>,
    /// How KubeVirt is configured. Nothing waits for it: a role of an earlier release may not permit to read it.
    pub(crate) installations: Cache<Installation>,
}

impl KubeVirtCaches {
    /// How KubeVirt is configured; `None`: that is not known.
    pub(crate) fn settings(&self) -> Option<KubevirtRow> {
        let mut settings = None;
        self.installations
            .for_each_summary(|_, known| settings = Some(known.clone()));
        settings
    }

    /// Waits until every kind has been listed or is known not to be served. Reports on `synced` which kind it waits
    /// for.
    pub async fn wait_until_listed(&self, synced: &Check) {
        let waits = |kind: &str| synced.missing(format!("no list of {kind} yet"));
        waits("VirtualMachines");
        self.vms.wait_until_listed().await;
        waits("VirtualMachineInstances");
        self.instances.wait_until_listed().await;
        waits("Pods of VirtualMachineInstances");
        self.pods.wait_until_listed().await;
        waits("PersistentVolumeClaims");
        self.claims.wait_until_listed().await;
        waits("DataVolumes");
        self.data_volumes.wait_until_listed().await;
        waits("Secrets");
        self.secrets.wait_until_listed().await;
        waits("NetworkAttachmentDefinitions");
        self.attachments.wait_until_listed().await;
    }
}

impl Guests for KubeVirtCaches {
    fn exists(&self, namespace: &str, name: &str, uid: &str) -> bool {
        match self.vms.get(namespace, name) {
            Some(vm) => vm.machine_uid() == Some(uid),
            // An instance outlives its VirtualMachine if that is deleted without it.
            None => self.instances.contains(namespace, name),
        }
    }
}

impl Attachments for KubeVirtCaches {
    fn exists(&self, namespace: &str, name: &str) -> Option<bool> {
        let is_served = self.attachments.state() == State::Listed;
        is_served.then(|| self.attachments.contains(namespace, name))
    }
}

impl GuestAttachments for KubeVirtCaches {
    fn for_each(&self, visit: &mut dyn FnMut(&str, &str, &str)) {
        let mut guest = |namespace: &str, guest: &GuestSummary| {
            if let Some(machine) = guest.machine.as_deref() {
                for attachment in &guest.attachments {
                    visit(namespace, machine, attachment);
                }
            }
        };
        self.vms.for_each_summary(&mut guest);
        self.instances.for_each_summary(&mut guest);
        // A running guest is on the networks of its pod until it is migrated, whatever its instance says.
        self.pods.for_each_summary(&mut guest);
    }
}
