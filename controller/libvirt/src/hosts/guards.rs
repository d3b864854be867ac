//! What a job on a host checks before each effect. Jobs of a Machine check its binding, too.

use std::collections::BTreeSet;
use std::sync::Arc;

use controller_core::cache::Cache;
use controller_core::client::{ApiError, GuardedClient};

use super::connected::ConnectedHost;
use super::registry::Hosts;
use crate::access::{AccessError, Result};
use crate::guard::{Guard, OtherHosts};
use crate::libvirt_host::LibvirtHost;

/// A guard that holds while this replica has the Lease and the host is reached over these connections.
pub(super) fn of_host(
    api: &GuardedClient,
    objects: &Cache<LibvirtHost>,
    connected: &Arc<ConnectedHost>,
) -> Guard {
    // It is about no Machine that could be bound elsewhere.
    let pools = spec_pools(objects, &connected.name);
    Guard::new(may_act(api, connected), OtherHosts::default, pools)
}

/// The same for what is left of a Machine that is gone: none of its volumes is deleted while another host shows its domain,
/// which may run there on the same disks. Each host removes its own definition.
pub(crate) fn of_remains(
    api: &GuardedClient,
    objects: &Cache<LibvirtHost>,
    hosts: &Hosts,
    connected: &Arc<ConnectedHost>,
    uid: &str,
) -> Guard {
    let pools = spec_pools(objects, &connected.name);
    let (hosts, here, uid) = (hosts.clone(), connected.name.clone(), uid.to_owned());
    let other_hosts = move || {
        let others = hosts.other_domains(&uid, &here).into_iter();
        OtherHosts {
            defined: others.map(|it| it.host).collect(),
            ..OtherHosts::default()
        }
    };
    Guard::new(may_act(api, connected), other_hosts, pools)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::fake::FakeLibvirt;
    use crate::api_server::api_server;
    use crate::environment::running_domain;
    use crate::snapshot::Snapshot;

    #[tokio::test]
    async fn what_is_left_of_a_machine_is_compared_with_what_other_hosts_show_at_the_time_of_the_call()
     {
        let hosts = Hosts::new(Arc::new(FakeLibvirt::new()));
        let of_both = Snapshot {
            domains: [running_domain(Some("uid"), 1)].into_iter().collect(),
            ..Snapshot::default()
        };
        let connect = |name, polled| hosts.connect(name, FakeLibvirt::new(), Ok(polled));
        let alpha = connect("alpha", of_both.clone());
        let api = api_server().0;
        let guard = of_remains(&api, &Cache::default(), &hosts, &alpha, "uid");
        guard.check_only_definition().unwrap();
        connect("beta", of_both);
        let refused = guard.check_only_definition().unwrap_err().to_string();
        assert!(refused.contains("'beta'"), "{refused}");
        guard.check_binding().unwrap();
    }
}
