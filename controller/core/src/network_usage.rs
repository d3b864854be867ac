//! Networks in use: a NetworkConfiguration that a Machine uses does not go.
//!
//! ```text
//! Machine: its block names the network ─────────┐
//! VirtualMachine, instance: on its attachment ──┴▶ users ─▶ decide: finalizer on, off, or as it is
//!                                                             └─ deletion waits: an event says for whom
//! ```
//! A Machine never waits for this: it goes with the network as it goes without, and the network
//! follows. The networks of a namespace are looked at together, whenever a Machine of it changes, or
//! what its guests are attached to.

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
use crate::client::{ApiError, GuardedClient, Remedy};
use crate::events::Events;
use crate::objects::{Meta, Network};
use crate::watch::Caches;
use crate::writes::{finalizer_added, finalizer_removed, merge};

/// What happens to a namespace in a row is looked at once: a fleet that is made costs a few looks a
/// second.
const DEBOUNCE: Duration = Duration::from_millis(250);

/// Namespaces whose networks have to be looked at. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Marked(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    namespaces: Mutex<BTreeSet<String>>,
    more: Notify,
}

impl Marked {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // A set is whole after each statement.
        let namespaces = self.0.namespaces.lock();
        namespaces.unwrap_or_else(PoisonError::into_inner)
    }

    pub fn mark(&self, namespace: &str) {
        if self.lock().insert(namespace.to_owned()) {
            self.0.more.notify_one();
        }
    }

    /// Marks every namespace that has a network.
    pub fn mark_all(&self, networks: &Cache<Network>) {
        for network in networks.all() {
            self.mark(network.namespace());
        }
    }

    /// Waits until a namespace is marked; takes all that are.
    async fn taken(&self) -> BTreeSet<String> {
        loop {
            // A mark that came before counts, too.
            self.0.more.notified().await;
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
    fn each(&self, visit: &mut dyn FnMut(&str, &str, &str));
}

/// Who uses what, in some namespaces.
#[derive(Debug, Default)]
struct Users {
    /// Machines whose block names the network, by `namespace/name`.
    named: BTreeMap<String, BTreeSet<String>>,
    /// Machines whose guest has the attachment, by `namespace/name`.
    attached: BTreeMap<String, BTreeSet<String>>,
}

impl Users {
    fn of(caches: &Caches, guests: &dyn GuestAttachments, namespaces: &BTreeSet<String>) -> Self {
        let mut users = Self::default();
        let looked_at = |namespace: &str| namespaces.contains(namespace);
        for machine in caches.machines.state() {
            let namespace = machine.namespace();
            for network in machine.networks() {
                if looked_at(namespace) {
                    let users = users.named.entry(format!("{namespace}/{network}"));
                    users.or_default().insert(machine.name().to_owned());
                }
            }
        }
        guests.each(&mut |namespace, machine, attachment| {
            if looked_at(namespace) {
                let users = users.attached.entry(attachment.to_owned());
                users.or_default().insert(machine.to_owned());
            }
        });
        users
    }

    /// The Machines that use a network.
    fn of_network(&self, network: &Network) -> Vec<String> {
        let namespace = network.namespace();
        let attachment = attachment_name(network.name(), &network.spec);
        let named = self.named.get(&format!("{namespace}/{}", network.name()));
        let attached = self.attached.get(&format!("{namespace}/{attachment}"));
        let users: BTreeSet<_> = named.into_iter().chain(attached).flatten().collect();
        users.into_iter().cloned().collect()
    }
}

/// What there is to do about a network.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Nothing,
    /// It is in use from now on.
    Hold,
    /// Nobody uses it any more.
    LetGo,
    /// Somebody deleted it, and it is in use.
    Tell(String),
}

fn decide(network: &Network, users: Vec<String>) -> Decision {
    match (is_held(network), network.is_deleting(), users.is_empty()) {
        // The API server takes no new finalizer of an object that is being deleted.
        (false, false, false) => Decision::Hold,
        (true, _, true) => Decision::LetGo,
        (true, true, false) => Decision::Tell(format!(
            "the deletion waits for the Machines that use this network: {}; delete them, or take it out of their spec.networks and restart them, and it goes by itself",
            name_list(users)
        )),
        (false, ..) | (true, false, false) => Decision::Nothing,
    }
}

fn is_held(network: &Network) -> bool {
    network.has_finalizer(names::FINALIZER_IN_USE)
}

/// What was done about a network last. All of it can be lost: that costs an event said again.
#[derive(Clone, Debug, Default)]
struct Done {
    /// The version that was changed: while the cache has it, it is behind.
    changed: Option<String>,
    told: Option<String>,
}

/// Holds networks and lets them go, for ever.
pub async fn hold(
    marked: Marked,
    caches: Caches,
    guests: Arc<dyn GuestAttachments>,
    api: GuardedClient,
    events: Events,
) -> Infallible {
    let mut holder = Holder {
        caches,
        guests,
        api,
        events,
        done: BTreeMap::new(),
    };
    let (mut delay, mut outage) = (RetryDelay::default(), Outage::default());
    loop {
        let namespaces = marked.taken().await;
        let failures = holder.look(&namespaces).await;
        if failures.is_empty() {
            outage.succeeded();
            continue;
        }
        for (namespace, error) in failures {
            if error.remedy() != Remedy::Reobserve && outage.failed(&error) {
                tracing::warn!(
                    error = error.message(),
                    namespace,
                    "a network was not changed, trying again"
                );
            }
            marked.mark(&namespace);
        }
        sleep(delay.after_failure()).await;
    }
}

struct Holder {
    caches: Caches,
    guests: Arc<dyn GuestAttachments>,
    api: GuardedClient,
    events: Events,
    /// By uid.
    done: BTreeMap<String, Done>,
}

impl Holder {
    /// Looks at the networks of some namespaces; gives those where that failed.
    async fn look(&mut self, namespaces: &BTreeSet<String>) -> Vec<(String, ApiError)> {
        if !self.api.may_write() {
            // Every network is looked at when this replica acts again.
            return Vec::new();
        }
        let mut networks = self.caches.networks.all();
        let uids: BTreeSet<_> = networks.iter().map(Meta::uid).collect();
        self.done.retain(|uid, _| uids.contains(uid.as_str()));
        networks.retain(|network| namespaces.contains(network.namespace()));
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
        let done = self.done.entry(network.uid().to_owned()).or_default();
        let body = match decision {
            Decision::Tell(message) => {
                if done.told.as_ref() != Some(&message) {
                    self.events.deletion_waits(network, &message);
                    done.told = Some(message);
                }
                return Ok(());
            }
            Decision::Nothing => return Ok(()),
            Decision::Hold | Decision::LetGo if done.changed == version => return Ok(()),
            Decision::Hold => finalizer_added(network, names::FINALIZER_IN_USE),
            Decision::LetGo => finalizer_removed(network, names::FINALIZER_IN_USE),
        };
        match merge::<Network>(&self.api, network.namespace(), network.name(), &body).await {
            Err(error) if !error.is_not_found() => return Err(error),
            Ok(_) | Err(_) => done.changed = version,
        }
        tracing::info!(
            network = network.name(),
            namespace = network.namespace(),
            "{}",
            if is_held(network) {
                "nothing uses the network any more"
            } else {
                "the network is in use"
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
    fn a_network_is_held_while_somebody_uses_it() {
        let ours: &[&str] = &["example.org/theirs", names::FINALIZER_IN_USE];
        let (theirs, none): (&[&str], &[&str]) = (&["example.org/theirs"], &[]);
        let told = "the deletion waits for the Machines that use this network: db, web; delete them, or take it out of their spec.networks and restart them, and it goes by itself";
        for (finalizers, deleting, used, expected) in [
            (none, false, false, Decision::Nothing),
            (none, false, true, Decision::Hold),
            (theirs, false, true, Decision::Hold),
            // Too late: it goes when the others let it.
            (theirs, true, true, Decision::Nothing),
            (theirs, true, false, Decision::Nothing),
            (ours, false, true, Decision::Nothing),
            (ours, false, false, Decision::LetGo),
            (ours, true, false, Decision::LetGo),
            (ours, true, true, Decision::Tell(told.to_owned())),
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
    fn an_event_has_room_for_the_longest_names() {
        let users = (10..30)
            .map(|number| format!("{number}{}", "m".repeat(61)))
            .collect();
        let Decision::Tell(message) = decide(&network(&[names::FINALIZER_IN_USE], true), users)
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
    fn users_are_those_who_name_it_and_those_whose_guests_are_on_it() {
        let mut users = Users::default();
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        users
            .named
            .insert("default/prod".into(), set(&["web", "db"]));
        users.named.insert("other/prod".into(), set(&["app"]));
        users
            .attached
            .insert("default/prod".into(), set(&["web", "old"]));
        users
            .attached
            .insert("default/theirs".into(), set(&["guest"]));
        let mut network = network(&[], false);
        assert_eq!(users.of_network(&network), ["db", "old", "web"]);
        network.spec.network_attachment_definition = Some("theirs".into());
        assert_eq!(users.of_network(&network), ["db", "guest", "web"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_marked_is_taken_once_and_together() {
        let marked = Marked::default();
        marked.mark("b");
        marked.mark("a");
        marked.mark("a");
        assert_eq!(
            marked.taken().await,
            BTreeSet::from(["a".into(), "b".into()])
        );
        let mut next = std::pin::pin!(marked.taken());
        assert!(futures::poll!(next.as_mut()).is_pending());
        marked.mark("c");
        assert_eq!(next.await, BTreeSet::from(["c".into()]));
    }
}
