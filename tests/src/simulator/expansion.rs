//! The size of disks in the guest, which a real instance does not report. Here it is `size` of its `volumeStatus`.
//!
//! As virt-launcher (`shouldExpandOnline` and `shouldExpandOffline`, `pkg/virt-launcher/virtwrap/manager.go`): with the feature
//! gate `ExpandDisks`, general since 1.8, a running guest gets the size of a volume that has grown. Without it, a block
//! device has the size at the next start, and a disk that is a file on a volume keeps its own.

use std::sync::{PoisonError, atomic::Ordering};

use common::quantity::Bytes;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::{
    context::{Context, merge},
    guest::list,
};

/// Adds to the status of a guest that starts the sizes of its disks.
pub(super) async fn started(
    context: &Context,
    namespace: &str,
    status: &mut Value,
) -> Result<(), kube::Error> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let volumes = status["volumeStatus"].as_array_mut();
    for volume in volumes.into_iter().flatten() {
        let Some(name) = claim_of(volume) else {
            continue;
        };
        if let Some(claim) = claims.get_opt(name).await?
            && let Some(size) = size(context, &claim)
        {
            volume["size"] = json!(size);
        }
    }
    Ok(())
}

/// Gives a running guest the size of a claim that has grown.
pub(super) async fn grown(
    context: &Context,
    machine: &str,
    claim: &PersistentVolumeClaim,
) -> Result<(), kube::Error> {
    if !context.expands_disks.load(Ordering::Relaxed) {
        return Ok(());
    }
    let Some(size) = size(context, claim) else {
        return Ok(());
    };
    // Two claims may grow at the same time.
    loop {
        match report(context, machine, claim, size).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            outcome => return outcome,
        }
    }
}

/// Writes the size of a claim into the status of the instance, if that has not changed meanwhile.
async fn report(
    context: &Context,
    machine: &str,
    claim: &PersistentVolumeClaim,
    size: u64,
) -> Result<(), kube::Error> {
    let instances = context.instances(&claim.namespace().unwrap_or_default());
    let Some(instance) = instances.get_opt(machine).await? else {
        return Ok(());
    };
    let name = claim.name_any();
    let mut volumes = list(&instance.data["status"]["volumeStatus"]).to_vec();
    let mut of_claim = volumes.iter_mut();
    let of_claim = of_claim.find(|volume| claim_of(volume) == Some(name.as_str()));
    let Some(volume) = of_claim.filter(|volume| volume["size"].is_number()) else {
        return Ok(());
    };
    volume["size"] = json!(size);
    let version = instance.resource_version();
    let patch =
        json!({"metadata": {"resourceVersion": version}, "status": {"volumeStatus": volumes}});
    merge(&instances, machine, &patch).await
}

fn claim_of(volume: &Value) -> Option<&str> {
    volume["persistentVolumeClaimInfo"]["claimName"].as_str()
}

/// The size that a guest has of a claim which it starts with, or which it is given now, in bytes.
fn size(context: &Context, claim: &PersistentVolumeClaim) -> Option<u64> {
    let status = claim.status.as_ref()?;
    let capacity: Bytes = status.capacity.as_ref()?.get("storage")?.0.parse().ok()?;
    let capacity = u64::try_from(capacity.get()).ok()?;
    let mode = claim.spec.as_ref()?.volume_mode.as_deref();
    let files = context.file_sizes.lock();
    let mut files = files.unwrap_or_else(PoisonError::into_inner);
    let file = files.entry(claim.uid()?).or_insert(capacity);
    if mode == Some("Block") || context.expands_disks.load(Ordering::Relaxed) {
        *file = capacity;
    }
    Some(*file)
}
