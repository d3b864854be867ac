//! What a job on a host checks before each effect. Jobs of a Machine check its binding, too.

use std::sync::Arc;

use controller_core::client::{ApiError, GuardedClient};

use super::registry::ConnectedHost;
use crate::access::{AccessError, Result};
use crate::guard::Guard;

/// A guard that holds while this replica has the Lease and the host is reached over these connections.
pub(super) fn of_host(api: &GuardedClient, connected: &Arc<ConnectedHost>) -> Guard {
    // It is about no Machine that could be bound elsewhere.
    Guard::new(may_act(api, connected), || None)
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
