//! What a job on a host checks before each effect. Jobs of a Machine check its binding, too.

use std::collections::BTreeSet;
use std::sync::Arc;

use controller_core::cache::Cache;
use controller_core::client::{ApiError, GuardedClient};

use super::connected::ConnectedHost;
use crate::access::{AccessError, Result};
use crate::guard::Guard;
use crate::libvirt_host::LibvirtHost;

/// A guard that holds while this replica has the Lease and the host is reached over these connections.
pub(super) fn of_host(
    api: &GuardedClient,
    objects: &Cache<LibvirtHost>,
    connected: &Arc<ConnectedHost>,
) -> Guard {
    // It is about no Machine that could be bound elsewhere.
    let pools = spec_pools(objects, &connected.name);
    Guard::new(may_act(api, connected), || None, pools)
}

/// Whether a job that deletes on the host is begun: this replica has the Lease, and the host answers and permits changes.
pub(super) fn may_begin(
    api: &GuardedClient,
    connected: &ConnectedHost,
    host: &LibvirtHost,
) -> bool {
    let is_permitted = api.may_write() && host.spec.maintenance != Some(true);
    is_permitted && connected.snapshot().is_ok()
}

/// The pools that the spec of a LibvirtHost names at the time of the call.
pub(crate) fn spec_pools(
    objects: &Cache<LibvirtHost>,
    host: &str,
) -> impl Fn() -> Result<BTreeSet<String>> + Send + Sync + 'static {
    let (objects, host) = (objects.clone(), host.to_owned());
    move || match objects.get("", &host) {
        Some(object) => Ok(object.spec.pools()),
        None => Err(AccessError::Cancelled(format!(
            "LibvirtHost '{host}' was deleted; nothing was done"
        ))),
    }
}

/// Fails once this replica has lost the Lease, or the host is reached over other connections.
pub(crate) fn may_act(
    api: &GuardedClient,
    connected: &Arc<ConnectedHost>,
) -> impl Fn() -> Result<()> + Send + Sync + 'static {
    let (api, connected) = (api.clone(), connected.clone());
    move || {
        if !api.may_write() {
            let why = ApiError::NotLeading.to_string();
            return Err(AccessError::Cancelled(why + "; nothing was done"));
        }
        connected.check_open()
    }
}
