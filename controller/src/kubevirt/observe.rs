//! What is known of a Machine: from the caches, without asking the API server.
//!
//! Only of Secrets of users no content is kept (a controller that holds every Secret of a cluster is
//! a prize), so these are read, and only while something still has to be made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::names;
use common::render::kubevirt::{attachment_name, volumes};
use kube::Api;
use kube::runtime::reflector::ObjectRef;

use crate::api::{ApiError, Guarded};
use crate::cache::State;
use crate::kubevirt::plan::{Observed, named_networks};
use crate::machine::Machine;
use crate::objects::{Meta, Secret};
use crate::secrets::read;
use crate::watch::Caches;

/// Looks at everything that matters to a Machine.
pub(crate) async fn observe(
    machine: &Machine,
    caches: &Caches,
    api: &Guarded,
    cluster: &Arc<str>,
) -> Result<Observed, ApiError> {
    let mut observed = known(machine, caches, cluster);
    if machine.metadata.deletion_timestamp.is_none()
        && machine.wish().is_some()
        && observed.kubevirt
    {
        read_secrets(machine, caches, api, &mut observed).await?;
    }
    Ok(observed)
}

/// What the caches know.
fn known(machine: &Machine, caches: &Caches, cluster: &Arc<str>) -> Observed {
    let (namespace, name) = (machine.namespace(), machine.name());
    let mut claims: BTreeMap<_, _> = caches
        .claims
        .of_machine(namespace, name)
        .into_iter()
        .map(|claim| (claim.name().to_owned(), claim))
        .collect();
    let mut data_volumes: BTreeMap<_, _> = caches
        .data_volumes
        .of_machine(namespace, name)
        .into_iter()
        .map(|import| (import.name().to_owned(), import))
        .collect();
    let wish = machine.wish();
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
                .filter(|source| caches.claims.has(namespace, source))
                .cloned(),
        );
        if let Some(import) = caches.data_volumes.get(namespace, &volume.claim) {
            data_volumes.insert(volume.claim.clone(), import);
        }
        if let Some(claim) = caches.claims.get(namespace, &volume.claim) {
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
            Some((name.to_owned(), caches.attachments.get(namespace, name)?))
        })
        .collect();
    let template = wish
        .and_then(|block| block.template.as_ref())
        .and_then(|pin| caches.templates.get("", &pin.name));
    Observed {
        rivals: caches.rivals(machine, cluster),
        cluster: cluster.clone(),
        kubevirt: caches.vms.state() == State::Listed && caches.instances.state() == State::Listed,
        multus: caches.attachments.state() == State::Listed,
        cdi: caches.data_volumes.state() == State::Listed,
        vm: caches.vms.get(namespace, name),
        instance: caches.instances.get(namespace, name),
        living: living(&strangers, caches),
        claims,
        data_volumes,
        sources,
        secret: caches
            .secrets
            .get(namespace, &names::cloud_init_secret(name)),
        contents: BTreeMap::new(),
        networks,
        attachments,
        classes,
        template,
        refusal: None,
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
    machine: &Machine,
    caches: &Caches,
    api: &Guarded,
    observed: &mut Observed,
) -> Result<(), ApiError> {
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
    let version = |name: &str| caches.versions.get(machine.namespace(), name);
    let behind = observed.vm.as_ref().is_none_or(|vm| {
        let marks = &vm.spec.template.metadata.annotations;
        vm.belongs_to(machine.name(), machine.uid()) && plan.is_behind(marks, version)
    });
    if !behind && !outdated {
        return Ok(());
    }
    observed.contents = read(api, machine.namespace(), plan).await?;
    Ok(())
}

/// Whether what was written last has come back through the watches.
pub(crate) fn has_arrived(caches: &Caches, namespace: &str, written: &[Written]) -> bool {
    written.iter().all(|object| match object {
        Written::Machine { name, version } => {
            let key = ObjectRef::new(name).within(namespace);
            let machine = caches.machines.get(&key);
            machine.is_none_or(|machine| reached(&*machine, version))
        }
        Written::Vm { name, version } => seen(caches.vms.get(namespace, name), version),
        Written::Claim { name, version } => seen(caches.claims.get(namespace, name), version),
        Written::DataVolume { name, version } => {
            seen(caches.data_volumes.get(namespace, name), version)
        }
        Written::Secret { name, version } => seen(caches.secrets.get(namespace, name), version),
        Written::Attachment { name, version } => {
            seen(caches.attachments.get(namespace, name), version)
        }
    })
}

/// An object that was written, and its version then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Machine { name: String, version: String },
    Vm { name: String, version: String },
    Claim { name: String, version: String },
    DataVolume { name: String, version: String },
    Secret { name: String, version: String },
    Attachment { name: String, version: String },
}

fn seen<K: Meta>(object: Option<Arc<K>>, version: &str) -> bool {
    object.is_some_and(|object| reached(&*object, version))
}

/// Versions of one kind are numbers that grow (Kubernetes 1.35 promises what has always been so).
/// Anything else counts as arrived: the wait is short of a guarantee, not of an end.
fn reached(seen: &impl Meta, written: &str) -> bool {
    let seen = seen.meta().resource_version.as_deref();
    match (
        seen.and_then(|seen| seen.parse::<u64>().ok()),
        written.parse::<u64>(),
    ) {
        (Some(seen), Ok(written)) => seen >= written,
        _ => true,
    }
}
