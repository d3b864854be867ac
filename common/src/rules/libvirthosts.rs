//! LibvirtHosts.

use std::str::FromStr;

use crate::api::choice::{Choice as _, HostNetworkType, Provisioning, VolumeFormat};
use crate::api::libvirt_host::{HostNetwork, HostStorage, LibvirtHostSpec};
use crate::code::Code;
use crate::host_uri::{HostUri, Transport};
use crate::normalize::Place;
use crate::quantity::{Bytes, Milli, QuantityError};
use crate::violation::{Findings, Kind, Violation};

use super::form;

/// The rules about one, against what is stored.
pub(crate) fn check(
    spec: &LibvirtHostSpec,
    old: Option<&LibvirtHostSpec>,
    findings: &mut Findings,
) {
    uri(spec, old, findings);
    let overcommit = spec.overcommit.as_ref();
    for (field, text) in [
        (
            "overcommit.cpu",
            overcommit.and_then(|it| it.cpu.as_deref()),
        ),
        (
            "overcommit.memory",
            overcommit.and_then(|it| it.memory.as_deref()),
        ),
    ] {
        factor(Place::field(field), text, findings);
    }
    let reserved = spec.reserved.as_ref();
    quantity::<Milli>(
        Place::field("reserved.cpu"),
        reserved.and_then(|it| it.cpu.as_deref()),
        "500m",
        findings,
    );
    quantity::<Bytes>(
        Place::field("reserved.memory"),
        reserved.and_then(|it| it.memory.as_deref()),
        "2Gi",
        findings,
    );
    for (index, item) in spec.storage.iter().flatten().enumerate() {
        storage(item, index, findings);
    }
    for (index, item) in spec.networks.iter().flatten().enumerate() {
        network(item, index, findings);
    }
}

/// Rules [`Code::InvalidHostUri`], [`Code::CredentialsRequired`], [`Code::CredentialsUnused`] and
/// [`Code::HostMoved`].
fn uri(spec: &LibvirtHostSpec, old: Option<&LibvirtHostSpec>, findings: &mut Findings) {
    let (place, credentials) = (Place::field("uri"), Place::field("credentialsSecretRef"));
    let uri: HostUri = match spec.uri.parse() {
        Ok(uri) => uri,
        Err(error) => {
            let detail = format!("{error}; write it as 'qemu+tls://hv1.example.com/system'");
            let fault = Violation::new(place, Code::InvalidHostUri, Kind::Invalid, detail);
            findings.deny(fault.text(&spec.uri));
            return;
        }
    };
    let local = uri.transport() == Transport::Local;
    match &spec.credentials_secret_ref {
        None if !local => {
            let detail = match uri.transport() {
                Transport::Ssh => "name the Secret with ssh-privatekey and known_hosts",
                Transport::Local | Transport::Tls => {
                    "name the Secret with tls.crt, tls.key and ca.crt"
                }
            };
            let code = Code::CredentialsRequired;
            findings.deny(Violation::new(credentials, code, Kind::Required, detail));
        }
        Some(_) if local => {
            let text = format!("{credentials}: nobody asks for credentials at {uri}");
            findings.warn(Code::CredentialsUnused, &text);
        }
        None | Some(_) => {}
    }
    let before: Option<HostUri> = old.and_then(|old| old.uri.parse().ok());
    if let Some(before) = before.filter(|before| before.host() != uri.host()) {
        let text = format!(
            "{place}: changes from {before} to {uri}; Machines that are bound to this LibvirtHost have their disks on the old one"
        );
        findings.warn(Code::HostMoved, &text);
    }
}

/// Rule [`Code::InvalidFactor`].
fn factor(place: Place, text: Option<&str>, findings: &mut Findings) {
    let Some(text) = text else { return };
    let is_decimal = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let value = text.parse::<Milli>().ok().filter(|_| is_decimal);
    if value.is_none_or(|value| value.get() == 0) {
        let detail = "must be a positive decimal number such as '1.5', or left out for 1";
        let fault = Violation::new(place, Code::InvalidFactor, Kind::Invalid, detail);
        findings.deny(fault.text(text));
    }
}

/// Rule [`Code::InvalidQuantity`].
fn quantity<Q: FromStr<Err = QuantityError>>(
    place: Place,
    text: Option<&str>,
    example: &str,
    findings: &mut Findings,
) {
    if let Some(text) = text
        && let Err(error) = text.parse::<Q>()
    {
        let detail = format!("{error}; use a number and a unit such as '{example}'");
        let fault = Violation::new(place, Code::InvalidQuantity, Kind::Invalid, detail);
        findings.deny(fault.text(text));
    }
}

/// Rule [`Code::OverlayNeedsQcow2`].
fn storage(item: &HostStorage, index: usize, findings: &mut Findings) {
    if item.format == Some(VolumeFormat::Raw) && item.provisioning != Some(Provisioning::Copy) {
        let detail = "raw volumes cannot stand on an image: set provisioning: copy, or drop format";
        let place = Place::item("storage", index, "format");
        let fault = Violation::new(place, Code::OverlayNeedsQcow2, Kind::Invalid, detail);
        findings.deny(fault.text(VolumeFormat::Raw.as_str()));
    }
}

/// Rules [`Code::ManyVlansOnBridge`] and [`Code::InvalidBridge`].
fn network(item: &HostNetwork, index: usize, findings: &mut Findings) {
    let vlans = item.vlans.as_ref().map_or(0, Vec::len);
    if item.kind == HostNetworkType::Bridge && vlans > 1 {
        let detail = format!(
            "a plain bridge is in one VLAN at most, and these are {vlans}; use a bridge for each, or type: ovs"
        );
        let place = Place::item("networks", index, "vlans");
        let code = Code::ManyVlansOnBridge;
        findings.deny(Violation::new(place, code, Kind::Forbidden, detail));
    }
    if item.kind != HostNetworkType::Network && !form::is_interface(&item.source) {
        let place = Place::item("networks", index, "source");
        findings.deny(form::invalid_interface(place, &item.source));
    }
}
