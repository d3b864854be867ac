//! The status of NetworkConfigurations: who uses them, and how many addresses are left.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use common::address::Family;
use common::api::choice::Backend;
use common::api::network::NetworkConfigurationStatus;
use common::api::status::Condition;
use common::catalog::{Ipam, Segment};
use common::names;
use common::render::kubevirt::attachment_name;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource as _};
use serde_json::json;
use time::OffsetDateTime;

use crate::cache::State;
use crate::caches::Caches;
use crate::client::{ApiError, GuardedClient};
use crate::metrics::COUNT_INTERVAL;
use crate::objects::{Meta as _, Network};
use crate::plan::Now;

/// What is known of NetworkAttachmentDefinitions.
pub trait Attachments: Send + Sync {
    /// Whether a definition exists; `None`: Multus is not installed.
    fn exists(&self, namespace: &str, name: &str) -> Option<bool>;
}

/// Every 5 s writes the status of NetworkConfigurations that has changed, for as long as the process runs.
pub async fn publish(
    caches: Caches,
    attachments: Arc<dyn Attachments>,
    api: GuardedClient,
) -> Result<(), Infallible> {
    let mut ticks = tokio::time::interval(COUNT_INTERVAL);
    loop {
        ticks.tick().await;
        let networks = caches.networks.names();
        let is_listed =
            *caches.machines_listed.borrow() && caches.addresses.state() != State::Starting;
        if networks.is_empty() || !is_listed || !api.may_write() {
            continue;
        }
        let users = users(&caches);
        let locked = locked(&caches);
        for key in networks {
            // Passes run in the same task, and there may be thousands of networks.
            tokio::task::yield_now().await;
            let Some(network) = caches.networks.get(&key.0, &key.1) else {
                continue;
            };
            let machines = users.get(&key).copied().unwrap_or_default();
            let now = Now(OffsetDateTime::now_utc());
            let status = status(&network, machines, &caches, &locked, &*attachments, now);
            if network.is_deleting() || status == network.status {
                continue;
            }
            if let Err(error) = write(&api, &network, &status).await {
                let (name, error) = (network.name(), error.message());
                tracing::warn!(
                    network = name,
                    error,
                    "the status of a network was not written"
                );
            }
        }
    }
}

/// Number of Machines by namespace and name of the NetworkConfiguration.
fn users(caches: &Caches) -> BTreeMap<(String, String), u32> {
    let mut users = BTreeMap::new();
    for machine in caches.machines.state() {
        let mut networks: Vec<_> = machine.networks().collect();
        networks.sort_unstable();
        networks.dedup();
        for network in networks {
            let key = (machine.namespace().to_owned(), network.to_owned());
            *users.entry(key).or_default() += 1;
        }
    }
    users
}

/// Addresses with a lock, by segment.
fn locked(caches: &Caches) -> HashMap<Box<str>, BTreeSet<IpAddr>> {
    let mut locked: HashMap<Box<str>, BTreeSet<IpAddr>> = HashMap::new();
    caches.addresses.for_each_summary(|_, lock| {
        let of_segment = locked.entry(lock.segment.clone()).or_default();
        of_segment.extend(lock.address);
    });
    locked
}

fn status(
    network: &Network,
    machines: u32,
    caches: &Caches,
    locked: &HashMap<Box<str>, BTreeSet<IpAddr>>,
    attachments: &dyn Attachments,
    now: Now,
) -> NetworkConfigurationStatus {
    let namespace = network.namespace();
    let row = |name: &str| Some(caches.networks.get(namespace, name)?.segment_row());
    // With a bridge and a definition, the two backends are on segments of their own.
    let segments = [Backend::Kubevirt, Backend::Libvirt]
        .into_iter()
        .filter_map(|backend| Segment::of(namespace, Some(network.name()), backend, row)?.text());
    let segments: BTreeSet<_> = segments.collect();
    let held = segments
        .iter()
        .filter_map(|segment| locked.get(segment.as_str()));
    let held: Vec<_> = held.collect();
    let mut status = NetworkConfigurationStatus {
        machines: Some(machines),
        ..NetworkConfigurationStatus::default()
    };
    let mut set = |kind: &str, met: bool, reason: &str, message: String| {
        let met = if met { "True" } else { "False" };
        let mut old = network.status.conditions.iter();
        let since = old
            .find(|old| old.kind == kind && old.status == met)
            .map_or_else(|| now.text(), |old| old.last_transition_time.clone());
        status.conditions.push(Condition {
            kind: kind.to_owned(),
            status: met.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: since,
            observed_generation: network.metadata.generation,
        });
    };
    let definition = attachment_name(network.name(), &network.spec);
    match attachments.exists(namespace, definition) {
        None => {}
        Some(true) => set(
            "AttachmentReady",
            true,
            "DefinitionExists",
            format!("NetworkAttachmentDefinition '{definition}' exists"),
        ),
        Some(false) => set(
            "AttachmentReady",
            false,
            "DefinitionNotFound",
            match &network.spec.network_attachment_definition {
                Some(_) => {
                    format!("NetworkAttachmentDefinition '{definition}' does not exist: create it")
                }
                None => format!(
                    "NetworkAttachmentDefinition '{definition}' is created for the first Machine that uses this network"
                ),
            },
        ),
    }
    if let Some(ipam) = &network.spec.ipam {
        let ipam = Ipam::from(ipam);
        let used: usize = held.iter().map(|held| ipam.in_subnets(held)).sum();
        match full(&ipam, &held) {
            None => set(
                "AddressesAvailable",
                true,
                "AddressesAvailable",
                "each family has a free address".to_owned(),
            ),
            Some(family) => set(
                "AddressesAvailable",
                false,
                "AddressesExhausted",
                format!(
                    "no {family} address is free: add a subnet or a range to spec.ipam, or delete Machines"
                ),
            ),
        }
        status.addresses_in_use = Some(u32::try_from(used).unwrap_or(u32::MAX));
        status.addresses_total = Some(i64::try_from(ipam.size()).unwrap_or(i64::MAX));
    }
    status
}

/// A family of which no address is free. `held`: the addresses with a lock of each segment.
fn full(ipam: &Ipam, held: &[&BTreeSet<IpAddr>]) -> Option<Family> {
    let taken = match held {
        [one] => Cow::Borrowed(*one),
        several => Cow::Owned(several.iter().copied().flatten().copied().collect()),
    };
    let mut families = ipam.families();
    families.find(|family| ipam.is_full(*family, &taken))
}

async fn write(
    api: &GuardedClient,
    network: &Network,
    status: &NetworkConfigurationStatus,
) -> Result<(), ApiError> {
    let body = json!({
        "apiVersion": Network::api_version(&()),
        "kind": Network::kind(&()),
        "metadata": {"name": network.name(), "uid": network.uid()},
        "status": status,
    });
    let networks: Api<Network> = Api::namespaced(api.client(), network.namespace());
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    let body = Patch::Apply(&body);
    let call = networks.patch_status(network.name(), &params, &body);
    match api.write(call).await {
        Err(error) if !error.is_not_found() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hyper::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;

    use super::*;
    use crate::lease::LeaseGuard;

    /// Multus is not installed. Counts the networks that were looked at.
    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Attachments for Counted {
        fn exists(&self, _: &str, _: &str) -> Option<bool> {
            self.0.fetch_add(1, Ordering::Relaxed);
            None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn passes_continue_between_two_networks() {
        let caches = Caches::new(reflector::store().0);
        caches.machines_listed.send_replace(true);
        caches.networks.apply(Event::Init, |_| {});
        for index in 0..10 {
            // Its status is written already.
            let network = json!({
                "metadata": {"namespace": "default", "name": format!("n{index}"), "uid": "u"},
                "status": {"machines": 0},
            });
            let network = serde_json::from_value(network).unwrap();
            caches.networks.apply(Event::InitApply(network), |_| {});
        }
        caches.networks.apply(Event::InitDone, |_| {});
        caches.addresses.apply(Event::Init, |_| {});
        caches.addresses.apply(Event::InitDone, |_| {});
        let attachments = Arc::new(Counted::default());
        let service = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, kube::Error>(Response::new(Body::empty()))
        });
        let api = GuardedClient::new(Client::new(service, "default"), LeaseGuard::Always);
        let mut publish = std::pin::pin!(publish(caches.clone(), attachments.clone(), api));
        for looked_at in 0..5 {
            assert!(futures::poll!(publish.as_mut()).is_pending());
            assert_eq!(attachments.0.load(Ordering::Relaxed), looked_at);
        }
        // Each network is read only before its status is compared: those that were deleted meanwhile are passed over.
        caches.networks.apply(Event::Init, |_| {});
        caches.networks.apply(Event::InitDone, |_| {});
        for _ in 0..10 {
            assert!(futures::poll!(publish.as_mut()).is_pending());
        }
        assert_eq!(attachments.0.load(Ordering::Relaxed), 4);
    }
}
