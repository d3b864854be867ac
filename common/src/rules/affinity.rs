//! Nodes and other guests that a Machine on KubeVirt is placed by. KubeVirt refuses what Kubernetes refuses of a pod
//! (`ValidatePodAffinity` and `validateTopologySpreadConstraints` of `pkg/apis/core/validation`).

use crate::api::choice::{Choice, NodeOperator, UnsatisfiableAction};
use crate::api::machine::{
    Affinity, NodeRequirement, NodeTerm, Placement, PodAffinity, PodSelector, PodTerm,
    TopologySpreadConstraint,
};
use crate::bounds::SPREAD_COUNT_MAX;
use crate::code::Code;
use crate::normalize::{Leaf, Merged};
use crate::violation::{Findings, Kind, Location, Violation};
use crate::words::quoted_list;

use super::form;
use super::rule::{Check, Parts, Subject, rules};

rules! {
    "machine" Check::Part(affinity), on MACHINES_AND_TEMPLATES, Always, and [InvalidLabel] {
        Refuse InvalidAffinity = "A term of an affinity lacks a field, or its fields contradict each other."
            because "KubeVirt refuses the virtual machine, as Kubernetes would refuse the pod of the guest."
            fix "Correct the field as the message says."
            crd Some,
    }
    "machine" Check::Part(spread), on MACHINES_AND_TEMPLATES, Always, and [InvalidLabel, InvalidAffinity] {
        Refuse InvalidTopologySpread = "A constraint on the spread over nodes lacks a field, its fields contradict each other, or it repeats another one."
            because "KubeVirt refuses the virtual machine, as Kubernetes would refuse the pod of the guest."
            fix "Correct the field as the message says."
            crd Some,
    }
}

/// Largest weight of a preference.
const WEIGHT_MAX: i64 = 100;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// The affinity of the Machine, else that of the template: as a whole.
pub(super) fn requested_affinity<'a>(merged: &Merged<'a>) -> Leaf<&'a Affinity> {
    let affinity = |placement: &'a Placement| placement.affinity.as_ref();
    merged.pick(
        "placement.affinity",
        |spec| spec.placement.as_ref().and_then(affinity),
        |content| content.placement.as_ref().and_then(affinity),
    )
}

/// The constraints on the spread of the Machine, else those of the template: as a whole.
pub(super) fn requested_spread<'a>(merged: &Merged<'a>) -> Leaf<&'a [TopologySpreadConstraint]> {
    let spread = |placement: &'a Placement| placement.topology_spread_constraints.as_deref();
    merged.pick(
        "placement.topologySpreadConstraints",
        |spec| spec.placement.as_ref().and_then(spread),
        |content| content.placement.as_ref().and_then(spread),
    )
}

/// Rule [`Code::InvalidAffinity`].
fn affinity(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let leaf = requested_affinity(subject.merged);
    let Some(affinity) = leaf.value else { return };
    let at = Location::from(leaf.path);
    let mut terms = Terms {
        code: Code::InvalidAffinity,
        findings,
    };
    terms.nodes(affinity, &at.clone().member("nodeAffinity"));
    let pods = [
        ("podAffinity", &affinity.pod_affinity),
        ("podAntiAffinity", &affinity.pod_anti_affinity),
    ];
    for (field, pods) in pods {
        if let Some(pods) = pods {
            terms.pods(pods, &at.clone().member(field));
        }
    }
    parts.affinity = Some(affinity.clone()).filter(|it| *it != Affinity::default());
}

/// Rule [`Code::InvalidTopologySpread`].
fn spread(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let leaf = requested_spread(subject.merged);
    let mut terms = Terms {
        code: Code::InvalidTopologySpread,
        findings,
    };
    let list = Location::from(leaf.path);
    let mut known = vec![];
    for (index, constraint) in leaf.value.into_iter().flatten().enumerate() {
        let at = item(&list, index);
        let action = terms.constraint(constraint, &at);
        let key = constraint.topology_key.as_deref();
        if let Some(pair) = key.filter(|key| !key.is_empty()).zip(action) {
            terms.repeated(pair, &at, &known);
            known.push((index, pair));
        }
    }
    parts.spread = leaf.value.unwrap_or_default().to_vec();
}

fn item(list: &Location, index: usize) -> Location {
    list.clone().key(&index.to_string())
}

/// Adds the faults of terms, with a code.
struct Terms<'f> {
    code: Code,
    findings: &'f mut Findings,
}

impl Terms<'_> {
    fn deny(&mut self, at: Location, kind: Kind, detail: impl Into<String>) {
        let fault = Violation::new(at, self.code, kind, detail.into());
        self.findings.deny(fault);
    }

    fn nodes(&mut self, affinity: &Affinity, at: &Location) {
        let Some(nodes) = &affinity.node_affinity else {
            return;
        };
        if let Some(required) = &nodes.required_during_scheduling_ignored_during_execution {
            let terms = required.node_selector_terms.as_deref().unwrap_or_default();
            let list = at.clone().member(REQUIRED).member("nodeSelectorTerms");
            if terms.is_empty() {
                let detail = "give at least one term";
                self.deny(list.clone(), Kind::Required, detail);
            }
            for (index, term) in terms.iter().enumerate() {
                self.node_term(term, &item(&list, index));
            }
        }
        let preferred = &nodes.preferred_during_scheduling_ignored_during_execution;
        let list = at.clone().member(PREFERRED);
        for (index, preferred) in preferred.iter().flatten().enumerate() {
            let at = item(&list, index);
            self.weight(preferred.weight, &at);
            let preference = preferred.preference.clone().unwrap_or_default();
            self.node_term(&preference, &at.member("preference"));
        }
    }

    /// A term without requirements selects no node.
    fn node_term(&mut self, term: &NodeTerm, at: &Location) {
        let list = at.clone().member("matchExpressions");
        let requirements = term.match_expressions.as_deref().unwrap_or_default();
        if requirements.is_empty() {
            let detail = "give at least one requirement; a term without any selects no node";
            self.deny(list.clone(), Kind::Required, detail);
        }
        for (index, requirement) in requirements.iter().enumerate() {
            self.node_requirement(requirement, &item(&list, index));
        }
    }

    fn node_requirement(&mut self, requirement: &NodeRequirement, at: &Location) {
        if self.findings.skips() {
            return;
        }
        let NodeRequirement {
            key,
            operator,
            values,
        } = requirement;
        self.label_key(key.as_deref(), &at.clone().member("key"));
        let operator: Option<NodeOperator> = self.choice(operator.as_deref(), at, "operator");
        let count = values.iter().flatten().count();
        let list = at.clone().member("values");
        match operator {
            Some(NodeOperator::In | NodeOperator::NotIn) => self.some_values(count, list),
            Some(NodeOperator::Exists | NodeOperator::DoesNotExist) => self.no_values(count, list),
            Some(NodeOperator::Gt | NodeOperator::Lt) => {
                let mut numbers = values.iter().flatten().map(|text| text.parse::<i64>());
                if count != 1 || !numbers.all(|number| number.is_ok()) {
                    let detail = "Gt and Lt compare with one whole number; give exactly one";
                    self.deny(list, Kind::Invalid, detail);
                }
                return;
            }
            None => {}
        }
        self.values(values.as_deref(), &at.clone().member("values"));
    }

    fn pods(&mut self, pods: &PodAffinity, at: &Location) {
        let list = at.clone().member(REQUIRED);
        let required = pods
            .required_during_scheduling_ignored_during_execution
            .iter();
        for (index, term) in required.flatten().enumerate() {
            self.pod_term(term, &item(&list, index));
        }
        let list = at.clone().member(PREFERRED);
        let preferred = pods
            .preferred_during_scheduling_ignored_during_execution
            .iter();
        for (index, preferred) in preferred.flatten().enumerate() {
            let at = item(&list, index);
            self.weight(preferred.weight, &at);
            let term = preferred.pod_affinity_term.clone().unwrap_or_default();
            self.pod_term(&term, &at.member("podAffinityTerm"));
        }
    }

    fn pod_term(&mut self, term: &PodTerm, at: &Location) {
        self.selector(term.label_selector.as_ref(), at);
        self.label_key(
            term.topology_key.as_deref(),
            &at.clone().member("topologyKey"),
        );
    }

    /// Returns what is done if no place fits.
    fn constraint(
        &mut self,
        constraint: &TopologySpreadConstraint,
        at: &Location,
    ) -> Option<UnsatisfiableAction> {
        let TopologySpreadConstraint {
            label_selector,
            max_skew,
            min_domains,
            topology_key,
            when_unsatisfiable,
        } = constraint;
        self.selector(label_selector.as_ref(), at);
        self.label_key(topology_key.as_deref(), &at.clone().member("topologyKey"));
        let action: Option<UnsatisfiableAction> =
            self.choice(when_unsatisfiable.as_deref(), at, "whenUnsatisfiable");
        let skew = at.clone().member("maxSkew");
        match max_skew {
            None => self.deny(
                skew,
                Kind::Required,
                "say by how many pods places may differ",
            ),
            Some(count) => self.spread_count(*count, skew),
        }
        let domains = at.clone().member("minDomains");
        if let Some(count) = min_domains {
            self.spread_count(*count, domains.clone());
            if action == Some(UnsatisfiableAction::ScheduleAnyway) {
                let detail =
                    "needs 'whenUnsatisfiable: DoNotSchedule'; set that, or drop minDomains";
                self.deny(domains, Kind::Invalid, detail);
            }
        }
        action
    }

    fn spread_count(&mut self, count: i64, at: Location) {
        if !(1..=i64::from(SPREAD_COUNT_MAX)).contains(&count) {
            let detail = format!("must be from 1 to {SPREAD_COUNT_MAX}");
            let fault = Violation::new(at, self.code, Kind::Invalid, detail);
            self.findings.deny(fault.value(count));
        }
    }

    /// Kubernetes takes one constraint for each pair of key and action.
    fn repeated(
        &mut self,
        pair: (&str, UnsatisfiableAction),
        at: &Location,
        known: &[(usize, (&str, UnsatisfiableAction))],
    ) {
        let Some((other, _)) = known.iter().find(|(_, it)| *it == pair) else {
            return;
        };
        let (key, action) = pair;
        let detail = format!(
            "topologySpreadConstraints[{other}] has this topologyKey with 'whenUnsatisfiable: {}', too; remove one of the two, or change its topologyKey or whenUnsatisfiable",
            action.as_str()
        );
        let at = at.clone().member("topologyKey");
        let fault = Violation::new(at, self.code, Kind::Duplicate, detail).text(key);
        // The index of the other constraint changes with the order of the list.
        let identity = format!("another constraint has {key} with {}", action.as_str());
        self.findings.deny(fault.known_as(identity));
    }

    fn weight(&mut self, weight: Option<i64>, at: &Location) {
        let at = at.clone().member("weight");
        match weight {
            None => self.deny(at, Kind::Required, "give a weight from 1 to 100"),
            Some(1..=WEIGHT_MAX) => {}
            Some(_) => self.deny(at, Kind::Invalid, "must be from 1 to 100"),
        }
    }

    /// A selector that is missing selects no pod, and an empty one every pod of the namespace.
    fn selector(&mut self, selector: Option<&PodSelector>, at: &Location) {
        let at = at.clone().member("labelSelector");
        let Some(selector) = selector else {
            let detail = "select pods by their labels, or write {} for all of the namespace";
            return self.deny(at, Kind::Required, detail);
        };
        let labels = at.clone().member("matchLabels");
        form::labels(
            labels,
            selector.match_labels.iter().flatten(),
            self.findings,
        );
        let list = at.member("matchExpressions");
        for (index, requirement) in selector.match_expressions.iter().flatten().enumerate() {
            if self.findings.skips() {
                return;
            }
            form::requirement(requirement, &item(&list, index), self.code, self.findings);
        }
    }

    fn some_values(&mut self, count: usize, list: Location) {
        if count == 0 {
            let detail = "give the values that the label is compared with";
            self.deny(list, Kind::Required, detail);
        }
    }

    fn no_values(&mut self, count: usize, list: Location) {
        if count > 0 {
            let detail = "Exists and DoesNotExist look for the key only; remove the values";
            self.deny(list, Kind::Forbidden, detail);
        }
    }

    fn values(&mut self, values: Option<&[String]>, list: &Location) {
        for (index, value) in values.into_iter().flatten().enumerate() {
            form::label_value(item(list, index), value, self.findings);
        }
    }

    fn label_key(&mut self, key: Option<&str>, at: &Location) {
        match key {
            None | Some("") => self.deny(at.clone(), Kind::Required, "name the key of a label"),
            Some(key) => form::label_key(at.clone(), key, self.findings),
        }
    }

    fn choice<C: Choice>(
        &mut self,
        text: Option<&str>,
        at: &Location,
        field: &'static str,
    ) -> Option<C> {
        let at = at.clone().member(field);
        match text {
            None | Some("") => {
                let names = quoted_list(C::names());
                let detail = format!("supported values: {names}");
                self.deny(at, Kind::Required, detail);
                None
            }
            Some(text) => {
                let parsed = C::parse(text);
                if parsed.is_none() {
                    self.findings
                        .deny(form::unsupported::<C>(at, text, self.code));
                }
                parsed
            }
        }
    }
}
