//! What namespaces use of their quota, as metrics and in the status of MachinePolicies.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use common::api::machine_policy::{MachinePolicyStatus, NamespaceUse, QuotaUse};
use common::bounds::POLICY_ITEMS_MAX;
use common::catalog::{Policy, Quota, Resource, Usage, usage_of_namespace};
use common::names;
use common::quantity::Bytes;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource as _};
use metrics::gauge;
use serde_json::json;

use super::objects::PolicyObject;
use crate::caches::Caches;
use crate::client::{ApiError, GuardedClient};
use crate::metrics::COUNT_INTERVAL;
use crate::objects::Meta as _;

const USED: &str = "kubevirt_operator_quota_used";
const HARD: &str = "kubevirt_operator_quota_hard";

/// Registers the help text of each metric.
pub fn describe() {
    metrics::describe_gauge!(
        USED,
        "vCPUs, bytes of memory and bytes of storage that a namespace uses of its quota"
    );
    metrics::describe_gauge!(
        HARD,
        "vCPUs, bytes of memory and bytes of storage that MachinePolicies give a namespace"
    );
}

/// Every 5 s sets the gauges, and writes the status of MachinePolicies that have changed, for as long as the process
/// runs. Without policies nothing is counted.
pub async fn publish(caches: Caches, api: GuardedClient) -> Result<(), Infallible> {
    let mut ticks = tokio::time::interval(COUNT_INTERVAL);
    let mut published = Gauges::default();
    loop {
        ticks.tick().await;
        caches
            .quotas
            .retain(|uid| caches.machine_index.contains(uid));
        let uses = Uses::of(&caches);
        published.set(&uses.by_namespace);
        if !api.may_write() {
            continue;
        }
        for policy in caches.policies.all() {
            let status = uses.status(&policy);
            if status == policy.status {
                continue;
            }
            if let Err(error) = write(&api, &policy, &status).await {
                let name = policy.name();
                tracing::warn!(policy = name, %error, "the status of a policy was not written");
            }
        }
    }
}

async fn write(
    api: &GuardedClient,
    policy: &PolicyObject,
    status: &MachinePolicyStatus,
) -> Result<(), ApiError> {
    let body = json!({
        "apiVersion": PolicyObject::api_version(&()),
        "kind": PolicyObject::kind(&()),
        "metadata": {"name": policy.name(), "uid": policy.uid()},
        "status": status,
    });
    let policies: Api<PolicyObject> = Api::all(api.client());
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    let body = Patch::Apply(&body);
    api.write(policies.patch_status(policy.name(), &params, &body))
        .await?;
    Ok(())
}

/// What namespaces use.
#[derive(Debug, Default)]
struct Uses {
    /// Names of the namespaces that a policy selects, by name of the policy, sorted.
    selected: BTreeMap<String, Vec<Box<str>>>,
    /// Use and quota of each namespace with a quota.
    by_namespace: BTreeMap<Box<str>, (Usage, Quota)>,
}

impl Uses {
    fn of(caches: &Caches) -> Self {
        let mut policies: Vec<Arc<Policy>> = vec![];
        caches
            .policies
            .for_each_summary(|_, policy| policies.extend(policy.clone()));
        let mut uses = Self::default();
        if policies.is_empty() {
            return uses;
        }
        caches.namespaces.for_each_summary(|_, (name, labels)| {
            for policy in policies.iter().filter(|policy| policy.selects(labels)) {
                let selected = uses.selected.entry(policy.name.clone()).or_default();
                selected.push(name.clone());
                if policy.quota.is_set() {
                    let (_, quota) = uses.by_namespace.entry(name.clone()).or_default();
                    *quota = stricter(*quota, policy.quota);
                }
            }
        });
        uses.selected.values_mut().for_each(|names| names.sort());
        let kept = caches.quotas.kept();
        caches.address_index.read_machines(|machines| {
            for (namespace, (usage, _)) in &mut uses.by_namespace {
                let hosts = kept.hosts.values();
                *usage = usage_of_namespace(machines, &kept.claims, hosts, namespace);
            }
        });
        uses
    }

    /// The status of a policy.
    fn status(&self, policy: &PolicyObject) -> MachinePolicyStatus {
        let selected = self.selected.get(policy.name());
        let names = selected.map(Vec::as_slice).unwrap_or_default();
        let mut status = MachinePolicyStatus {
            selected_namespaces: u32::try_from(names.len()).ok(),
            ..MachinePolicyStatus::default()
        };
        if policy.spec.quota.is_none() {
            return status;
        }
        let mut highest = Usage::default();
        for name in names {
            // Without a limit in the quota nothing is counted.
            let Some((usage, _)) = self.by_namespace.get(name) else {
                continue;
            };
            highest = highest.max(*usage);
            let QuotaUse {
                cpu,
                memory,
                storage,
            } = amounts(*usage);
            if status.namespaces.len() < POLICY_ITEMS_MAX {
                status.namespaces.push(NamespaceUse {
                    name: name.to_string(),
                    cpu,
                    memory,
                    storage,
                });
            }
        }
        status.highest = Some(amounts(highest));
        status
    }
}

fn amounts(usage: Usage) -> QuotaUse {
    QuotaUse {
        cpu: u32::try_from(usage.cpu).unwrap_or(u32::MAX),
        memory: Bytes::new(usage.memory.into()),
        storage: Bytes::new(usage.storage.into()),
    }
}

/// Both quotas hold.
fn stricter(a: Quota, b: Quota) -> Quota {
    let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
    Quota {
        cpu: least(a.cpu, b.cpu),
        memory: least(a.memory, b.memory),
        storage: least(a.storage, b.storage),
    }
}

/// Every series that was ever published, by metric, namespace and resource. A series cannot be removed: one that does
/// not exist any more is not a number.
#[derive(Debug, Default)]
struct Gauges(BTreeMap<(&'static str, Box<str>, &'static str), f64>);

impl Gauges {
    fn set(&mut self, uses: &BTreeMap<Box<str>, (Usage, Quota)>) {
        self.0.values_mut().for_each(|value| *value = f64::NAN);
        for (namespace, (usage, quota)) in uses {
            for resource in Resource::ALL {
                let name = resource.as_str();
                let amount = number(resource.used(*usage));
                self.0.insert((USED, namespace.clone(), name), amount);
                if let Some(limit) = resource.limit(quota) {
                    self.0
                        .insert((HARD, namespace.clone(), name), number(limit));
                }
            }
        }
        for ((metric, namespace, resource), value) in &self.0 {
            let namespace = namespace.to_string();
            gauge!(*metric, "namespace" => namespace, "resource" => *resource).set(*value);
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a graph of 2^53 bytes and more needs no single bytes"
)]
fn number(amount: u64) -> f64 {
    amount as f64
}
