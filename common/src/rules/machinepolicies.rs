//! MachinePolicies themselves. What they allow is checked by the family `policies`.

use crate::api::choice::{Backend, Choice as _, ReclaimPolicy};
use crate::api::machine_policy::{
    MachineLimits, MachinePolicySpec, NamespaceQuota, NamespaceSelector,
};
use crate::bounds::{
    INTERFACE_NAME_MAX, LABEL_KEY_MAX, NAME_MAX, OBJECT_NAME_MAX, OVERRIDE_PATH_MAX, VLAN_MAX,
    VLAN_MIN,
};
use crate::catalog::vlan_range;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::image_source::redacted;
use crate::names::may_carry_annotation;
use crate::normalize::Leaf;
use crate::quantity::Bytes;
use crate::url_prefix::UrlPrefix;
use crate::violation::{Findings, Kind, Location, Violation};

use super::rule::{Check, rules};
use super::{form, quantities};

rules! {
    "machinepolicies" Check::MachinePolicy(selector), on POLICIES, Always, and [InvalidLabel] {
        Refuse NamespaceSelectorRequired = "A MachinePolicy does not say which namespaces it holds for."
            because "A policy for every namespace should be written as such, and not come from a field that was forgotten."
            fix "Select namespaces by their labels, or write `namespaceSelector: {}` for all of them."
            crd All,
        Refuse InvalidRequirement = "A requirement of a selector lacks its key or operator, or its values do not fit the operator."
            because "It cannot be said which namespaces it selects."
            fix "Give `key`, `operator` and, with `In` and `NotIn` only, `values`."
            crd Some,
    }
    "machinepolicies" Check::MachinePolicy(backends), on POLICIES, Always, and [UnsupportedBackend] {}
    "machinepolicies" Check::MachinePolicy(reclaim_policies), on POLICIES, Always, and [UnsupportedReclaimPolicy] {
        Refuse DefaultNotAllowed = "The default reclaim policy is not one of the allowed ones."
            because "Every disk that names no reclaim policy would be refused."
            fix "Allow the default, or take another one."
            crd Nothing,
    }
    "machinepolicies" Check::MachinePolicy(patterns), on POLICIES, Always {
        Refuse InvalidPattern = "A pattern matches no name."
            because "It would allow nothing, and its author expects that it allows something."
            fix "Write the name as it is, with `*` for any characters."
            crd Some,
    }
    "machinepolicies" Check::MachinePolicy(overrides), on POLICIES, Always {
        Refuse InvalidOverridePath = "A text is not the path of a field of a VirtualMachine that a Machine can override."
            because "It would allow nothing, and its author expects that it allows something."
            fix "Write the path from `spec` on, such as `spec.template.spec.domain.ioThreadsPolicy`."
            crd All,
    }
    "machinepolicies" Check::MachinePolicy(annotations), on POLICIES, Always {
        Refuse InvalidAnnotationKey = "A text is neither the key of an annotation nor a pattern for keys of one domain."
            because "It would allow nothing, or annotations of domains that its author does not name."
            fix "Write the key as it is, or its domain and `*`, such as `example.com/*`."
            crd Some,
        Refuse AnnotationNotCarried = "Guests may not have an annotation on which Kubernetes, KubeVirt, a network of pods, a container runtime or this operator acts."
            because "Such an annotation changes the pod of the guest: a hook sidecar runs an image of its author beside it, and a network annotation puts it on another network."
            fix "Take the key out of the list; networks are those of `spec.networks`."
            crd Nothing,
    }
    "machinepolicies" Check::MachinePolicy(bridges), on POLICIES, Always, and [InvalidPattern] {
        Refuse BridgeNameRequired = "An item of `networks.bridges` names no bridge."
            because "VLANs are those of a bridge."
            fix "Name the bridge, or write `*` for all bridges."
            crd All,
        Refuse InvalidVlanRange = "A text is neither a VLAN tag nor a range of tags."
            because "IEEE 802.1Q has the tags from 1 to 4094."
            fix "Write a tag such as `\"300\"` or a range such as `\"100-199\"`; for untagged frames an item of the bridge with `vlans: []`."
            crd Some,
    }
    "machinepolicies" Check::MachinePolicy(hosts), on POLICIES, Always, and [InvalidLabel] {}
    "machinepolicies" Check::MachinePolicy(sources), on POLICIES, Always {
        Refuse InvalidUrlPrefix = "A text is not the beginning of URLs of images."
            because "It would allow no image, or others than its author means."
            fix "Write scheme, host and path, such as `https://images.example.com/os/`."
            crd Some,
    }
    "machinepolicies" Check::MachinePolicy(limits), on POLICIES, Always, and [InvalidQuantity] {
        Refuse InvalidLimit = "A limit is negative."
            because "No Machine has less than nothing."
            fix "Write 0 or more, or leave the limit out."
            crd All,
    }
}

/// Rules [`Code::NamespaceSelectorRequired`], [`Code::InvalidRequirement`] and [`Code::InvalidLabel`].
fn selector(spec: &MachinePolicySpec, findings: &mut Findings) {
    let path = FieldPath::field("namespaceSelector");
    let Some(selector) = &spec.namespace_selector else {
        let detail = "select namespaces by their labels, or write {} for all of them";
        let code = Code::NamespaceSelectorRequired;
        findings.deny(Violation::new(path, code, Kind::Required, detail));
        return;
    };
    let NamespaceSelector {
        match_labels,
        match_expressions,
    } = selector;
    let labels = FieldPath::field("namespaceSelector.matchLabels");
    form::labels(labels, match_labels.iter().flatten(), findings);
    for (index, item) in match_expressions.iter().flatten().enumerate() {
        let at = FieldPath::item("namespaceSelector.matchExpressions", index, "");
        form::requirement(item, &at.into(), Code::InvalidRequirement, findings);
    }
}

/// Rule [`Code::UnsupportedBackend`].
fn backends(spec: &MachinePolicySpec, findings: &mut Findings) {
    let path = FieldPath::field("backends");
    for (index, text) in spec.backends.iter().flatten().enumerate() {
        if Backend::parse(text).is_none() {
            let code = Code::UnsupportedBackend;
            findings.deny(form::unsupported::<Backend>(
                path.element(index),
                text,
                code,
            ));
        }
    }
}

/// Rules [`Code::UnsupportedReclaimPolicy`] and [`Code::DefaultNotAllowed`].
fn reclaim_policies(spec: &MachinePolicySpec, findings: &mut Findings) {
    let Some(policies) = &spec.reclaim_policies else {
        return;
    };
    let (list, default) = (
        FieldPath::field("reclaimPolicies.allow"),
        FieldPath::field("reclaimPolicies.default"),
    );
    let allowed = policies.allow.iter().flatten().enumerate();
    let named = allowed.map(|(index, text)| (list.element(index), text));
    for (path, text) in named.chain(policies.default.iter().map(|text| (default, text))) {
        if ReclaimPolicy::parse(text).is_none() {
            let code = Code::UnsupportedReclaimPolicy;
            findings.deny(form::unsupported::<ReclaimPolicy>(path, text, code));
        }
    }
    if let (Some(allowed), Some(text)) = (&policies.allow, &policies.default)
        && ReclaimPolicy::parse(text).is_some()
        && !allowed.contains(text)
    {
        let detail = "is not in reclaimPolicies.allow; allow it, or take another one";
        let fault = Violation::new(default, Code::DefaultNotAllowed, Kind::Invalid, detail);
        findings.deny(fault.text(text));
    }
}

/// Rule [`Code::InvalidPattern`] for names of templates, storage classes, images, volumes, devices and PriorityClasses, and for keys
/// of taints.
fn patterns(spec: &MachinePolicySpec, findings: &mut Findings) {
    let templates = spec.templates.as_ref().and_then(|it| it.allow.as_ref());
    let classes = spec
        .storage_classes
        .as_ref()
        .and_then(|it| it.allow.as_ref());
    let names = spec.images.as_ref().and_then(|it| it.names.as_ref());
    let volumes = spec.images.as_ref().and_then(|it| it.volumes.as_ref());
    let hardware = spec.hardware.as_ref();
    let devices = hardware.and_then(|it| it.devices.as_ref());
    let priorities = hardware.and_then(|it| it.priority_classes.as_ref());
    let placement = spec.placement.as_ref();
    let taints = placement.and_then(|it| it.tolerations.as_ref());
    for (field, texts, names) in [
        ("hardware.devices", devices, Names::RESOURCES),
        ("hardware.priorityClasses", priorities, Names::OBJECTS),
        ("placement.tolerations", taints, Names::RESOURCES),
        ("templates.allow", templates, Names::TEMPLATES),
        ("storageClasses.allow", classes, Names::OBJECTS),
        ("images.names", names, Names::OBJECTS),
        ("images.volumes", volumes, Names::VOLUMES),
    ] {
        for (index, text) in texts.into_iter().flatten().enumerate() {
            let path = FieldPath::field(field).element(index);
            names.check(Location::from(path), text, findings);
        }
    }
}

/// Rule [`Code::InvalidOverridePath`].
fn overrides(spec: &MachinePolicySpec, findings: &mut Findings) {
    let hardware = spec.hardware.as_ref();
    let paths = hardware.and_then(|hardware| hardware.overrides.as_ref());
    let list = FieldPath::field("hardware.overrides");
    for (index, text) in paths.into_iter().flatten().enumerate() {
        let mut fields = text.split('.');
        let is_field = |field: &str| {
            !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let is_path = fields.next() == Some("spec") && fields.clone().count() > 0;
        if !is_path || !fields.all(is_field) || text.len() > OVERRIDE_PATH_MAX {
            let detail = "must be the path of a field of a VirtualMachine from spec on, such as 'spec.template.spec.domain.ioThreadsPolicy'";
            let code = Code::InvalidOverridePath;
            let fault = Violation::new(list.element(index), code, Kind::Invalid, detail);
            findings.deny(fault.text(text));
        }
    }
}

/// Rules [`Code::InvalidAnnotationKey`] and [`Code::AnnotationNotCarried`].
fn annotations(spec: &MachinePolicySpec, findings: &mut Findings) {
    let keys = spec.annotations.as_ref().and_then(|it| it.allow.as_ref());
    let list = FieldPath::field("annotations.allow");
    for (index, text) in keys.into_iter().flatten().enumerate() {
        let (code, kind, detail) = if !is_key_pattern(text) {
            let detail = "must be the key of an annotation, such as 'example.com/team', in which '*' behind the '/' stands for any characters";
            (Code::InvalidAnnotationKey, Kind::Invalid, detail)
        } else if !may_carry_annotation(text) {
            let detail = "the cluster or this operator acts on annotations of this key, so guests never have it from a Machine; take it out of the list";
            (Code::AnnotationNotCarried, Kind::Forbidden, detail)
        } else {
            continue;
        };
        let fault = Violation::new(list.element(index), code, kind, detail);
        findings.deny(fault.text(text));
    }
}

/// Whether some key of an annotation matches the pattern, and all of them have one domain.
fn is_key_pattern(text: &str) -> bool {
    let (prefix, name) = text
        .split_once('/')
        .map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let may_have_stars = prefix.is_some();
    let has =
        |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c) || c == '*' && may_have_stars;
    (1..=NAME_MAX).contains(&name.len())
        && name.chars().all(has)
        && prefix.is_none_or(form::is_object_name)
}

/// Names that a pattern is for.
struct Names {
    /// Longest name in bytes.
    max: usize,
    characters: &'static str,
    has: fn(char) -> bool,
}

impl Names {
    const TEMPLATES: Self = Self {
        max: NAME_MAX,
        ..Self::OBJECTS
    };
    const OBJECTS: Self = Self {
        max: OBJECT_NAME_MAX,
        characters: "lower-case letters, digits, '-', '.' and '*'",
        has: |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.',
    };
    const VOLUMES: Self = Self {
        max: OBJECT_NAME_MAX,
        characters: "any without '/' and control characters",
        has: |c| !c.is_control() && c != '/',
    };
    const RESOURCES: Self = Self {
        max: LABEL_KEY_MAX,
        characters: "letters, digits, '-', '_', '.', '/' and '*'",
        has: |c| c.is_ascii_alphanumeric() || "-_./".contains(c),
    };
    const BRIDGES: Self = Self {
        max: INTERFACE_NAME_MAX,
        characters: "any without blanks, '/' and ':'",
        has: |c| !c.is_whitespace() && c != '/' && c != ':',
    };

    /// Rule [`Code::InvalidPattern`]. A pattern that is longer than every name is refused, too, so that matching
    /// stays cheap.
    fn check(&self, location: Location, text: &str, findings: &mut Findings) {
        let is_pattern =
            (1..=self.max).contains(&text.len()) && text.chars().all(|c| c == '*' || (self.has)(c));
        if !is_pattern {
            let detail = format!(
                "must be a pattern of 1 to {} bytes: {}",
                self.max, self.characters
            );
            let code = Code::InvalidPattern;
            findings.deny(Violation::new(location, code, Kind::Invalid, detail).text(text));
        }
    }
}

/// Rules [`Code::BridgeNameRequired`], [`Code::InvalidPattern`] and [`Code::InvalidVlanRange`].
fn bridges(spec: &MachinePolicySpec, findings: &mut Findings) {
    let bridges = spec.networks.as_ref().and_then(|it| it.bridges.as_ref());
    for (index, bridge) in bridges.into_iter().flatten().enumerate() {
        let at = |field| Location::from(FieldPath::item("networks.bridges", index, field));
        if let Some(name) = &bridge.name {
            Names::BRIDGES.check(at("name"), name, findings);
        } else {
            let detail = "name the bridge, or write * for all bridges";
            let code = Code::BridgeNameRequired;
            findings.deny(Violation::new(at("name"), code, Kind::Required, detail));
        }
        for (index, text) in bridge.vlans.iter().flatten().enumerate() {
            if vlan_range(text).is_none() {
                let location = at("vlans").key(&index.to_string());
                let detail = format!(
                    "must be a tag from {VLAN_MIN} to {VLAN_MAX} such as '300', or a range such as '100-199'"
                );
                let code = Code::InvalidVlanRange;
                findings.deny(Violation::new(location, code, Kind::Invalid, detail).text(text));
            }
        }
    }
}

/// Rule [`Code::InvalidLabel`] for the labels of LibvirtHosts.
fn hosts(spec: &MachinePolicySpec, findings: &mut Findings) {
    let labels = spec.libvirt_hosts.as_ref();
    let labels = labels.and_then(|hosts| hosts.match_labels.as_ref());
    let path = FieldPath::field("libvirtHosts.matchLabels");
    form::labels(path, labels.into_iter().flatten(), findings);
}

/// Rule [`Code::InvalidUrlPrefix`].
fn sources(spec: &MachinePolicySpec, findings: &mut Findings) {
    let sources = spec.images.as_ref().and_then(|it| it.sources.as_ref());
    let path = FieldPath::field("images.sources");
    for (index, text) in sources.into_iter().flatten().enumerate() {
        if let Err(error) = text.parse::<UrlPrefix>() {
            let (code, detail) = (Code::InvalidUrlPrefix, error.to_string());
            let fault = Violation::new(path.element(index), code, Kind::Invalid, detail);
            findings.deny(fault.text(&redacted(text)));
        }
    }
}

/// Rules [`Code::InvalidLimit`] and [`Code::InvalidQuantity`].
fn limits(spec: &MachinePolicySpec, findings: &mut Findings) {
    let (no_limits, no_quota) = (MachineLimits::default(), NamespaceQuota::default());
    let limits = spec.limits.as_ref().unwrap_or(&no_limits);
    let quota = spec.quota.as_ref().unwrap_or(&no_quota);
    for (field, count) in [
        ("limits.cpu", limits.cpu),
        ("limits.disks", limits.disks),
        ("limits.networks", limits.networks),
        ("quota.cpu", quota.cpu),
    ] {
        if let Some(count) = count.filter(|count| *count < 0) {
            let detail = "must be 0 or more; leave it out for no limit";
            let path = FieldPath::field(field);
            let fault = Violation::new(path, Code::InvalidLimit, Kind::Invalid, detail);
            findings.deny(fault.value(count));
        }
    }
    for (field, text) in [
        ("limits.memory", &limits.memory),
        ("limits.disk", &limits.disk),
        ("quota.memory", &quota.memory),
        ("quota.storage", &quota.storage),
    ] {
        let leaf = Leaf {
            value: text.as_deref(),
            path: FieldPath::field(field),
        };
        quantities::quantity::<Bytes>(leaf, "64Gi", quantities::corrected, findings);
    }
}
