//! Screen and serial console.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::choice::{Backend, DisplayType};
use crate::api::machine::{Console, Display, TemplateDisplay};
use crate::api::normalized::{
    Normalized, NormalizedConsole, NormalizedDisplay, NormalizedSecretRef,
};
use crate::catalog::HostRow;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Leaf, Merged};
use crate::violation::{Findings, Kind, Location, Violation};

use super::form;
use super::rule::{Check, Lookup, Parts, Subject, rules};

rules! {
    "display" Check::Part(display), on MACHINES_AND_TEMPLATES, Always, and [SecretNameRequired, InvalidObjectName] {
        Refuse UnsupportedDisplayType = "The type of the display does not exist."
            because "SPICE needs several connections, of which a libvirt host passes on one; KubeVirt and RHEL 9 no longer have SPICE."
            fix "Take one of the values that the message lists."
            crd All,
        Refuse UnsupportedVideo = "The model of the graphics card does not exist."
            because "The backends refuse it when the machine starts."
            fix "Take one of the values that the message lists."
            crd All,
        Refuse NoDisplay = "The machine has no display, and a graphics card or a password for it."
            because "Without a display there is nothing that shows the card or asks for the password."
            fix "Use `type: vnc`, or drop the other fields of `display`."
            crd Some,
        Refuse DisplayPasswordNeedsLibvirt = "A password for the display is named, and the backend is KubeVirt."
            because "KubeVirt's VNC takes no password, and `virtctl` would bypass one that is asked for elsewhere."
            fix "Drop `passwordSecretRef`: RBAC on `virtualmachineinstances/vnc` of `subresources.kubevirt.io` decides who may use `virtctl vnc`."
            crd Some,
    }
    "display" Check::Part(console), on MACHINES_AND_TEMPLATES, Always {}
    "display" Check::Lookup(console_log), on MACHINES, Always {
        Warn ConsoleLogUnavailable = "The console is to be logged, and no LibvirtHost that fits has a pool for such logs."
            because "The machine runs, and the output of its console is lost."
            fix "Set `consoleLogPool` of the LibvirtHost; a running machine gets its log at its next start."
            crd Nothing,
    }
}

fn pick<'a, V>(
    merged: &Merged<'a>,
    field: &'static str,
    user: impl Fn(&'a Display) -> Option<V>,
    template: impl Fn(&'a TemplateDisplay) -> Option<V>,
) -> Leaf<V> {
    merged.pick(
        field,
        |spec| spec.display.as_ref().and_then(&user),
        |content| content.display.as_ref().and_then(&template),
    )
}

/// The requested type of the screen.
pub(crate) fn kind<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    pick(
        merged,
        "display.type",
        |display| display.kind.as_deref(),
        |display| display.kind.as_deref(),
    )
}

/// The requested model of the graphics card.
pub(crate) fn video<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    pick(
        merged,
        "display.video",
        |display| display.video.as_deref(),
        |display| display.video.as_deref(),
    )
}

/// Whether the output of the console is to be kept.
pub(crate) fn log(merged: &Merged<'_>) -> Leaf<bool> {
    let log = |console: &Console| console.log;
    merged.pick(
        "console.log",
        |spec| spec.console.as_ref().and_then(log),
        |content| content.console.as_ref().and_then(log),
    )
}

/// The field that names the Secret with the password.
const PASSWORD: FieldPath = FieldPath::field("display.passwordSecretRef");

/// The screen: rules [`Code::UnsupportedDisplayType`], [`Code::UnsupportedVideo`], [`Code::NoDisplay`],
/// [`Code::DisplayPasswordNeedsLibvirt`].
fn display(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    let (kind_leaf, video_leaf) = (kind(merged), video(merged));
    let secret = merged.user().display.as_ref();
    let secret = secret.and_then(|display| display.password_secret_ref.as_ref());
    let kind = display_type(kind_leaf, findings);
    let video = form::given_choice(video_leaf, Code::UnsupportedVideo, findings);
    if let Some(secret) = secret {
        let name = Location::from(PASSWORD).member("name");
        form::secret_name(name, secret.name.as_deref(), findings);
        if subject.backend == Backend::Kubevirt {
            let detail = "KubeVirt's VNC takes no password; drop it: RBAC on virtualmachineinstances/vnc of subresources.kubevirt.io decides who may use 'virtctl vnc'";
            let code = Code::DisplayPasswordNeedsLibvirt;
            let fault = Violation::new(PASSWORD, code, Kind::Forbidden, detail);
            findings.deny(fault.unless_faulty(FieldPath::field("backend")));
        }
    }
    if kind == Some(DisplayType::None) {
        // A Machine without a screen may have a template with a graphics card.
        let is_own = video_leaf.path.is_from_user() || !kind_leaf.path.is_from_user();
        let video = video_leaf.value.filter(|_| is_own);
        let video = video.map(|_| video_leaf.path);
        for path in video.into_iter().chain(secret.map(|_| PASSWORD)) {
            let detail =
                "a machine with display.type: none has no display; drop it, or use type: vnc";
            let path = path.or_user_path(kind_leaf.path);
            findings.deny(Violation::new(
                path,
                Code::NoDisplay,
                Kind::Forbidden,
                detail,
            ));
        }
    }
    let is_given = kind_leaf.value.is_some() || video_leaf.value.is_some() || secret.is_some();
    let Some(kind) = kind.filter(|_| is_given) else {
        return;
    };
    let name = secret.and_then(|secret| secret.name.clone());
    parts.display = Some(NormalizedDisplay {
        password_secret_ref: name.map(|name| NormalizedSecretRef { name }),
        kind,
        video: video.filter(|_| kind != DisplayType::None),
    });
}

fn display_type(leaf: Leaf<&str>, findings: &mut Findings) -> Option<DisplayType> {
    let code = Code::UnsupportedDisplayType;
    let is_spice = |text: &&str| text.eq_ignore_ascii_case("spice");
    if let Some(text) = leaf.value.filter(is_spice) {
        let detail = "supported values: \"vnc\", \"none\"; SPICE needs several connections, of which a libvirt host passes on one: use vnc, which 'virtctl vnc' shows on KubeVirt, and any VNC viewer on a libvirt host";
        findings.deny(Violation::new(leaf.path, code, Kind::NotSupported, detail).text(text));
        return None;
    }
    form::choice(leaf, DisplayType::Vnc, code, findings)
}

/// The serial console.
fn console(subject: &Subject<'_>, parts: &mut Parts, _: &mut Findings) {
    let log = log(subject.merged).value;
    parts.console = log.map(|log| NormalizedConsole { log });
}

/// Rule [`Code::ConsoleLogUnavailable`].
fn console_log(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let leaf = log(lookup.merged);
    let was = lookup.stored.and_then(Normalized::console_log);
    if leaf.value != Some(true) || was == Some(true) || !lookup.is_on_libvirt() {
        return;
    }
    let selector = lookup.merged.user().node_selector.clone();
    let selector = selector.unwrap_or_default();
    let hosts = lookup.catalog.hosts();
    let fits = |host: &&Arc<HostRow>| match lookup.bound_host {
        Some(bound) => host.name == bound,
        None => host.matches(&selector),
    };
    if hosts.iter().filter(fits).any(|host| host.console_log_pool) {
        return;
    }
    let text = format!(
        "{}: no LibvirtHost that fits has a consoleLogPool, so the output of the console is not kept",
        leaf.path
    );
    findings.warn(Code::ConsoleLogUnavailable, &text);
}
