//! Rules about the form of a single value, used by every family.

use std::collections::BTreeMap;

use super::name_form::NameForm;
use super::rule::{Check, rules};
use crate::api::choice::{Choice, SelectorOperator};
use crate::api::machine_policy::LabelRequirement;
use crate::bounds::{INTERFACE_NAME_MAX, NAME_MAX, OBJECT_NAME_MAX};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::Leaf;
use crate::violation::{Findings, Kind, Location, Violation};
use crate::words::{nearest, quoted_list};

rules! {
    "form" Check::Decode, on EVERY_KIND, Always {
        Refuse Unreadable = "The object is not JSON, or is nested deeper than any object can be."
            because "Nothing in it can be checked, and no machine can be made from it."
            fix "Send valid JSON or YAML."
            crd Nothing scope FieldsBelow,
        Refuse WrongType = "A value has the wrong JSON type."
            because "The API server would refuse it later, alone and without the other faults."
            fix "Write the value in the type that the message names; numbers that are names or sizes need quotes."
            crd All scope FieldsBelow,
        Refuse SpecRequired = "The object has no spec."
            because "An object without a spec has no desired state."
            fix "Add a spec, if only `template: small`."
            crd All scope FieldsBelow,
    }
    "form" Check::Value, on EVERY_KIND, Always {
        Refuse InvalidObjectName = "The name of another object cannot be the name of any."
            because "No object can have this name, so the reference could never be satisfied."
            fix "Write the name as `kubectl get` shows it; pools and networks of libvirt as `virsh pool-list` and `virsh net-list` do."
            crd Some,
        Refuse InvalidLabel = "A label of a selector cannot be on any object."
            because "No node, host or volume can have such a label, so none would ever match."
            fix "Use a key and a value that `kubectl label` accepts."
            crd Some,
    }
}

/// The value of a closed choice, or its default. Violations have `code`.
pub(crate) fn choice<C: Choice>(
    leaf: Leaf<&str>,
    default: C,
    code: Code,
    findings: &mut Findings,
) -> Option<C> {
    match leaf.value {
        None => Some(default),
        Some(_) => given_choice(leaf, code, findings),
    }
}

/// The value of a closed choice without a default; `None`: there is none, or it is a violation with `code`.
pub(crate) fn given_choice<C: Choice>(
    leaf: Leaf<&str>,
    code: Code,
    findings: &mut Findings,
) -> Option<C> {
    let text = leaf.value?;
    let parsed = C::parse(text);
    if parsed.is_none() {
        findings.deny(unsupported::<C>(leaf.path, text, code));
    }
    parsed
}

/// Violation for a text that is not in a closed choice.
pub(crate) fn unsupported<C: Choice>(
    path: impl Into<Location>,
    text: &str,
    code: Code,
) -> Violation {
    let names = C::names();
    let supported = quoted_list(names.iter().copied());
    let meant = other_name(text, &names).or_else(|| nearest(text, names.iter().copied()));
    let detail = match meant.or_else(|| part_of(text, &names)) {
        Some(name) => format!("supported values: {supported}; did you mean '{name}'?"),
        None => format!("supported values: {supported}"),
    };
    Violation::new(path, code, Kind::NotSupported, detail).text(text)
}

/// The value that other programs call by this name: kubectl's columns, libvirt, hypervisors.
fn other_name<'n>(text: &str, names: &[&'n str]) -> Option<&'n str> {
    const OTHER_NAMES: [(&str, &str); 20] = [
        ("on", "Running"),
        ("started", "Running"),
        ("off", "Stopped"),
        ("shutoff", "Stopped"),
        ("halted", "Stopped"),
        ("kvm", "libvirt"),
        ("qemu", "libvirt"),
        ("rwo", "ReadWriteOnce"),
        ("rwx", "ReadWriteMany"),
        ("rox", "ReadOnlyMany"),
        ("raw", "Block"),
        ("keep", "Retain"),
        ("hd", "disk"),
        ("hdd", "disk"),
        ("cd", "cdrom"),
        ("dvd", "cdrom"),
        ("iso", "cdrom"),
        ("net", "network"),
        ("pxe", "network"),
        ("openvswitch", "ovs"),
    ];
    let text = text.to_lowercase();
    let mut meant = OTHER_NAMES.iter().filter(|(other, _)| *other == text);
    meant.find_map(|(_, meant)| names.iter().copied().find(|name| name == meant))
}

/// The longest value that the text begins or ends with: `pc-q35` of `pc-q35-8.2`, `bridge` of `linux-bridge`.
fn part_of<'n>(text: &str, names: &[&'n str]) -> Option<&'n str> {
    let is_word = |text: &str| !text.starts_with(char::is_alphanumeric);
    let begins = |name: &&str| text.strip_prefix(*name).is_some_and(is_word);
    let ends = |name: &&str| {
        let before = text.strip_suffix(*name);
        before.is_some_and(|before| !before.ends_with(char::is_alphanumeric))
    };
    let names = names.iter().copied();
    names
        .filter(|name| begins(name) || ends(name))
        .max_by_key(|name| name.len())
}

/// Whether `text` is a DNS label (RFC 1123).
pub(crate) fn is_label(text: &str) -> bool {
    NameForm::LABEL.fits(text)
}

/// Whether `text` can be the name of a Kubernetes object (DNS subdomain).
pub(crate) fn is_object_name(text: &str) -> bool {
    NameForm::OBJECT.fits(text)
}

/// Refuses each name that an earlier item has as well. Violations have `code`.
pub(crate) fn unique_names<'n>(
    names: impl IntoIterator<Item = Leaf<&'n str>>,
    code: Code,
    findings: &mut Findings,
) {
    let mut seen: BTreeMap<&str, FieldPath> = BTreeMap::new();
    for Leaf { value, path } in names {
        let Some(name) = value else { continue };
        let Some(first) = seen.get(name) else {
            seen.insert(name, path);
            continue;
        };
        let place = first.in_template().map_or_else(
            || first.to_string(),
            |segment| format!("{segment} of the template"),
        );
        let detail = format!("{place} is the same; each needs its own name");
        let fault = Violation::new(path, code, Kind::Duplicate, detail).text(name);
        // The index of the other item changes with the order of the list.
        findings.deny(fault.known_as("another item has the name"));
    }
}

/// Rule [`Code::InvalidObjectName`]: a reference that no object's name can satisfy.
pub(crate) fn object_name(leaf: Leaf<&str>, findings: &mut Findings) {
    if let Some(text) = leaf.value
        && !is_object_name(text)
    {
        findings.deny(invalid_object_name(leaf.path, text));
    }
}

/// Violation for a text that cannot be the name of an object.
pub(crate) fn invalid_object_name(location: impl Into<Location>, text: &str) -> Violation {
    let detail = match text.split_once('/') {
        Some((namespace, name)) if is_label(namespace) && is_object_name(name) => {
            format!("must be a name without a namespace; write '{name}'")
        }
        _ => NameForm::OBJECT.requirement(),
    };
    Violation::new(location, Code::InvalidObjectName, Kind::Invalid, detail).text(text)
}

/// Violation for the name of an object of a kind whose names must be labels.
pub(crate) fn invalid_object_label(location: impl Into<Location>, text: &str) -> Violation {
    let detail = NameForm::LABEL.fix(text, |_| true);
    Violation::new(location, Code::InvalidObjectName, Kind::Invalid, detail).text(text)
}

/// The name of a Secret: rules [`Code::SecretNameRequired`] and [`Code::InvalidObjectName`].
pub(crate) fn secret_name(location: Location, name: Option<&str>, findings: &mut Findings) {
    match name {
        None | Some("") => {
            let (code, detail) = (Code::SecretNameRequired, "name the Secret");
            findings.deny(Violation::new(location, code, Kind::Required, detail));
        }
        Some(text) if !is_object_name(text) => findings.deny(invalid_object_name(location, text)),
        Some(_) => {}
    }
}

/// Whether `text` can be the name of a libvirt pool or network. libvirt itself refuses '/' and line breaks
/// (`virStoragePoolDefParseXML`, `virNetworkDefParseXML`), and XML has no other control characters.
pub(crate) fn is_libvirt_name(text: &str) -> bool {
    let is_outside = |c: char| c.is_control() || c == '/';
    !text.is_empty()
        && text.chars().take(OBJECT_NAME_MAX + 1).count() <= OBJECT_NAME_MAX
        && !text.chars().any(is_outside)
}

/// Violation for a text that cannot be the name of a libvirt pool or network.
pub(crate) fn invalid_libvirt_name(path: FieldPath, text: &str) -> Violation {
    let detail = format!(
        "must be a name that libvirt can have: at most {OBJECT_NAME_MAX} characters without '/' and control characters"
    );
    Violation::new(path, Code::InvalidObjectName, Kind::Invalid, detail).text(text)
}

/// Whether `text` can be the name of a label, or a value that is not empty.
pub(crate) fn is_label_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let outer = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    text.len() <= NAME_MAX
        && text.bytes().all(inner)
        && outer(text.as_bytes().first())
        && outer(text.as_bytes().last())
}

/// Whether `text` can be the name of a Linux interface.
pub(crate) fn is_interface(text: &str) -> bool {
    let is_outside = |c: char| c.is_whitespace() || c == '/' || c == ':';
    (1..=INTERFACE_NAME_MAX).contains(&text.len())
        && !text.chars().any(is_outside)
        && text != "."
        && text != ".."
}

/// Rule [`Code::InvalidBridge`]: a text that no Linux interface can have as its name.
pub(crate) fn invalid_interface(path: FieldPath, text: &str) -> Violation {
    let detail = format!(
        "must be the name of a Linux interface: at most {INTERFACE_NAME_MAX} bytes without blanks, '/' and ':'"
    );
    Violation::new(path, Code::InvalidBridge, Kind::Invalid, detail).text(text)
}

fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    is_label_name(name) && prefix.is_none_or(is_object_name)
}

/// Whether `text` can be the name of a resource of nodes that is no resource of Kubernetes itself: with a prefix.
pub(crate) fn is_resource_name(text: &str) -> bool {
    text.contains('/') && is_label_key(text)
}

/// Rule [`Code::InvalidDeviceName`].
pub(crate) fn invalid_resource_name(at: impl Into<Location>, text: &str) -> Violation {
    let detail = "must be the domain of the vendor, '/' and a name, such as 'nvidia.com/A100'";
    Violation::new(at, Code::InvalidDeviceName, Kind::Invalid, detail).text(text)
}

fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_label_name(value)
}

/// Whether an object can have these labels.
pub(crate) fn are_labels<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> bool {
    let mut labels = labels.into_iter();
    labels.all(|(key, value)| is_label_key(key) && is_label_value(value))
}

/// Rule [`Code::InvalidLabel`]: a key or value of a selector that no object can have.
pub(crate) fn labels<'a>(
    at: impl Into<Location>,
    labels: impl IntoIterator<Item = (&'a String, &'a String)>,
    findings: &mut Findings,
) {
    let at = at.into();
    for (key, value) in labels {
        label_key(at.clone(), key, findings);
        label_value(at.clone().key(key), value, findings);
    }
}

/// A requirement of a label selector. Violations have `code`; of keys and values, [`Code::InvalidLabel`].
pub(crate) fn requirement(
    item: &LabelRequirement,
    at: &Location,
    code: Code,
    findings: &mut Findings,
) {
    let LabelRequirement {
        key,
        operator,
        values,
    } = item;
    let at = |field| at.clone().member(field);
    let mut invalid = |field, kind, detail: &str| {
        findings.deny(Violation::new(at(field), code, kind, detail));
    };
    if key.is_none() {
        invalid("key", Kind::Required, "name the key of a label");
    }
    let count = values.iter().flatten().count();
    match operator.as_deref().map(SelectorOperator::parse) {
        None => invalid(
            "operator",
            Kind::Required,
            "set In, NotIn, Exists or DoesNotExist",
        ),
        Some(Some(SelectorOperator::In | SelectorOperator::NotIn)) if count == 0 => {
            invalid(
                "values",
                Kind::Required,
                "give the values that the label is compared with",
            );
        }
        Some(Some(SelectorOperator::Exists | SelectorOperator::DoesNotExist)) if count > 0 => {
            let detail = "Exists and DoesNotExist look for the key only; remove the values";
            invalid("values", Kind::Forbidden, detail);
        }
        Some(Some(_)) => {}
        Some(None) => {
            let text = operator.as_deref().unwrap_or_default();
            findings.deny(unsupported::<SelectorOperator>(at("operator"), text, code));
        }
    }
    let empty = String::new();
    labels(at("key"), key.iter().map(|key| (key, &empty)), findings);
    for (index, value) in values.iter().flatten().enumerate() {
        label_value(at("values").key(&index.to_string()), value, findings);
    }
}

/// Rule [`Code::InvalidLabel`]: a key that no label can have.
pub(crate) fn label_key(at: impl Into<Location>, key: &str, findings: &mut Findings) {
    if !is_label_key(key) {
        let detail = "a label's key is letters, digits, '-', '_' and '.', at most 63, with a letter or digit at both ends, after an optional DNS prefix and '/'";
        findings.deny(Violation::new(at, Code::InvalidLabel, Kind::Invalid, detail).text(key));
    }
}

/// Rule [`Code::InvalidLabel`]: a value that no label can have.
pub(crate) fn label_value(location: Location, value: &str, findings: &mut Findings) {
    if !is_label_value(value) {
        let detail = "a label's value is letters, digits, '-', '_' and '.', at most 63, with a letter or digit at both ends, or empty";
        let fault = Violation::new(location, Code::InvalidLabel, Kind::Invalid, detail);
        findings.deny(fault.text(value));
    }
}
