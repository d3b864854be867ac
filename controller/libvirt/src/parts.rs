//! Parts of a host that cannot be read: which, why, and the command that repairs it.

use crate::access::{AccessError, Network, Pool};

/// Why a pool cannot be read; `None`: it is active.
pub(crate) fn pool_fault(pools: &[Pool], name: &str) -> Option<String> {
    match pools.iter().find(|pool| pool.name == name) {
        None => Some(format!(
            "pool '{name}' is not there: define it on the host (virsh pool-define-as) and start it (virsh pool-start {name})"
        )),
        Some(pool) if !pool.active => Some(format!(
            "pool '{name}' is not active: start it on the host (virsh pool-start {name})"
        )),
        Some(_) => None,
    }
}

/// Why a pool could not be read, after a call failed.
pub(crate) fn unreadable_pool(pools: &[Pool], name: &str, error: &AccessError) -> String {
    pool_fault(pools, name).unwrap_or_else(|| {
        format!(
            "pool '{name}' cannot be read ({error}): repair it on the host (virsh pool-refresh {name})"
        )
    })
}

/// Why a virtual network cannot be used; `None`: it is active.
pub(crate) fn network_fault(networks: &[Network], name: &str) -> Option<String> {
    match networks.iter().find(|network| network.name == name) {
        None => Some(format!(
            "network '{name}' is not there: define it on the host (virsh net-define) and start it (virsh net-start {name})"
        )),
        Some(network) if !network.active => Some(format!(
            "network '{name}' is not active: start it on the host (virsh net-start {name})"
        )),
        Some(_) => None,
    }
}
