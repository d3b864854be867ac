//! Probes of a guest. KubeVirt refuses what Kubernetes refuses of a container's probe (`validateProbe` of
//! `pkg/apis/core/validation`), and one by the network for a guest that is not on the pod network.

use crate::api::choice::{Backend, Choice as _, ProbeScheme};
use crate::api::machine::{ExecProbe, HttpProbe, Probe, Probes};
use crate::bounds::{PORT_MAX, PROBE_ARGUMENTS_MAX, PROBE_COUNT_MAX, TEXT_MAX};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Leaf, Merged};
use crate::violation::{Findings, Kind, Location, Violation};

use super::rule::{Check, Parts, Subject, rules};
use super::{form, limits, networks};

rules! {
    "health" Check::Part(probes), on MACHINES_AND_TEMPLATES, Always, and [TooLong] {
        Refuse InvalidProbe = "A probe does not say how it is made, says it twice, or has a value that Kubernetes refuses."
            because "KubeVirt would refuse the virtual machine, or the API server the pod of the guest."
            fix "Correct the field as the message says."
            crd All,
        Refuse ProbeNeedsPodNetwork = "A probe by TCP or HTTP is requested for a guest without a network card on the pod network."
            because "The node's kubelet makes the probe, and reaches the guest by the pod network alone: KubeVirt refuses the virtual machine."
            fix "Add a network card without `networkName`, or probe with `guestAgentPing` or `exec`."
            crd Nothing,
    }
}

/// The readiness probe of the Machine, else that of the template: as a whole.
pub(super) fn readiness<'a>(merged: &Merged<'a>) -> Leaf<&'a Probe> {
    probe(merged, "probes.readiness", |it| it.readiness.as_deref())
}

/// The liveness probe of the Machine, else that of the template: as a whole.
pub(super) fn liveness<'a>(merged: &Merged<'a>) -> Leaf<&'a Probe> {
    probe(merged, "probes.liveness", |it| it.liveness.as_deref())
}

fn probe<'a>(
    merged: &Merged<'a>,
    field: &'static str,
    get: fn(&'a Probes) -> Option<&'a Probe>,
) -> Leaf<&'a Probe> {
    merged.pick(
        field,
        |spec| spec.probes.as_ref().and_then(get),
        |template| template.probes.as_ref().and_then(get),
    )
}

/// Rules [`Code::InvalidProbe`] and [`Code::ProbeNeedsPodNetwork`].
fn probes(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let (readiness, liveness) = (readiness(subject.merged), liveness(subject.merged));
    if let Some(threshold) = liveness.value.and_then(|probe| probe.success_threshold)
        && threshold > 1
    {
        let at = Location::from(liveness.path).member("successThreshold");
        let detail = "must be 1 for liveness: a guest that failed is a new one after its restart";
        let fault = Violation::new(at, Code::InvalidProbe, Kind::Invalid, detail);
        findings.deny(fault.value(threshold));
    }
    let mut checked = |leaf: Leaf<&Probe>| {
        let probe = leaf.value?;
        check(probe, &Location::from(leaf.path), findings);
        on_pod_network(subject, probe, leaf, findings);
        Some(Box::new(probe.clone().with_defaults()))
    };
    parts.probes = Probes {
        liveness: checked(liveness),
        readiness: checked(readiness),
    };
}

fn deny(at: Location, kind: Kind, detail: impl Into<String>, findings: &mut Findings) {
    findings.deny(Violation::new(at, Code::InvalidProbe, kind, detail.into()));
}

/// Rule [`Code::InvalidProbe`].
fn check(probe: &Probe, at: &Location, findings: &mut Findings) {
    let Probe {
        exec,
        failure_threshold,
        guest_agent_ping,
        http_get,
        initial_delay_seconds,
        period_seconds,
        success_threshold,
        tcp_socket,
        timeout_seconds,
    } = probe;
    let given = [
        ("exec", exec.is_some()),
        ("guestAgentPing", guest_agent_ping.is_some()),
        ("httpGet", http_get.is_some()),
        ("tcpSocket", tcp_socket.is_some()),
    ];
    let given: Vec<_> = given.iter().filter(|(_, is_given)| *is_given).collect();
    match given.as_slice() {
        [] => {
            let detail =
                "say how the guest is probed: one of exec, guestAgentPing, httpGet and tcpSocket";
            deny(at.clone(), Kind::Required, detail, findings);
        }
        [_] => {}
        [(first, _), others @ ..] => {
            for (field, _) in others {
                let detail = format!("a probe is made in one way, and {first} is given as well");
                let at = at.clone().member(field);
                deny(at, Kind::Forbidden, detail, findings);
            }
        }
    }
    for (field, value, least) in [
        ("failureThreshold", *failure_threshold, 1),
        ("initialDelaySeconds", *initial_delay_seconds, 0),
        ("periodSeconds", *period_seconds, 1),
        ("successThreshold", *success_threshold, 1),
        ("timeoutSeconds", *timeout_seconds, 1),
    ] {
        let bounds = least..=i64::from(PROBE_COUNT_MAX);
        if let Some(value) = value.filter(|value| !bounds.contains(value)) {
            let detail = format!("must be from {least} to {PROBE_COUNT_MAX}");
            let code = Code::InvalidProbe;
            let at = at.clone().member(field);
            findings.deny(Violation::new(at, code, Kind::Invalid, detail).value(value));
        }
    }
    if let Some(exec) = exec {
        command(exec, &at.clone().member("exec"), findings);
    }
    if let Some(request) = http_get {
        http(request, &at.clone().member("httpGet"), findings);
    }
    if let Some(socket) = tcp_socket {
        port(socket.port, &at.clone().member("tcpSocket"), findings);
    }
}

fn command(exec: &ExecProbe, at: &Location, findings: &mut Findings) {
    let at = at.clone().member("command");
    let command = exec.command.as_deref().unwrap_or_default();
    if command.is_empty() {
        let detail = "give the program that is run in the guest, and its arguments";
        deny(at.clone(), Kind::Required, detail, findings);
    }
    for (index, argument) in command.iter().enumerate().take(PROBE_ARGUMENTS_MAX) {
        let at = at.clone().key(&index.to_string());
        limits::length(at, Some(argument), TEXT_MAX, findings);
    }
}

fn http(request: &HttpProbe, at: &Location, findings: &mut Findings) {
    let HttpProbe { path, port, scheme } = request;
    self::port(*port, at, findings);
    if let Some(path) = path {
        let at = at.clone().member("path");
        limits::length(at.clone(), Some(path), TEXT_MAX, findings);
        if !path.starts_with('/') || !path.chars().all(|c| c.is_ascii_graphic()) {
            let detail =
                "must begin with '/' and have only printable ASCII characters, without spaces";
            let fault = Violation::new(at, Code::InvalidProbe, Kind::Invalid, detail);
            findings.deny(fault.text(path));
        }
    }
    if let Some(scheme) = scheme
        && ProbeScheme::parse(scheme).is_none()
    {
        let at = at.clone().member("scheme");
        let code = Code::InvalidProbe;
        findings.deny(form::unsupported::<ProbeScheme>(at, scheme, code));
    }
}

fn port(port: Option<i64>, at: &Location, findings: &mut Findings) {
    let at = at.clone().member("port");
    match port {
        None => deny(at, Kind::Required, "give the port of the guest", findings),
        Some(port) if !(1..=i64::from(PORT_MAX)).contains(&port) => {
            let detail = format!("must be from 1 to {PORT_MAX}");
            let fault = Violation::new(at, Code::InvalidProbe, Kind::Invalid, detail);
            findings.deny(fault.value(port));
        }
        Some(_) => {}
    }
}

/// Rule [`Code::ProbeNeedsPodNetwork`]. A template names no backend, and its cards can be replaced, so only Machines are
/// checked.
fn on_pod_network(
    subject: &Subject<'_>,
    probe: &Probe,
    leaf: Leaf<&Probe>,
    findings: &mut Findings,
) {
    let merged = subject.merged;
    let is_of_machine = subject.backend == Backend::Kubevirt && merged.is_complete();
    let is_on_pod_network = || {
        let mut cards = merged.networks.iter();
        // A Machine that names no card has one on the pod network.
        merged.networks.is_empty() || cards.any(|card| networks::network_name(card).value.is_none())
    };
    if is_of_machine && probe.needs_pod_network() && !is_on_pod_network() {
        let detail = "a node reaches the guest by the pod network alone, and no network card is on it; add a card without networkName, or probe with guestAgentPing or exec";
        let code = Code::ProbeNeedsPodNetwork;
        let fault = Violation::new(leaf.path, code, Kind::Forbidden, detail);
        findings.deny(fault.unless_faulty(FieldPath::field("backend")));
    }
}
