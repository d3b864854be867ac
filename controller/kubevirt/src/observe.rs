//! Observation of a Machine, mostly from the caches.
//!
//! Read live, and only at the moment at which it matters, are the claims with the state of a guest whose Machine is deleted,
//! the eviction of a guest, the events of a pod that takes long to start, who uses an existing or adopted claim, and the
//! Secrets for cloud-init, those of users and the Machine's own. Their content is not cached, because a controller that
//! holds every Secret of the cluster would be a target. They are read only while something still has to be rendered from
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::api::choice::PowerState;
use common::api::normalized::Normalized;
use common::catalog::ClaimUser;
use common::names;
use common::render::kubevirt::{Volume, attachment_name, import_name, volumes};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource as _};

use crate::apply::existing_disks::other_user;
use crate::apply::live::state_claims;
use crate::caches::KubeVirtCaches;
use crate::evictions::eviction;
use crate::objects::{Attachment, Claim, GuestPod, Instance};
use crate::plan::{ExistingClaim, Observed, RequestedMigration, can_adopt, guest_has};
use crate::pod_events::pod_warning;
use controller_core::cache::State;
use controller_core::caches::Caches;
use controller_core::client::{ApiError, GuardedClient};
use controller_core::foreign_stop::OnForeignStop;
use controller_core::machine::Machine;
use controller_core::machine::named_networks;
use controller_core::machine_index::MachineIndex;
use controller_core::objects::{Meta, Network, Secret, Template};
use controller_core::secrets::read;
use controller_core::writes::Written;

/// The sources of an observation.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    /// Caches of the kinds that every backend needs.
    pub(crate) caches: Caches,
    /// Caches of the kinds of this backend.
    pub(crate) cluster: KubeVirtCaches,
    pub(crate) api: GuardedClient,
    /// Uid of the cluster. The MAC addresses of network cards are derived from it.
    pub(crate) cluster_uid: Arc<str>,
    pub(crate) on_foreign_stop: OnForeignStop,
    /// Namespace of the shared imports of MachineImages.
    pub(crate) image_namespace: Arc<str>,
}

impl Observer {
    /// Everything that matters to a Machine. A part that cannot be observed is an error of that part: the plan does
    /// what it can without it.
    ///
    /// One part fails the pass: the eviction of a guest that has ended. Without it the plan would report that the guest shut
    /// itself down, and then that it was taken down.
    pub(crate) async fn observe(&self, machine: &Machine) -> Result<Observed, ApiError> {
        let mut observed = known(self, machine);
        if machine.metadata.deletion_timestamp.is_none()
            && machine.desired().is_some()
            && observed.kubevirt
            && let Err(error) = read_secrets(self, machine, &mut observed).await
        {
            observed.secrets_error = Some(error.message());
        }
        if !machine.is_deleting() {
            self.users(machine, &mut observed).await;
            self.adopted_users(machine, &mut observed).await;
        }
        if machine.is_deleting() && may_have_state(machine, &observed) {
            match state_claims(&self.api, machine).await {
                Ok(claims) => observed.state_claims = claims,
                Err(error) => observed.state_claims_error = Some(error.message()),
            }
        }
        let warning = pod_warning(
            &self.api,
            &self.cluster,
            machine,
            &observed,
            Timestamp::now(),
        );
        observed.pod_warning = warning.await;
        observed.eviction = eviction(&self.api, machine, &observed).await?;
        Ok(observed)
    }
}

impl Observer {
    /// Looks who else uses the existing claims that the guest does not have yet. A failed look finds nobody: it is
    /// repeated right before the guest gets a claim, and fails there with its cause.
    async fn users(&self, machine: &Machine, observed: &mut Observed) {
        let block = machine.desired().into_iter();
        let runs = block.filter(|block| block.power_state == PowerState::Running);
        for disk in runs.flat_map(|block| &block.existing_disks) {
            let known = observed.existing.get(disk.source());
            let claim = known.and_then(|known| known.claim.as_ref());
            let is_shared = disk.shareable && claim.is_some_and(|claim| claim.is_shared());
            if is_shared || guest_has(machine, disk.source(), observed) {
                continue;
            }
            let user = other_user(&self.api, machine, disk.source()).await;
            if let Some(known) = observed.existing.get_mut(disk.source()) {
                known.user = user.unwrap_or_default();
            }
        }
    }

    /// Looks who else uses the claims that were kept of former Machines or removed disks: before they are adopted, and
    /// before the guest gets them. A failed look finds nobody, as above.
    async fn adopted_users(&self, machine: &Machine, observed: &mut Observed) {
        for claim in adopted(machine, observed) {
            let user = other_user(&self.api, machine, &claim).await;
            let user = user.unwrap_or_default();
            observed
                .adopted_users
                .extend(user.map(|user| (claim, user)));
        }
    }
}

/// The claims of the Machine's own disks that were not made for it, and that its guest does not have yet.
pub(crate) fn adopted(machine: &Machine, observed: &Observed) -> Vec<String> {
    let Some(block) = machine.desired() else {
        return vec![];
    };
    let starts = block.power_state == PowerState::Running;
    let is_adopted = |volume: &Volume<'_>| {
        let claim = observed.claims.get(&volume.claim);
        claim.is_some_and(|claim| {
            if claim.belongs_to(machine.name(), machine.uid()) {
                starts && !claim.was_made_for(machine)
            } else {
                can_adopt(machine, &volume.disk, claim, observed)
            }
        })
    };
    volumes(machine.name(), block)
        .filter(|volume| is_adopted(volume) && !guest_has(machine, &volume.claim, observed))
        .map(|volume| volume.claim)
        .collect()
}

/// The existing claims that disks are on, with the Machines that have them.
fn existing(observer: &Observer, machine: &Machine) -> BTreeMap<String, ExistingClaim> {
    let Observer {
        caches, cluster, ..
    } = observer;
    let namespace = machine.namespace();
    let disks = machine.desired().into_iter();
    let disks = disks.flat_map(|block| &block.existing_disks);
    let known = disks.map(|disk| {
        let name = disk.source();
        let claim = cluster.claims.get(namespace, name);
        let is_shared = claim.as_ref().is_some_and(|claim| claim.is_shared());
        let mut users = caches.address_index.claim_users(machine, name).into_iter();
        let holder = users.find(|user| {
            !user.may_share(disk.shareable, is_shared) && has_precedence(user, machine, caches)
        });
        let holder = holder.or_else(|| left_disk(claim.as_deref(), machine, &caches.machine_index));
        let known = ExistingClaim {
            claim,
            holder,
            user: None,
        };
        (name.to_owned(), known)
    });
    known.collect()
}

/// Whether another Machine has a claim before this one: as the volume of its own disk, or because it is older.
fn has_precedence(user: &ClaimUser, machine: &Machine, caches: &Caches) -> bool {
    let key = ObjectRef::new(&user.machine).within(machine.namespace());
    let other = caches.machines.get(&key);
    let age = |metadata: &ObjectMeta| metadata.creation_timestamp.as_ref().map(|time| time.0);
    let rank = |metadata: &ObjectMeta| (age(metadata), metadata.name.clone());
    user.own_disk.is_some()
        || other.is_some_and(|other| rank(other.meta()) < rank(&machine.metadata))
}

/// The other Machine of the namespace that a claim still carries the uid of: a medium of it, or a disk that its guest still
/// has. A user writes the uid of any Machine onto a claim of the own namespace, and learns nothing by that.
fn left_disk(
    claim: Option<&Claim>,
    machine: &Machine,
    machines: &MachineIndex,
) -> Option<ClaimUser> {
    let uid = claim?.machine_uid().filter(|uid| *uid != machine.uid())?;
    let owner = machines.of_uid(uid)?;
    if *owner.namespace != *machine.namespace() {
        return None;
    }
    Some(ClaimUser {
        machine: owner.name.to_string(),
        own_disk: Some(
            claim?
                .label(names::LABEL_DISK)
                .unwrap_or_default()
                .to_owned(),
        ),
        is_shareable: false,
    })
}

/// Whether KubeVirt may have made a claim for the state of the guest. Without the VirtualMachine the block says so.
fn may_have_state(machine: &Machine, observed: &Observed) -> bool {
    let Some(vm) = &observed.vm else {
        return machine.desired().is_none_or(Normalized::keeps_state);
    };
    let domain = &vm.spec.template.spec.domain;
    let efi = domain.firmware.bootloader.efi.as_ref();
    let tpm = domain.devices.tpm.as_ref();
    efi.is_some_and(|efi| efi.persistent == Some(true))
        || tpm.is_some_and(|tpm| tpm.persistent == Some(true))
}

/// The claims of a Machine's disks by name, and those that KubeVirt made for the state of its guest.
fn claims_of(
    cluster: &KubeVirtCaches,
    namespace: &str,
    machine: &str,
) -> (BTreeMap<String, Arc<Claim>>, Vec<Claim>) {
    let claims = cluster.claims.of_machine(namespace, machine).into_iter();
    let (states, own): (Vec<_>, _) = claims.partition(|claim| claim.has_state_of(machine));
    (
        by_name(own),
        states.into_iter().map(Arc::unwrap_or_clone).collect(),
    )
}

/// The part of the observation that comes from the caches.
fn known(observer: &Observer, machine: &Machine) -> Observed {
    let Observer {
        caches,
        cluster,
        cluster_uid,
        ..
    } = observer;
    let (namespace, name) = (machine.namespace(), machine.name());
    let (mut claims, state_claims) = claims_of(cluster, namespace, name);
    let mut data_volumes = by_name(cluster.data_volumes.of_machine(namespace, name));
    let instance = cluster.instances.get(namespace, name);
    let desired = machine.desired();
    let (mut classes, mut sources) = (BTreeMap::new(), BTreeSet::new());
    let mut shared = BTreeMap::new();
    let mut taken = BTreeMap::new();
    for volume in desired.into_iter().flat_map(|block| volumes(name, block)) {
        let disk = &volume.disk;
        if let Some(class) = caches.classes.get("", &disk.storage_class) {
            classes.insert(disk.storage_class.clone(), class.allow_volume_expansion);
        }
        let image = disk.image.as_ref();
        let source = image.and_then(|image| image.persistent_volume_claim.as_ref());
        sources.extend(
            source
                .filter(|source| cluster.claims.contains(namespace, source))
                .cloned(),
        );
        if let Some(name) = import_name(disk)
            && let Some(import) = cluster.data_volumes.get(&observer.image_namespace, &name)
        {
            shared.insert(name, import);
        }
        let users = caches.address_index.claim_users(machine, &volume.claim);
        let existing = users.into_iter().find(|user| user.own_disk.is_none());
        taken.extend(existing.map(|user| (volume.claim.clone(), user.machine)));
        if !data_volumes.contains_key(&volume.claim)
            && let Some(import) = cluster.data_volumes.get(namespace, &volume.claim)
        {
            data_volumes.insert(volume.claim.clone(), import);
        }
        if !claims.contains_key(&volume.claim)
            && let Some(claim) = cluster.claims.get(namespace, &volume.claim)
        {
            claims.insert(volume.claim, claim);
        }
    }
    let others: BTreeSet<_> = claims
        .values()
        .filter_map(|claim| claim.machine_uid())
        .chain(data_volumes.values().filter_map(|it| it.machine_uid()))
        .filter(|uid| *uid != machine.uid())
        .map(ToOwned::to_owned)
        .collect();
    let (networks, attachments) = networks_of(observer, machine);
    Observed {
        conflicts: caches.conflicts(machine, cluster_uid, &|| vec![]),
        cluster: cluster_uid.clone(),
        kubevirt: cluster.vms.state() == State::Listed
            && cluster.instances.state() == State::Listed,
        settings: cluster.settings(),
        multus: cluster.attachments.state() == State::Listed,
        cdi: cluster.data_volumes.state() == State::Listed,
        vm: cluster.vms.get(namespace, name),
        pod: pod_of(cluster, machine, instance.as_deref()),
        pod_warning: None,
        eviction: None,
        migration: requested_migration(cluster, machine),
        on_foreign_stop: observer.on_foreign_stop,
        instance,
        existing_uids: existing_uids(others, caches),
        claims,
        existing: existing(observer, machine),
        taken,
        adopted_users: BTreeMap::new(),
        state_claims,
        state_claims_error: None,
        data_volumes,
        sources,
        image_namespace: observer.image_namespace.clone(),
        unprofiled: unprofiled(cluster, machine),
        imports: shared,
        outdated_images: caches.outdated_images(machine),
        secret: cluster
            .secrets
            .get(namespace, &names::cloud_init_secret(name)),
        contents: BTreeMap::new(),
        secrets_error: None,
        networks,
        attachments,
        classes,
        template: template_of(machine, caches),
    }
}

/// The storage classes of the Machine's volumes of which CDI knows no access mode.
fn unprofiled(cluster: &KubeVirtCaches, machine: &Machine) -> BTreeSet<String> {
    let block = machine.desired().into_iter();
    let volumes = block.flat_map(|block| volumes(machine.name(), block));
    let classes = volumes.map(|volume| volume.disk.storage_class.clone());
    let is_unprofiled = |class: &String| {
        let profile = cluster.profiles.get("", class);
        profile.is_some_and(|profile| profile.lacks_access_modes())
    };
    classes.filter(is_unprofiled).collect()
}

/// The networks that the Machine names, those that exist, by name, and their attachments.
fn networks_of(
    observer: &Observer,
    machine: &Machine,
) -> (
    BTreeMap<String, Arc<Network>>,
    BTreeMap<String, Arc<Attachment>>,
) {
    let Observer {
        caches, cluster, ..
    } = observer;
    let namespace = machine.namespace();
    let named = machine.desired().into_iter().flat_map(named_networks);
    let networks: BTreeMap<_, _> = named
        .filter_map(|name| Some((name.to_owned(), caches.networks.get(namespace, name)?)))
        .collect();
    let attachments = networks
        .values()
        .filter_map(|network| {
            let name = attachment_name(network.name(), &network.spec);
            Some((name.to_owned(), cluster.attachments.get(namespace, name)?))
        })
        .collect();
    (networks, attachments)
}

/// The template that the block was made with, as it is now.
fn template_of(machine: &Machine, caches: &Caches) -> Option<Arc<Template>> {
    let pin = machine.desired()?.template.as_ref()?;
    caches.templates.get("", &pin.name)
}

/// The object of the requested migration that has not ended.
fn requested_migration(cluster: &KubeVirtCaches, machine: &Machine) -> RequestedMigration {
    if cluster.migrations.state() != State::Listed {
        return RequestedMigration::Unknown;
    }
    let name = machine.open_migration();
    let found = name.and_then(|name| cluster.migrations.get(machine.namespace(), name));
    found.map_or(RequestedMigration::Absent, RequestedMigration::Found)
}

fn by_name<K: Meta>(objects: Vec<Arc<K>>) -> BTreeMap<String, Arc<K>> {
    let named = objects.into_iter();
    named
        .map(|object| (object.name().to_owned(), object))
        .collect()
}

/// The pod in which the guest of an instance runs.
fn pod_of(
    cluster: &KubeVirtCaches,
    machine: &Machine,
    instance: Option<&Instance>,
) -> Option<Arc<GuestPod>> {
    let instance = instance?;
    let pods = cluster.pods.of_machine(machine.namespace(), machine.name());
    pods.into_iter().find(|pod| pod.runs(instance))
}

/// The uids among these that are of existing Machines.
fn existing_uids(mut uids: BTreeSet<String>, caches: &Caches) -> BTreeSet<String> {
    uids.retain(|uid| caches.machine_index.contains(uid));
    uids
}

/// Reads the referenced Secrets if the VirtualMachine does not exist yet, if a Secret changed after the last report,
/// if the guest is about to start and one is not known, or if our copy was made for another desired state. Also looks for an object that has the name of our own Secret
/// before that is created: the watch covers only Secrets with our label.
async fn read_secrets(
    observer: &Observer,
    machine: &Machine,
    observation: &mut Observed,
) -> Result<(), ApiError> {
    let Observer { caches, api, .. } = observer;
    let plan = &machine.cloud_init;
    let current = observation.secret.as_ref().is_some_and(|secret| {
        secret.annotation(names::ANNOTATION_RENDERED) == Some(plan.digest().as_str())
    });
    let outdated = plan.needs_secret() && !current;
    if outdated && observation.secret.is_none() {
        let secrets: Api<Secret> = Api::namespaced(api.client(), machine.namespace());
        let name = names::cloud_init_secret(machine.name());
        observation.secret = api.read(secrets.get_opt(&name)).await?.map(Arc::new);
    }
    let version = |name: &str| caches.secret_versions.get(machine.namespace(), name);
    let behind = observation.vm.as_ref().is_none_or(|vm| {
        let annotations = &vm.spec.template.metadata.annotations;
        vm.belongs_to(machine.name(), machine.uid()) && plan.is_outdated(annotations, version)
    });
    let unknown = observation.awaits_start(machine)
        && plan.mounted_secrets().any(|name| version(name).is_none());
    if !behind && !outdated && !unknown {
        return Ok(());
    }
    observation.contents = read(api, machine.namespace(), plan).await?;
    Ok(())
}

/// Whether the caches have seen an object of this backend's kinds that was written.
pub(crate) fn has_seen(cluster: &KubeVirtCaches, namespace: &str, written: &Written) -> bool {
    let Written {
        kind,
        name,
        version,
    } = written;
    match kind.as_str() {
        "VirtualMachine" => cluster.vms.has_seen(namespace, name, version),
        "PersistentVolumeClaim" => cluster.claims.has_seen(namespace, name, version),
        "DataVolume" => cluster.data_volumes.has_seen(namespace, name, version),
        "VirtualMachineInstanceMigration" => cluster.migrations.has_seen(namespace, name, version),
        "Secret" => cluster.secrets.has_seen(namespace, name, version),
        "NetworkAttachmentDefinition" => cluster.attachments.has_seen(namespace, name, version),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use controller_core::fixtures;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_uid_of_a_machine_of_another_namespace_on_a_claim_names_nobody() {
        let claim: Claim = serde_json::from_value(json!({
            "metadata": {
                "name": "claim",
                "labels": {names::LABEL_MANAGED_BY: names::MANAGED_BY, names::LABEL_DISK: "root"},
                "annotations": {names::ANNOTATION_MACHINE_UID: "uid-of-db"},
            },
        }))
        .unwrap();
        let machines = fixtures::machine_index(&["uid-of-db"]);
        let mut machine = fixtures::machine(fixtures::block());
        let left = left_disk(Some(&claim), &machine, &machines).unwrap();
        assert_eq!(left.own_disk.as_deref(), Some("root"));
        machine.metadata.namespace = Some("elsewhere".into());
        assert!(left_disk(Some(&claim), &machine, &machines).is_none());
    }
}
