//! Where the domain of a Machine is: every host that shows it, by the last poll that the host answered.
//!
//! ```text
//! one host shows it active ─▶ that host; what others show is a definition that was left behind
//! several show it active ───▶ one of these that answers, of several the host in the status
//! none shows it active ─────▶ the host in the status, else the first by name
//! ```
//! An administrator who migrates a guest with virsh leaves the old definition behind, and a host that is restored from a
//! backup has definitions of Machines that were moved away. While more than one host shows the domain, nothing of it is
//! defined, started, moved or deleted on any of them.

use std::cmp::Reverse;

use common::render::libvirt::{DomainMetadata, domain_uuid};
use controller_core::cache::Cache;
use controller_core::machine::Machine;
use futures::future::join_all;
use uuid::Uuid;

use super::connected::{ConnectedHost, NOT_POLLED, QUERY_LIMIT};
use super::registry::Hosts;
use crate::guard::OtherHosts;
use crate::libvirt_host::LibvirtHost;
use crate::observed::{Binding, HostView, ShownDomain};

/// The host of the domain of a Machine, and the other ones that show it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// Name of the LibvirtHost that the Machine is on.
    pub(crate) host: String,
    /// The domain on other hosts, by name.
    pub(crate) others: Vec<ShownDomain>,
}

impl Location {
    /// Chooses the host of a Machine from those that show its domain; `None`: none does. `hint`: the host in its status.
    pub(crate) fn choose(mut shown: Vec<ShownDomain>, hint: Option<&str>) -> Option<Self> {
        let rank = |it: &ShownDomain| {
            let is_current = it.is_active && it.answers;
            (it.is_active, is_current, Some(&*it.host) == hint)
        };
        shown.sort_by(|a, b| a.host.cmp(&b.host));
        shown.sort_by_key(|it| Reverse(rank(it)));
        let mut shown = shown.into_iter();
        let host = shown.next()?.host;
        let mut others: Vec<_> = shown.collect();
        others.sort_by(|a, b| a.host.cmp(&b.host));
        Some(Self { host, others })
    }
}

impl Hosts {
    /// Where the domain of this Machine is; `None`: no host shows it. `hint`: the host in its status.
    pub(crate) fn location(&self, uid: &str, hint: Option<&str>) -> Option<Location> {
        Location::choose(self.shown(uid), hint)
    }

    /// The hosts that have a domain of the Machine's uuid with our metadata of it.
    fn shown(&self, uid: &str) -> Vec<ShownDomain> {
        let domain = domain_uuid(uid);
        let all = self.all();
        let shown = all.iter().filter_map(|host| shown_on(host, domain, uid));
        shown.collect()
    }

    /// The domain of a Machine on other hosts than this one.
    pub(crate) fn other_domains(&self, uid: &str, here: &str) -> Vec<ShownDomain> {
        let shown = self.shown(uid).into_iter();
        shown.filter(|it| it.host != here).collect()
    }

    /// Another host than `here` that has the domain of a Machine now. The last poll of it may be two seconds old. A host that
    /// does not answer is not asked: what its last poll showed still counts.
    pub(crate) async fn other_host_now(&self, uid: &str, here: &str) -> Option<String> {
        let others = self.all().into_iter().filter(|it| it.name != here);
        let others = others.filter(|it| it.snapshot().is_ok());
        let asked = others.map(|host| {
            let uid = uid.to_owned();
            async move {
                let answer = host.host.fast.call(QUERY_LIMIT, move |host| {
                    let found = host.domain(domain_uuid(&uid))?;
                    let metadata = found.and_then(|found| found.state.metadata);
                    let metadata = metadata.as_deref().and_then(DomainMetadata::parse);
                    Ok(metadata.is_some_and(|metadata| metadata.uid == uid))
                });
                answer.await.unwrap_or(false).then(|| host.name.clone())
            }
        });
        join_all(asked).await.into_iter().flatten().next()
    }

    /// The hosts, other than `here`, on which a Machine is or may be at the time of the call. While there is one, no effect on
    /// its domain on `here` is permitted. `hint`: the host in its status.
    pub(crate) fn other_hosts(
        &self,
        uid: &str,
        hint: Option<&str>,
        here: &str,
        objects: &Cache<LibvirtHost>,
    ) -> OtherHosts {
        let shown = self.shown(uid);
        let others = shown.iter().filter(|it| it.host != here);
        let defined = others.map(|it| it.host.clone()).collect();
        let chosen = Location::choose(shown, hint).map(|it| it.host);
        let bound = self.shown_or_known(chosen, uid, hint);
        let named = hint.filter(|named| *named != here);
        let named = named.filter(|named| self.why_unknown(named, objects).is_some());
        OtherHosts {
            bound: bound.filter(|other| other != here),
            defined,
            unknown: named.map(ToOwned::to_owned),
        }
    }

    /// Binding of a Machine whose domain is off here, while a host that does not answer may run it: the host of its
    /// status, or any host if the status was lost. `None` while the controller moves the Machine away from here: the move
    /// ends while the definition is still on this host.
    pub(crate) fn may_run_elsewhere(
        &self,
        machine: &Machine,
        view: &HostView,
        objects: &Cache<LibvirtHost>,
    ) -> Option<Binding> {
        let here = Some(&*view.host);
        let guest = view.guest.as_ref()?;
        if guest.state.active() || !guest.belongs_to(machine) || machine.leaves_host() == here {
            return None;
        }
        let (host, why) = match machine.status.host.as_deref() {
            Some(named) if Some(named) == here => return None,
            Some(named) => (named.to_owned(), self.why_unknown(named, objects)?),
            None => self.possible_hosts(machine, objects).into_iter().next()?,
        };
        let why = format!(
            "{why}; the domain of the Machine on LibvirtHost '{}' is off and is not started while the guest may run on '{host}': if that host is gone for good, delete its LibvirtHost",
            view.host
        );
        Some(Binding::Unreachable { host, why })
    }

    /// Why nothing is known of a registered host now; `None`: it answers, or is not registered.
    fn why_unknown(&self, name: &str, objects: &Cache<LibvirtHost>) -> Option<String> {
        if !objects.contains("", name) {
            return None;
        }
        match self.get(name) {
            Some(host) => host.snapshot().err(),
            None => Some(NOT_POLLED.to_owned()),
        }
    }
}

/// `domain`: uuid of the Machine's domain, computed once for all hosts.
fn shown_on(host: &ConnectedHost, domain: Uuid, uid: &str) -> Option<ShownDomain> {
    let snapshot = host.last_snapshot()?;
    let found = snapshot.domain(domain)?;
    found.metadata.as_ref().filter(|it| it.uid == uid)?;
    Some(ShownDomain {
        host: host.name.clone(),
        is_active: found.domain.state.active(),
        answers: host.snapshot().is_ok(),
    })
}

#[cfg(test)]
mod tests;
