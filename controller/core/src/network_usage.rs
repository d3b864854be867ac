//! The in-use finalizer: a NetworkConfiguration that a Machine uses is not deleted.
//!
//! ```text
//! Machine: its block names the network ─────────┐
//! VirtualMachine, instance: on its attachment ──┴▶ users ─▶ decide: add, remove or leave the finalizer
//!                                                             └─ deletion is blocked: an event names the users
//! ```
//! Machines do not depend on this finalizer: they reconcile with or without it. All networks of a namespace are
//! checked together when a Machine of the namespace changes, or the attachments of its guests
//! (`pushed_namespaces_are_taken_once_and_together`; `a_network_is_deleted_once_no_machine_uses_it` in
//! `tests/tests/network.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::render::kubevirt::attachment_name;
use common::{name_list, names};
use runtime::outage::{Outage, RetryDelay};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::cache::Cache;
use crate::caches::Caches;
use crate::client::{ApiError, GuardedClient, Remedy};
use crate::events::Events;
use crate::objects::{Meta, Network};
use crate::writes::set_finalizer;

/// Changes of a namespace within this time are one check: creating a fleet costs at most four checks a second.
const DEBOUNCE: Duration = Duration::from_millis(250);

/// Namespaces whose networks have to be checked, each at most once. Clones share the content.
#[derive(Clone, Debug, Default)]
pub struct NamespaceQueue(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    namespaces: Mutex<BTreeSet<String>>,
    /// Wakes the consumer after a push.
    pushed: Notify,
}

impl NamespaceQueue {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Every change of the set is one call, so a poisoned lock is safe to use.
        let namespaces = self.0.namespaces.lock();
        namespaces.unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a namespace.
    pub fn push(&self, namespace: &str) {
        if self.lock().insert(namespace.to_owned()) {
            self.0.pushed.notify_one();
        }
    }

    /// Adds every namespace that has a network.
    pub fn push_all(&self, networks: &Cache<Network>) {
        networks.for_each_summary(|namespace, ()| self.push(namespace));
    }

    /// Waits until there is a namespace, then removes and returns all. For one caller at a time.
    async fn take(&self) -> BTreeSet<String> {
        loop {
            // Returns at once if something was pushed since the last call.
            self.0.pushed.notified().await;
            sleep(DEBOUNCE).await;
            let namespaces = std::mem::take(&mut *self.lock());
            if !namespaces.is_empty() {
                return namespaces;
            }
        }
    }
}

/// Which NetworkAttachmentDefinitions the guests of Machines are attached to.
pub trait GuestAttachments: Send + Sync {
    /// Calls `visit` with the namespace, the Machine's name and the attachment (`namespace/name`) of every
    /// attachment of every guest.
    fn for_each(&self, visit: &mut dyn FnMut(&str, &str, &str));
}

/// Users of the networks of some namespaces.
#[derive(Debug, Default)]
struct Users {
    /// Names of the Machines whose block names a network, by `namespace/name` of the network.
    named: BTreeMap<String, BTreeSet<String>>,
    /// Names of the Machines whose guest has an attachment, by `namespace/name` of the attachment.
    attached: BTreeMap<String, BTreeSet<String>>,
}

impl Users {
    fn of(caches: &Caches, guests: &dyn GuestAttachments, namespaces: &BTreeSet<String>) -> Self {
        let mut users = Self::default();
        let is_checked = |namespace: &str| namespaces.contains(namespace);
        let machines = caches
            .machines
            .state_filter(|machine| is_checked(machine.namespace()));
        for machine in machines {
            for network in machine.networks() {
                let network = format!("{}/{network}", machine.namespace());
                let users = users.named.entry(network);
                users.or_default().insert(machine.name().to_owned());
            }
        }
        guests.for_each(&mut |namespace, machine, attachment| {
            if is_checked(namespace) {
                users.attach(namespace, machine, attachment);
            }
        });
        users
    }

    /// Adds a guest. The attachments of a Machine are in its namespace: an object of another one, which anybody may write
    /// there with our labels, does not keep a network from being deleted.
    fn attach(&mut self, namespace: &str, machine: &str, attachment: &str) {
        let (of, _) = attachment.split_once('/').unwrap_or_default();
        if of == namespace {
            let users = self.attached.entry(attachment.to_owned());
            users.or_default().insert(machine.to_owned());
        }
    }

    /// Names of the Machines that use a network, sorted.
    fn of_network(&self, network: &Network) -> Vec<String> {
        let namespace = network.namespace();
        let attachment = attachment_name(network.name(), &network.spec);
        let named = self.named.get(&format!("{namespace}/{}", network.name()));
        let attached = self.attached.get(&format!("{namespace}/{attachment}"));
        let users: BTreeSet<_> = named.into_iter().chain(attached).flatten().collect();
        users.into_iter().cloned().collect()
    }
}

/// What to do about a network.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    /// The finalizer is as it should be.
    Nothing,
    /// The network is used and has no finalizer.
    AddFinalizer,
    /// The network is not used any more.
    RemoveFinalizer,
    /// A user deleted the network and it is still used; the text of the event.
    ReportUsers(String),
}

fn decide(network: &Network, users: Vec<String>) -> Decision {
    match (
        has_in_use_finalizer(network),
        network.is_deleting(),
        users.is_empty(),
    ) {
        (false, false, false) => Decision::AddFinalizer,
        (true, _, true) => Decision::RemoveFinalizer,
        (true, true, false) => Decision::ReportUsers(format!(
            "the deletion waits for the Machines that use this network: {}; delete them, or take it out of their spec.networks and restart them; the network is deleted then",
            name_list(users)
        )),
        // The API server refuses a new finalizer on an object under deletion.
        (false, true, false) | (false, _, true) | (true, false, false) => Decision::Nothing,
    }
}

fn has_in_use_finalizer(network: &Network) -> bool {
    network.has_finalizer(names::FINALIZER_IN_USE)
}

/// What was last done about a network. May be lost: a restart repeats an event.
#[derive(Clone, Debug, Default)]
struct Done {
    /// `resourceVersion` whose finalizer was patched. As long as the cache has it, the cache is behind the patch.
    patched: Option<String>,
    /// Text of the last event.
    reported: Option<String>,
}

/// Keeps the in-use finalizers of all networks up to date, for as long as the process runs.
pub async fn maintain_in_use_finalizers(
    queue: NamespaceQueue,
    caches: Caches,
    guests: Arc<dyn GuestAttachments>,
    api: GuardedClient,
    events: Events,
) -> Infallible {
    let mut controller = FinalizerController {
        caches,
        guests,
        api,
        events,
        done: BTreeMap::new(),
    };
    let (mut delay, mut outage) = (RetryDelay::default(), Outage::default());
    loop {
        let namespaces = queue.take().await;
        let failures = controller.check(&namespaces).await;
        if failures.is_empty() {
            outage.succeeded();
            continue;
        }
        for (namespace, error) in failures {
            if error.remedy() != Remedy::Reobserve && outage.failed(&error) {
                tracing::warn!(
                    error = error.message(),
                    namespace,
                    "the in-use finalizer of a network was not changed, trying again"
                );
            }
            queue.push(&namespace);
        }
        sleep(delay.after_failure()).await;
    }
}

struct FinalizerController {
    caches: Caches,
    guests: Arc<dyn GuestAttachments>,
    api: GuardedClient,
    events: Events,
    /// By namespace and uid of the network.
    done: BTreeMap<(String, String), Done>,
}

impl FinalizerController {
    /// Checks the networks of some namespaces; returns the namespaces in which a patch failed, and why.
    async fn check(&mut self, namespaces: &BTreeSet<String>) -> Vec<(String, ApiError)> {
        if !self.api.may_write() {
            // Every namespace is queued again when this replica acquires the Lease.
            return Vec::new();
        }
        let is_checked = |namespace: &str| namespaces.contains(namespace);
        let networks = self.caches.networks.in_namespaces(is_checked);
        let uids: BTreeSet<_> = networks.iter().map(Meta::uid).collect();
        self.done
            .retain(|(namespace, uid), _| !is_checked(namespace) || uids.contains(uid.as_str()));
        let mut failures = Vec::new();
        if networks.is_empty() {
            return failures;
        }
        let users = Users::of(&self.caches, &*self.guests, namespaces);
        for network in networks {
            let decision = decide(&network, users.of_network(&network));
            if let Err(error) = self.carry_out(&network, decision).await {
                failures.push((network.namespace().to_owned(), error));
            }
        }
        failures
    }

    async fn carry_out(&mut self, network: &Network, decision: Decision) -> Result<(), ApiError> {
        let version = network.metadata.resource_version.clone();
        let key = (network.namespace().to_owned(), network.uid().to_owned());
        let done = self.done.entry(key).or_default();
        let api = &self.api;
        let patched: Result<Network, _> = match decision {
            Decision::ReportUsers(message) => {
                if done.reported.as_ref() != Some(&message) {
                    self.events.network_in_use(network, &message);
                    done.reported = Some(message);
                }
                return Ok(());
            }
            Decision::Nothing => return Ok(()),
            Decision::AddFinalizer | Decision::RemoveFinalizer if done.patched == version => {
                return Ok(());
            }
            Decision::AddFinalizer | Decision::RemoveFinalizer => {
                let is_wanted = matches!(decision, Decision::AddFinalizer);
                set_finalizer(api, network, names::FINALIZER_IN_USE, is_wanted).await
            }
        };
        match patched {
            Err(error) if !error.is_not_found() => return Err(error),
            Ok(_) | Err(_) => done.patched = version,
        }
        tracing::info!(
            network = network.name(),
            namespace = network.namespace(),
            "{}",
            if has_in_use_finalizer(network) {
                "removed the in-use finalizer: no Machine uses the network"
            } else {
                "added the in-use finalizer: a Machine uses the network"
            }
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network(finalizers: &[&str], deleting: bool) -> Network {
        let deleted = deleting.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({"metadata": {
            "name": "prod", "namespace": "default", "uid": "u", "finalizers": finalizers,
            "deletionTimestamp": deleted,
        }}))
        .unwrap()
    }

    #[test]
    fn the_finalizer_is_present_exactly_while_a_machine_uses_the_network() {
        let ours: &[&str] = &["example.org/theirs", names::FINALIZER_IN_USE];
        let (theirs, none): (&[&str], &[&str]) = (&["example.org/theirs"], &[]);
        let message = "the deletion waits for the Machines that use this network: db and web; delete them, or take it out of their spec.networks and restart them; the network is deleted then";
        for (finalizers, deleting, used, expected) in [
            (none, false, false, Decision::Nothing),
            (none, false, true, Decision::AddFinalizer),
            (theirs, false, true, Decision::AddFinalizer),
            // Under deletion a finalizer can no longer be added.
            (theirs, true, true, Decision::Nothing),
            (theirs, true, false, Decision::Nothing),
            (ours, false, true, Decision::Nothing),
            (ours, false, false, Decision::RemoveFinalizer),
            (ours, true, false, Decision::RemoveFinalizer),
            (ours, true, true, Decision::ReportUsers(message.to_owned())),
        ] {
            let users: &[&str] = if used { &["web", "db"] } else { &[] };
            let users = users.iter().map(|name| (*name).to_owned()).collect();
            let network = network(finalizers, deleting);
            assert_eq!(
                decide(&network, users),
                expected,
                "{finalizers:?} {deleting} {used}"
            );
        }
    }

    #[test]
    fn the_event_with_the_longest_machine_names_fits_into_a_note() {
        let users = (10..30)
            .map(|number| format!("{number}{}", "m".repeat(61)))
            .collect();
        let Decision::ReportUsers(message) =
            decide(&network(&[names::FINALIZER_IN_USE], true), users)
        else {
            unreachable!()
        };
        assert!(message.contains("and 10 more"), "{message}");
        assert!(
            message.len() <= crate::events::NOTE_MAX,
            "{}",
            message.len()
        );
    }

    #[test]
    fn users_are_machines_that_name_the_network_or_whose_guest_is_attached() {
        let mut users = Users::default();
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        users
            .named
            .insert("default/prod".into(), set(&["web", "db"]));
        users.named.insert("other/prod".into(), set(&["app"]));
        for (namespace, machine, attachment) in [
            ("default", "web", "default/prod"),
            ("default", "old", "default/prod"),
            ("default", "guest", "default/theirs"),
            // A foreign pod with our labels.
            ("hostile", "web-of-others", "default/prod"),
            ("hostile", "web-of-others", "prod"),
        ] {
            users.attach(namespace, machine, attachment);
        }
        let mut network = network(&[], false);
        assert_eq!(users.of_network(&network), ["db", "old", "web"]);
        network.spec.network_attachment_definition = Some("theirs".into());
        assert_eq!(users.of_network(&network), ["db", "guest", "web"]);
    }

    #[tokio::test(start_paused = true)]
    async fn pushed_namespaces_are_taken_once_and_together() {
        let queue = NamespaceQueue::default();
        queue.push("b");
        queue.push("a");
        queue.push("a");
        assert_eq!(queue.take().await, BTreeSet::from(["a".into(), "b".into()]));
        let mut next = std::pin::pin!(queue.take());
        assert!(futures::poll!(next.as_mut()).is_pending());
        queue.push("c");
        assert_eq!(next.await, BTreeSet::from(["c".into()]));
    }
}
