//! What is known of a Machine: from the caches, without asking the API server.
//!
//! Only of Secrets of users no content is kept (a controller that holds every Secret of a cluster is
//! a prize), so these are read, and only while something still has to be made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::names;
use common::render::kubevirt::{attachment_name, volumes};
use kube::Api;

use crate::KubeVirt;
use crate::plan::Observed;
use crate::watch::Cluster;
use controller_core::cache::State;
use controller_core::caches::Caches;
use controller_core::client::ApiError;
use controller_core::machine::Machine;
use controller_core::machine::named_networks;
use controller_core::objects::{Meta, Secret};
use controller_core::secrets::read;
use controller_core::writes::Written;

/// Looks at everything that matters to a Machine.
pub(crate) async fn observe(backend: &KubeVirt, machine: &Machine) -> Result<Observed, ApiError> {
    let mut observed = known(backend, machine);
    if machine.metadata.deletion_timestamp.is_none()
        && machine.desired().is_some()
        && observed.kubevirt
    {
        read_secrets(backend, machine, &mut observed).await?;
    }
    Ok(observed)
}

/// What the caches know.
fn known(backend: &KubeVirt, machine: &Machine) -> Observed {
    let KubeVirt {
        caches,
        cluster,
        cluster_uid,
        ..
    } = backend;
    let (namespace, name) = (machine.namespace(), machine.name());
    let mut claims: BTreeMap<_, _> = cluster
        .claims
        .of_machine(namespace, name)
        .into_iter()
        .map(|claim| (claim.name().to_owned(), claim))
        .collect();
    let mut data_volumes: BTreeMap<_, _> = cluster
        .data_volumes
        .of_machine(namespace, name)
        .into_iter()
        .map(|import| (import.name().to_owned(), import))
        .collect();
    let wish = machine.desired();
    let (mut classes, mut sources) = (BTreeMap::new(), BTreeSet::new());
    for volume in wish.into_iter().flat_map(|block| volumes(name, block)) {
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
        if let Some(import) = cluster.data_volumes.get(namespace, &volume.claim) {
            data_volumes.insert(volume.claim.clone(), import);
        }
        if let Some(claim) = cluster.claims.get(namespace, &volume.claim) {
            claims.insert(volume.claim, claim);
        }
    }
    let imports = data_volumes.values();
    let strangers: BTreeSet<_> = claims
        .values()
        .filter_map(|claim| claim.machine_uid())
        .chain(imports.filter_map(|import| import.machine_uid()))
        .filter(|uid| *uid != machine.uid())
        .map(ToOwned::to_owned)
        .collect();
    let networks: BTreeMap<_, _> = wish
        .into_iter()
        .flat_map(named_networks)
        .filter_map(|name| Some((name.to_owned(), caches.networks.get(namespace, name)?)))
        .collect();
    let attachments = networks
        .values()
        .filter_map(|network| {
            let name = attachment_name(network.name(), &network.spec);
            Some((name.to_owned(), cluster.attachments.get(namespace, name)?))
        })
        .collect();
    let template = wish
        .and_then(|block| block.template.as_ref())
        .and_then(|pin| caches.templates.get("", &pin.name));
    Observed {
        conflicts: caches.conflicts(machine, cluster_uid),
        cluster: cluster_uid.clone(),
        kubevirt: cluster.vms.state() == State::Listed
            && cluster.instances.state() == State::Listed,
        multus: cluster.attachments.state() == State::Listed,
        cdi: cluster.data_volumes.state() == State::Listed,
        vm: cluster.vms.get(namespace, name),
        instance: cluster.instances.get(namespace, name),
        living: living(&strangers, caches),
        claims,
        data_volumes,
        sources,
        secret: cluster
            .secrets
            .get(namespace, &names::cloud_init_secret(name)),
        contents: BTreeMap::new(),
        networks,
        attachments,
        classes,
        template,
    }
}

/// Which of these Machines still live; almost always there are none to look for.
fn living(uids: &BTreeSet<String>, caches: &Caches) -> BTreeSet<String> {
    if uids.is_empty() {
        return BTreeSet::new();
    }
    let machines = caches
        .machines
        .state_filter(|machine| uids.contains(machine.uid()));
    machines
        .iter()
        .map(|machine| machine.uid().to_owned())
        .collect()
}

/// Reads the user's Secrets while the VirtualMachine has not been made, or when one was written since
/// that was told of them, and when our copy is not of this wish. Our own Secret's name is looked up, too, before it is made:
/// one that somebody else made is not among those we watch.
async fn read_secrets(
    backend: &KubeVirt,
    machine: &Machine,
    observed: &mut Observed,
) -> Result<(), ApiError> {
    let KubeVirt { caches, api, .. } = backend;
    let plan = &machine.cloud_init;
    let current = observed.secret.as_ref().is_some_and(|secret| {
        secret.annotation(names::ANNOTATION_RENDERED) == Some(plan.digest().as_str())
    });
    let outdated = plan.needs_secret() && !current;
    if outdated && observed.secret.is_none() {
        let secrets: Api<Secret> = Api::namespaced(api.client(), machine.namespace());
        let name = names::cloud_init_secret(machine.name());
        observed.secret = api.read(secrets.get_opt(&name)).await?.map(Arc::new);
    }
    let version = |name: &str| caches.secret_versions.get(machine.namespace(), name);
    let behind = observed.vm.as_ref().is_none_or(|vm| {
        let marks = &vm.spec.template.metadata.annotations;
        vm.belongs_to(machine.name(), machine.uid()) && plan.is_outdated(marks, version)
    });
    if !behind && !outdated {
        return Ok(());
    }
    observed.contents = read(api, machine.namespace(), plan).await?;
    Ok(())
}

/// Whether the caches have seen an object of KubeVirt's side that was written.
pub(crate) fn has_seen(cluster: &Cluster, namespace: &str, written: &Written) -> bool {
    let name = &written.name;
    match written.kind.as_str() {
        "VirtualMachine" => seen(cluster.vms.get(namespace, name), written),
        "PersistentVolumeClaim" => seen(cluster.claims.get(namespace, name), written),
        "DataVolume" => seen(cluster.data_volumes.get(namespace, name), written),
        "Secret" => seen(cluster.secrets.get(namespace, name), written),
        "NetworkAttachmentDefinition" => seen(cluster.attachments.get(namespace, name), written),
        _ => true,
    }
}

fn seen<K: Meta>(cached: Option<Arc<K>>, written: &Written) -> bool {
    cached.is_some_and(|cached| written.is_seen_in(&*cached))
}
