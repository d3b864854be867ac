//! Whether a Machine gets what it asks for.

use std::sync::Arc;

use common::api::choice::Backend;
use common::api::normalized::Normalized;
use common::catalog::{Counted, Excess, Labels, Policy, QuotaRequest, Usage, amount, kept_disks};
use common::quantity::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Hold;
use super::held::SCHEDULED;
use super::shares::Grant;
use crate::address_index::key;
use crate::caches::Caches;
use crate::conditions::Fault;
use crate::machine::{CachedMachine, Machine};
use crate::objects::Meta as _;

/// Reason of the condition of a Machine that is held.
const QUOTA_EXCEEDED: &str = "QuotaExceeded";

/// Whether a Machine gets what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The Machine gets all of what it asks for.
    Granted,
    /// Others have the rest of the quota.
    Held(Hold),
    /// The labels of its namespace have not been reported yet.
    Unknown,
}

/// Decides about a Machine, and records what it was granted.
pub fn decide(caches: &Caches, this: &CachedMachine, machine: &Machine) -> Decision {
    let policies = policies_with_quota(caches);
    // What a Machine that is deleted asks for is not carried out.
    if policies.is_empty() || machine.is_deleting() {
        caches.quotas.shares().remove(this);
        return Decision::Granted;
    }
    let Some(namespace) = caches.namespaces.get("", this.namespace()) else {
        return Decision::Unknown;
    };
    let labels: Labels = namespace.labels();
    let policies: Vec<_> = policies
        .into_iter()
        .filter(|it| it.selects(&labels))
        .collect();
    let Some(block) = machine.desired().filter(|_| !policies.is_empty()) else {
        caches.quotas.shares().remove(this);
        return Decision::Granted;
    };

    let grant = Grant::of(block);
    let asked = grant.usage;
    let mut shares = caches.quotas.shares();
    // What it has is not taken from it. After a start of this program, that is what it asks for, unless its status says
    // that it was held.
    let granted = shares.granted.get(this.uid()).cloned();
    let was_held = || {
        let mut conditions = machine.status.conditions.iter();
        conditions.any(|it| it.kind == SCHEDULED && it.reason == QUOTA_EXCEEDED)
    };
    // A guest that is to have less has it only after a restart.
    let counted = caches.address_index.usage_of(this);
    let had = || {
        if was_held() {
            Grant::default()
        } else {
            let usage = asked.max(counted);
            let disks = grant.disks.clone();
            Grant { usage, disks }
        }
    };
    let had = granted.or(this.has_started.then(had));
    let has = had.as_ref().map(|had| had.usage);
    let excess = |others: Usage, asked: Usage, has: Usage| {
        let mut all = policies.iter();
        all.find_map(|policy| {
            policy
                .quota
                .excess(&policy.name, others, asked, has)
                .into_iter()
                .next()
        })
    };
    let first = if has.is_some_and(|has| asked.max(has) == has) {
        None
    } else {
        let had_disks = had.iter().flat_map(|had| &had.disks);
        let request = QuotaRequest {
            machine: key(this),
            backend: block.backend,
            disks: block.disks.iter().map(|disk| disk.name.as_str()).collect(),
            had: had_disks.map(|disk| &**disk).collect(),
        };
        let kept = kept(caches, &request);
        let returning = kept
            .returning
            .plus(returning_volumes(machine, block, &request));
        let machines = caches.machines_in(this.namespace());
        let (mut others, mut older) = (kept.others, vec![]);
        for other in machines.iter().filter(|other| other.uid() != this.uid()) {
            let usage = caches.address_index.usage_of(&**other);
            match shares.granted.get_mut(other.uid()) {
                // A Machine that has less now needs no more than that, and asks again for what it gave back.
                Some(granted) => {
                    granted.usage = granted.usage.min(usage);
                    others = others.plus(granted.usage);
                }
                None if other.has_started => others = others.plus(usage),
                None if has.is_none() && age(other) < age(this) => {
                    older.push((age(other), usage));
                }
                None => {}
            }
        }
        // Older ones come first, as far as there is room for them.
        older.sort_by_key(|(age, _)| *age);
        for (_, usage) in older {
            if excess(others, usage, Usage::default()).is_none() {
                others = others.plus(usage);
            }
        }
        excess(others, asked, has.unwrap_or_default().plus(returning))
    };
    let Some(excess) = first else {
        let usage = asked.max(counted.min(has.unwrap_or_default()));
        let grant = Grant { usage, ..grant };
        shares.granted.insert(this.uid().into(), grant);
        shares.release(this);
        return Decision::Granted;
    };
    shares.hold(this);
    Decision::Held(hold(&excess, has.is_some()))
}

/// What is not carried out of a Machine that asks for too much.
fn hold(excess: &Excess, has_something: bool) -> Hold {
    let keeps = if has_something {
        " and keeps what it has"
    } else {
        ""
    };
    let message = format!(
        "{}; this Machine asks for {}{keeps}: delete or shrink another Machine, delete disks that are kept, or ask the administrator for more; the Machine gets it then without another change",
        excess.detail, excess.asked
    );
    let fault = Fault::new(QUOTA_EXCEEDED, message);
    if has_something {
        Hold::Growth(fault)
    } else {
        Hold::New(fault)
    }
}

/// Creation time and uid.
fn age(machine: &CachedMachine) -> (Option<&Time>, &str) {
    (machine.created(), machine.uid())
}

/// The policies that have a quota, sorted by name.
pub(super) fn policies_with_quota(caches: &Caches) -> Vec<Arc<Policy>> {
    let mut policies = vec![];
    caches.policies.for_each_summary(|_, policy| {
        let policy = policy.iter().filter(|policy| policy.quota.is_set());
        policies.extend(policy.cloned());
    });
    policies.sort_by(|a, b| a.name.cmp(&b.name));
    policies
}

/// The disks that are kept in the namespace of a Machine.
fn kept(caches: &Caches, request: &QuotaRequest<'_>) -> Counted {
    let kept = caches.quotas.kept();
    let hosts = kept.hosts.values();
    caches
        .address_index
        .read_machines(|machines| kept_disks(machines, &kept.claims, hosts, request))
}

/// The kept volumes on the host of a Machine that it uses again. They are no longer among the kept disks, because its block
/// has them.
fn returning_volumes(machine: &Machine, block: &Normalized, request: &QuotaRequest<'_>) -> Usage {
    let status = &machine.status;
    let volumes = status.volumes.iter().chain(&status.kept_volumes);
    let returning = volumes.filter(|volume| {
        let disk = volume.name.as_str();
        request.disks.contains(&disk) && !request.had.contains(&disk)
    });
    let sizes = returning.filter_map(|volume| {
        let capacity: Bytes = volume.capacity.as_ref()?.parse().ok()?;
        Some(amount(capacity))
    });
    let is_on_host = block.backend == Backend::Libvirt;
    let sizes = sizes.filter(|_| is_on_host);
    Usage::of_storage(sizes.fold(0, u64::saturating_add))
}
