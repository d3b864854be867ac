//! LibvirtHosts. The schema and CEL of the CRD refuse most of this as well, but on an update some tools answer
//! that refusal by deleting and recreating the object. So the webhook refuses the same values first.

pub(crate) mod hardware;
pub(crate) mod images;
pub(crate) mod intent;
pub(crate) mod limits;

use std::collections::{BTreeMap, HashSet};

use crate::api::choice::{Choice, CpuMode, HostNetworkType, Provisioning, VirtType, VolumeFormat};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::host_uri::{HostUri, Transport};
use crate::normalize::Leaf;
use crate::quantity::{Bytes, Milli};
use crate::violation::{Findings, Kind, Location, Violation};

use super::form;
use super::networkconfigurations::VLANS;
use super::quantities;
use super::rule::{Check, rules};

pub(crate) use intent::HostIntent;
use intent::{Amounts, NetworkIntent, StorageIntent};

rules! {
    "libvirthosts" Check::Host(uri), on HOSTS, Always, and [HostFieldRequired] {
        Refuse InvalidHostUri = "The URI of a LibvirtHost is not of an allowed form."
            because "Parameters of libvirt's URIs name programs that are run where the controller is; other transports are not encrypted, or open any socket."
            fix "Write one of `qemu:///system`, `qemu+tls://host/system`, `qemu+ssh://user@host/system`."
            crd All,
        Refuse CredentialsRequired = "A LibvirtHost is reached by tls or ssh, and no Secret with credentials is named."
            because "The controller could neither authenticate itself nor verify the host."
            fix "Name a Secret in `credentialsSecretRef`."
            crd All,
        Warn CredentialsUnused = "A LibvirtHost is reached without a network, and a Secret with credentials is named."
            because "A local socket needs no credentials; the URI may be wrong."
            fix "Remove `credentialsSecretRef`, or correct the URI."
            crd Nothing,
    }
    "libvirthosts" Check::Host(host_changed), on HOSTS, Update {
        Warn HostMoved = "The URI of an existing LibvirtHost names another host."
            because "Machines that are bound to the LibvirtHost have their guests and disks on the old one. While domains are there, they wait until the URI leads back to it, or until an administrator confirms the other host."
            fix "Nothing, if it is the same host by another name; else register the other host under a name of its own."
            crd Nothing,
    }
    "libvirthosts" Check::Host(credentials), on HOSTS, Always, and [SecretNameRequired, InvalidObjectName] {}
    "libvirthosts" Check::Host(hypervisor), on HOSTS, Always, and [HostFieldRequired] {
        Refuse UnsupportedHostValue = "A value of a LibvirtHost is not supported."
            because "The controller would lack what it needs to run guests or create volumes there."
            fix "Take one of the values that the message lists."
            crd All,
    }
    "libvirthosts" Check::Host(amounts), on HOSTS, Always, and [InvalidQuantity] {
        Refuse InvalidFactor = "A factor of overcommit is not a positive decimal number."
            because "With a factor of zero, or without a number, the host would have no capacity."
            fix "Write a number such as `\"1.5\"`, or leave it out for the default."
            crd Some,
    }
    "libvirthosts" Check::Host(storage), on HOSTS, Always, and [HostFieldRequired, UnsupportedHostValue, InvalidObjectName] {
        Refuse OverlayNeedsQcow2 = "Volumes of a class are raw, and are provisioned as overlays of an image."
            because "A raw file cannot store the name of its backing image."
            fix "Set `provisioning: copy`, or `format: qcow2`."
            crd All,
        Refuse DuplicateOffer = "A LibvirtHost offers a storage class, a network, a VLAN or a device twice."
            because "A name identifies one pool, one network or one kind of device; with two of the same name a Machine's choice would be ambiguous. A device that had two names would be given to two guests."
            fix "Rename or remove one of them."
            crd All,
    }
    "libvirthosts" Check::Host(networks), on HOSTS, Always, and [HostFieldRequired, UnsupportedHostValue, DuplicateOffer, InvalidBridge, InvalidVlan, InvalidObjectName] {
        Refuse ManyVlansOnBridge = "A plain bridge has more than one VLAN."
            because "libvirt puts no tags on frames of a plain bridge: all machines would be in one VLAN, whichever VLAN they name."
            fix "Use one bridge for each VLAN, or `type: ovs`."
            crd All,
    }
    "libvirthosts" Check::Value, on HOSTS, Always {
        Refuse HostFieldRequired = "A field is missing that a LibvirtHost, or an item of its lists, cannot do without."
            because "The controller would have to guess what is offered, and where."
            fix "Give what the message names."
            crd All,
    }
}

/// Rules [`Code::HostFieldRequired`] and [`Code::UnsupportedHostValue`] for the hypervisor.
fn hypervisor(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let virt_type = "set kvm, or qemu on a host without hardware virtualization";
    let virt_type = required("virtType", spec.virt_type.as_deref(), virt_type, findings);
    choice(virt_type, VirtType::Kvm, findings);
    let cpu_mode = leaf(FieldPath::field("cpuMode"), spec.cpu_mode.as_deref());
    choice(cpu_mode, CpuMode::HostPassthrough, findings);
}

/// Rules [`Code::InvalidFactor`] and [`Code::InvalidQuantity`]: overcommit and reservations.
fn amounts(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let overcommit = spec.overcommit.as_ref();
    for (field, text) in [
        ("overcommit.cpu", overcommit.and_then(|it| it.cpu.as_ref())),
        (
            "overcommit.memory",
            overcommit.and_then(|it| it.memory.as_ref()),
        ),
        (
            "overcommit.storage",
            overcommit.and_then(|it| it.storage.as_ref()),
        ),
    ] {
        factor(FieldPath::field(field), text.map(String::as_str), findings);
    }
    let none = Amounts::default();
    let Amounts { cpu, memory } = spec.reserved.as_ref().unwrap_or(&none);
    let cpu = leaf(FieldPath::field("reserved.cpu"), cpu.as_deref());
    quantities::quantity::<Milli>(cpu, "500m", |_| None, findings);
    let memory = leaf(FieldPath::field("reserved.memory"), memory.as_deref());
    quantities::quantity::<Bytes>(memory, "2Gi", quantities::corrected, findings);
}

/// The rules about storage classes.
fn storage(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let items = spec.storage.iter().flatten().enumerate();
    let classes = items.map(|(index, item)| storage_class(item, index, findings));
    let classes: Vec<_> = classes.collect();
    form::unique_names(classes, Code::DuplicateOffer, findings);
}

/// The rules about networks.
fn networks(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let items = spec.networks.iter().flatten().enumerate();
    let names = items.map(|(index, item)| network(item, index, findings));
    let names: Vec<_> = names.collect();
    form::unique_names(names, Code::DuplicateOffer, findings);
}

fn leaf(path: FieldPath, value: Option<&str>) -> Leaf<&str> {
    Leaf { value, path }
}

/// The place of an entry of a list of texts.
fn entry(list: FieldPath, index: usize) -> Location {
    Location::from(list).key(&index.to_string())
}

/// Texts that may be entries of one list only, each with its place.
#[derive(Default)]
struct Entries<'t>(BTreeMap<&'t str, Location>);

impl<'t> Entries<'t> {
    /// Adds an entry. Rule [`Code::DuplicateOffer`]; `why`: why it may be there once only.
    fn add(&mut self, text: &'t str, at: &Location, why: &str, findings: &mut Findings) {
        let Some(first) = self.0.get(text) else {
            self.0.insert(text, at.clone());
            return;
        };
        let detail = format!("is also {}; {why}; remove one of the two", first.field());
        let fault = Violation::new(at.clone(), Code::DuplicateOffer, Kind::Duplicate, detail);
        // The index of the other entry changes with the order of the list.
        let identity = format!("another entry is {text}");
        findings.deny(fault.text(text).known_as(identity));
    }
}

/// Rule [`Code::HostFieldRequired`] for a field of the spec.
fn required<'t>(
    field: &'static str,
    text: Option<&'t str>,
    fix: &str,
    findings: &mut Findings,
) -> Leaf<&'t str> {
    required_at(leaf(FieldPath::field(field), text), fix, findings)
}

/// Rule [`Code::HostFieldRequired`].
fn required_at<'t>(leaf: Leaf<&'t str>, fix: &str, findings: &mut Findings) -> Leaf<&'t str> {
    if leaf.value.is_none() {
        let code = Code::HostFieldRequired;
        findings.deny(Violation::new(leaf.path, code, Kind::Required, fix));
    }
    leaf
}

/// Rule [`Code::UnsupportedHostValue`].
fn choice<C: Choice>(leaf: Leaf<&str>, default: C, findings: &mut Findings) -> Option<C> {
    form::choice(leaf, default, Code::UnsupportedHostValue, findings)
}

/// Rules [`Code::HostFieldRequired`], [`Code::InvalidHostUri`], [`Code::CredentialsRequired`] and
/// [`Code::CredentialsUnused`].
fn uri(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let fix = "give the URI of its libvirt, such as 'qemu+tls://hv1.example.com/system'";
    let leaf = required("uri", spec.uri.as_deref(), fix, findings);
    let Some(text) = leaf.value else { return };
    let uri: Result<HostUri, _> = text.parse();
    if let Err(error) = &uri {
        let fix = match HostUri::suggestion(text) {
            Some(uri) => format!("write it as '{uri}'"),
            None => "a valid one is 'qemu+tls://hv1.example.com/system'".to_owned(),
        };
        let detail = format!("{error}; {fix}");
        let fault = Violation::new(leaf.path, Code::InvalidHostUri, Kind::Invalid, detail);
        findings.deny(fault.text(text));
    }
    let path = FieldPath::field("credentialsSecretRef");
    let needed = HostUri::transport_of(text).and_then(keys_of);
    match (&spec.credentials_secret_ref, needed) {
        (None, Some(keys)) => {
            let detail = format!("name the Secret with {keys}");
            let code = Code::CredentialsRequired;
            findings.deny(Violation::new(path, code, Kind::Required, detail));
        }
        (Some(_), None) => {
            if let Ok(uri) = uri {
                let text = format!("{path}: credentials are not used for {uri}");
                findings.warn(Code::CredentialsUnused, &text);
            }
        }
        (None, None) | (Some(_), Some(_)) => {}
    }
}

/// The keys of the Secret that a transport needs; `None` for the controller's own host.
fn keys_of(transport: Transport) -> Option<&'static str> {
    match transport {
        Transport::Local => None,
        Transport::Ssh => Some("ssh-privatekey and known_hosts"),
        Transport::Tls => Some("tls.crt, tls.key and ca.crt"),
    }
}

/// Rule [`Code::HostMoved`]. A URI that cannot be read has its own code.
fn host_changed(spec: &HostIntent, old: Option<&HostIntent>, findings: &mut Findings) {
    let path = FieldPath::field("uri");
    let uri = spec.uri.as_deref().map(str::parse::<HostUri>);
    let Some(Ok(uri)) = uri else { return };
    let before = old.and_then(|old| old.uri.as_deref()?.parse().ok());
    if let Some(before) = before.filter(|before: &HostUri| before.host() != uri.host()) {
        let text = format!(
            "{path}: changes from {before} to {uri}; Machines that are bound to this LibvirtHost wait if that is not the host with their guests and disks"
        );
        findings.warn(Code::HostMoved, &text);
    }
}

/// Rules [`Code::SecretNameRequired`] and [`Code::InvalidObjectName`].
fn credentials(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let Some(secret) = &spec.credentials_secret_ref else {
        return;
    };
    let namespace = FieldPath::field("credentialsSecretRef.namespace");
    match secret.namespace.as_deref() {
        None | Some("") => {
            let (code, detail) = (Code::SecretNameRequired, "name the namespace of the Secret");
            findings.deny(Violation::new(namespace, code, Kind::Required, detail));
        }
        Some(text) if !form::is_label(text) => {
            findings.deny(form::invalid_object_label(namespace, text));
        }
        Some(_) => {}
    }
    let name = FieldPath::field("credentialsSecretRef.name");
    form::secret_name(Location::from(name), secret.name.as_deref(), findings);
}

/// Rule [`Code::InvalidFactor`], with as many digits as the schema has.
fn factor(path: FieldPath, text: Option<&str>, findings: &mut Findings) {
    let Some(text) = text else { return };
    let digits = |part: &str| {
        (1..=3).contains(&part.len()) && part.bytes().all(|digit| digit.is_ascii_digit())
    };
    let is_decimal = match text.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => digits(text),
    };
    if !is_decimal || text.bytes().all(|byte| b"0.".contains(&byte)) {
        let detail = "must be a positive decimal number such as '1.5', of at most three digits before and after the point, or left out for the default";
        let fault = Violation::new(path, Code::InvalidFactor, Kind::Invalid, detail);
        findings.deny(fault.text(text));
    }
}

/// Rule [`Code::InvalidObjectName`] for a libvirt pool or network.
fn libvirt_name(leaf: Leaf<&str>, findings: &mut Findings) {
    if let Some(text) = leaf.value
        && !form::is_libvirt_name(text)
    {
        findings.deny(form::invalid_libvirt_name(leaf.path, text));
    }
}

/// The rules about a storage class, and [`Code::OverlayNeedsQcow2`]. Returns its name.
fn storage_class<'t>(
    item: &'t StorageIntent,
    index: usize,
    findings: &mut Findings,
) -> Leaf<&'t str> {
    let at = |field, text| leaf(FieldPath::item("storage", index, field), text);
    let fix = "name the class as disks name it in storageClass";
    let class = at("storageClass", item.storage_class.as_deref());
    let class = required_at(class, fix, findings);
    form::object_name(class, findings);
    let fix = "name the libvirt pool in which the volumes are created";
    let pool = required_at(at("pool", item.pool.as_deref()), fix, findings);
    libvirt_name(pool, findings);
    let shared_as = at("sharedAs", item.shared_as.as_deref());
    if let Some(name) = shared_as.value.filter(|name| !form::is_label(name)) {
        findings.deny(form::invalid_object_label(shared_as.path, name));
    }
    let format = at("format", item.format.as_deref());
    let provisioning = at("provisioning", item.provisioning.as_deref());
    let is_raw = choice(format, VolumeFormat::Qcow2, findings) == Some(VolumeFormat::Raw);
    let provisioning = choice(provisioning, Provisioning::Overlay, findings);
    if is_raw && provisioning == Some(Provisioning::Overlay) {
        let detail =
            "raw volumes cannot be overlays of an image: set provisioning: copy, or drop format";
        let code = Code::OverlayNeedsQcow2;
        let fault = Violation::new(format.path, code, Kind::Invalid, detail);
        findings.deny(fault.text(VolumeFormat::Raw.as_str()));
    }
    class
}

/// The rules about a network, and [`Code::ManyVlansOnBridge`] and [`Code::InvalidBridge`]. Returns its
/// name.
fn network<'t>(item: &'t NetworkIntent, index: usize, findings: &mut Findings) -> Leaf<&'t str> {
    let at = |field, text| leaf(FieldPath::item("networks", index, field), text);
    let fix = "name the bridge that NetworkConfigurations name, or default";
    let name = required_at(at("name", item.name.as_deref()), fix, findings);
    bridge(name, findings);
    let fix = "set network, bridge or ovs";
    let kind = required_at(at("type", item.kind.as_deref()), fix, findings);
    // A source that is not a bridge may have any name that libvirt allows.
    let kind = choice(kind, HostNetworkType::Network, findings);
    let fix = "give its name on the host";
    let source = required_at(at("source", item.source.as_deref()), fix, findings);
    match kind {
        Some(HostNetworkType::Bridge | HostNetworkType::Ovs) => bridge(source, findings),
        Some(HostNetworkType::Network) | None => libvirt_name(source, findings),
    }
    let vlans = item.vlans.as_deref().unwrap_or_default();
    if kind == Some(HostNetworkType::Bridge) && vlans.len() > 1 {
        let detail = format!(
            "a plain bridge can be in one VLAN only, and the list has {}; use a bridge for each, or type: ovs",
            vlans.len()
        );
        let path = FieldPath::item("networks", index, "vlans");
        let code = Code::ManyVlansOnBridge;
        findings.deny(Violation::new(path, code, Kind::Forbidden, detail));
    }
    vlan_ids(vlans, index, findings);
    name
}

/// Rule [`Code::InvalidBridge`].
fn bridge(leaf: Leaf<&str>, findings: &mut Findings) {
    if let Some(text) = leaf.value
        && !form::is_interface(text)
    {
        findings.deny(form::invalid_interface(leaf.path, text));
    }
}

/// Rules [`Code::InvalidVlan`] and [`Code::DuplicateOffer`] for the VLANs of a network. Each is
/// reported once, at the first such VLAN: a host may have hundreds of VLANs.
fn vlan_ids(vlans: &[i64], index: usize, findings: &mut Findings) {
    let mut report = |code, kind, detail: &str, faulty: Vec<(usize, i64)>| {
        if let [(item, vlan), others @ ..] = &faulty[..] {
            let more = match others.len() {
                0 => String::new(),
                1 => "; another one of the list has the same fault".to_owned(),
                more => format!("; {more} others of the list have the same fault"),
            };
            let location = Location::from(FieldPath::item("networks", index, "vlans"));
            let location = location.key(&item.to_string());
            let fault = Violation::new(location, code, kind, format!("{detail}{more}"));
            findings.deny(fault.value(vlan));
        }
    };
    let all = || vlans.iter().copied().enumerate();
    let outside = all().filter(|(_, vlan)| !VLANS.contains(vlan)).collect();
    let detail = format!("must be from {} to {}", VLANS.start(), VLANS.end());
    report(Code::InvalidVlan, Kind::Invalid, &detail, outside);
    let mut seen = HashSet::new();
    let twice = all().filter(|(_, vlan)| !seen.insert(*vlan)).collect();
    let detail = "is already in the list; each VLAN is offered once";
    report(Code::DuplicateOffer, Kind::Duplicate, detail, twice);
}
