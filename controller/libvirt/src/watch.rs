//! The watch of LibvirtHosts, and which Machines a change of one affects.

use std::sync::Arc;

use common::api::libvirt_host::LibvirtHostStatus;
use controller_core::cache::Cache;
use controller_core::caches::machines_where;
use controller_core::watch::{Watches, watch_config};

use crate::hosts::registry::Hosts;
use crate::libvirt_host::LibvirtHost;
use controller_core::objects::Meta as _;

/// Starts the watch that fills the cache of LibvirtHosts.
pub(crate) fn watch_hosts(watches: &mut Watches<'_>, cache: &Cache<LibvirtHost>, hosts: &Hosts) {
    let (hosts, quotas) = (hosts.clone(), watches.caches.quotas.clone());
    watches.spawn(
        "watch of libvirt hosts",
        watch_config(),
        cache,
        move |change, machines| {
            hosts.changed();
            let (old, new) = (change.old.as_deref(), change.new.as_deref());
            let name = new.or(old).map_or("", |host| host.name());
            let deleted = LibvirtHostStatus::default();
            let status = new.map_or(&deleted, |host| &host.status);
            let held = if quotas.host_changed(name, status) {
                quotas.held()
            } else {
                vec![]
            };
            // A change of the status of the LibvirtHost alone, which every guest causes, triggers a pass only of
            // Machines that a quota holds, and only if it changes what is left of deleted ones.
            let spec = |host: &Option<Arc<LibvirtHost>>| {
                host.as_ref()
                    .map(|host| (host.spec.clone(), host.metadata.labels.clone()))
            };
            let Some(host) = change
                .object()
                .filter(|_| spec(&change.old) != spec(&change.new))
            else {
                return held;
            };
            let mut concerned = machines_where(machines, |machine| {
                let binding = machine.binding.as_ref();
                binding.is_some_and(|binding| {
                    binding
                        .host
                        .as_deref()
                        .is_none_or(|name| name == host.name())
                })
            });
            concerned.extend(held);
            concerned
        },
    );
}
