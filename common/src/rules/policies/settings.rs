//! What the policies of a namespace set for its Machines.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::api::choice::ReclaimPolicy;
use crate::bounds::POLICY_ITEMS_MAX;
use crate::catalog::{Catalog, Policy};
use crate::glob::Glob;
use crate::names::may_carry_annotation;
use crate::rules::rule::Settings;
use crate::violation::{Findings, Reference};

/// The policies of a namespace. If it is not known which ones hold, the namespace is reported as missing in the
/// catalog, and the caller must not answer.
pub(crate) fn policies_of(
    namespace: &str,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) -> Vec<Arc<Policy>> {
    catalog.policies(namespace).unwrap_or_else(|| {
        findings.miss(Reference::Namespace);
        Vec::new()
    })
}

/// The reclaim policy of disks that name none: that of the first policy that has one, else the setting.
pub(crate) fn default_reclaim_policy(
    policies: &[Arc<Policy>],
    settings: &Settings,
) -> ReclaimPolicy {
    let mut policies = policies.iter();
    let default = policies.find_map(|policy| policy.default_reclaim_policy);
    default.unwrap_or(settings.default_reclaim_policy)
}

/// The annotations that a guest gets from its Machine: keys that at least one policy lists and every policy with a list
/// allows, as patterns, sorted.
pub(crate) fn annotation_keys(policies: &[Arc<Policy>]) -> Vec<String> {
    let lists = policies.iter().filter_map(|it| it.annotations.as_ref());
    let lists: Vec<_> = lists.collect();
    let is_in_all = |key: &str| {
        let mut lists = lists.iter();
        may_carry_annotation(key) && lists.all(|list| list.iter().any(|it| it.includes(key)))
    };
    let keys = lists
        .iter()
        .copied()
        .flatten()
        .filter(|key| is_in_all(key.as_str()));
    let keys: BTreeSet<_> = keys.map(Glob::as_str).collect();
    let keys = keys.into_iter().map(str::to_owned);
    keys.take(POLICY_ITEMS_MAX).collect()
}
