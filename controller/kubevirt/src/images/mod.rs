//! MachineImages: their status, and the removal of imports that nothing needs any more.
//!
//! ```text
//! Machines ── names ──▶ usedBy        imports of the present source ──▶ Ready, imports
//! import ─ of no MachineImage, and no Machine waits for it ─▶ deleted with its claim
//! ```
//! A Machine's own pass creates an import, so that it waits for nothing here. An import that was removed too early is
//! created again by the next pass, and the clone continues.

mod state;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use common::api::choice::Backend;
use common::api::machine_image::MachineImageStatus;
use common::names;
use common::render::kubevirt::source_digest;
use controller_core::caches::Caches;
use controller_core::client::{ApiError, GuardedClient};
use controller_core::metrics::COUNT_INTERVAL;
use controller_core::objects::{Image, Meta as _};
use controller_core::plan::Now;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Resource as _};
use serde_json::json;
use time::OffsetDateTime;

use self::state::{needed_imports, status, uses};
use crate::apply::live::for_each;
use crate::caches::KubeVirtCaches;
use crate::objects::DataVolume;

/// Every 5 s writes the status of MachineImages that have changed, and removes imports, for as long as the process
/// runs. The caches have been listed. `namespace`: that of the imports.
pub async fn maintain(
    caches: Caches,
    cluster: KubeVirtCaches,
    api: GuardedClient,
    namespace: String,
) -> Infallible {
    let mut ticks = tokio::time::interval(COUNT_INTERVAL);
    loop {
        ticks.tick().await;
        if !api.may_write() {
            continue;
        }
        let images = caches.images.all();
        let imports = imports_in(&cluster, &namespace);
        if images.is_empty() && imports.is_empty() {
            continue;
        }
        publish(&caches, &api, &images, &imports).await;
        for import in unneeded(&caches, &cluster, &images, &imports) {
            let name = import.name();
            match remove(&api, import).await {
                Ok(true) => tracing::info!(import = name, "removed the import of an image"),
                Ok(false) => tracing::info!(import = name, "a clone of an import has just begun"),
                Err(error) => {
                    tracing::warn!(import = name, %error, "the import of an image was not removed");
                }
            }
        }
    }
}

/// The shared imports, sorted by name.
fn imports_in(cluster: &KubeVirtCaches, namespace: &str) -> Vec<DataVolume> {
    let mut imports = cluster.data_volumes.in_namespaces(|it| it == namespace);
    imports.retain(DataVolume::is_shared_import);
    imports.sort_by(|one, other| one.name().cmp(other.name()));
    imports
}

async fn publish(caches: &Caches, api: &GuardedClient, images: &[Image], imports: &[DataVolume]) {
    let machines = caches.machines.state();
    let uses = uses(machines.iter().map(Arc::as_ref));
    for image in images {
        let used_by = uses.get(image.name()).copied().unwrap_or_default();
        let status = status(image, used_by, imports, Now(OffsetDateTime::now_utc()));
        if status == image.status {
            continue;
        }
        if let Err(error) = write(api, image, &status).await {
            let name = image.name();
            tracing::warn!(image = name, %error, "the status of an image was not written");
        }
    }
}

async fn write(
    api: &GuardedClient,
    image: &Image,
    status: &MachineImageStatus,
) -> Result<(), ApiError> {
    let body = json!({
        "apiVersion": Image::api_version(&()),
        "kind": Image::kind(&()),
        "metadata": {"name": image.name(), "uid": image.uid()},
        "status": status,
    });
    let images: Api<Image> = Api::all(api.client());
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    let body = Patch::Apply(&body);
    api.write(images.patch_status(image.name(), &params, &body))
        .await?;
    Ok(())
}

/// The imports of sources that no MachineImage has, and that no Machine waits for.
fn unneeded<'i>(
    caches: &Caches,
    cluster: &KubeVirtCaches,
    images: &[Image],
    imports: &'i [DataVolume],
) -> Vec<&'i DataVolume> {
    let current = images.iter().filter_map(|image| {
        let pinned = image.spec.pinned(image.name())?;
        source_digest(&pinned)
    });
    let current: BTreeSet<_> = current.collect();
    let has_no_image = |import: &&DataVolume| {
        let source = import.label(names::LABEL_IMAGE_SOURCE);
        !import.is_deleting() && source.is_none_or(|source| !current.contains(source))
    };
    let mut unneeded: Vec<_> = imports.iter().filter(has_no_image).collect();
    if unneeded.is_empty() {
        return unneeded;
    }
    let machines = caches.machines.state_filter(|machine| {
        machine.backend() == Backend::Kubevirt && machine.images().next().is_some()
    });
    let machines = machines.iter().map(|machine| machine.decompress());
    let needed = needed_imports(machines, cluster);
    unneeded.retain(|import| !needed.contains(import.name()));
    unneeded
}

/// Deletes an import with its claim, unless a clone of it is under way now. The request names the version that was
/// observed.
async fn remove(api: &GuardedClient, import: &DataVolume) -> Result<bool, ApiError> {
    let ours = format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGED_BY);
    let all: Api<DataVolume> = Api::all(api.client());
    let ours = ListParams::default().labels(&ours);
    let mut is_cloned = false;
    for_each(api, &all, ours, |it| is_cloned |= it.clones(import)).await?;
    if is_cloned {
        return Ok(false);
    }
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            resource_version: import.metadata.resource_version.clone(),
            uid: Some(import.uid().to_owned()),
        }),
        ..DeleteParams::background()
    };
    let imports: Api<DataVolume> = Api::namespaced(api.client(), import.namespace());
    match api.write(imports.delete(import.name(), &params)).await {
        Err(error) if !error.is_not_found() => Err(error),
        Ok(_) | Err(_) => Ok(true),
    }
}
