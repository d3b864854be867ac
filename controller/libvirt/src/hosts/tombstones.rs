//! Records of Machines that are gone while something of them may be left on a host: `status.tombstones`.

use common::api::libvirt_host::{LibvirtHostStatus, Tombstone};
use common::names;
use controller_core::client::{ApiError, GuardedClient};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::libvirt_host::LibvirtHost;

/// Records that something of a Machine may be left on a host; the poller removes it once the host can be read.
pub(crate) async fn record(
    api: &GuardedClient,
    host: &LibvirtHost,
    machine: &Machine,
    now: Now,
) -> Result<(), ApiError> {
    let mut status = host.status.clone();
    let mut recorded = status.tombstones.iter();
    if recorded.any(|known| known.uid == machine.uid()) {
        return Ok(());
    }
    status.tombstones.push(Tombstone {
        machine: format!("{}/{}", machine.namespace(), machine.name()),
        uid: machine.uid().to_owned(),
        since: now.text(),
    });
    put_status(api, host, &status).await
}

/// Writes the status of a host. Refused if another writer changed the host since it was read, so that no
/// tombstone of another writer is lost.
pub(super) async fn put_status(
    api: &GuardedClient,
    host: &LibvirtHost,
    status: &LibvirtHostStatus,
) -> Result<(), ApiError> {
    let hosts: Api<LibvirtHost> = Api::all(api.client());
    let body = json!({
        "metadata": {"uid": host.uid(), "resourceVersion": host.metadata.resource_version},
        "status": status,
    });
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let body = Patch::Merge(&body);
    api.write(hosts.patch_status(host.name(), &params, &body))
        .await?;
    Ok(())
}
