//! CEL rules of the CRDs: the API server evaluates them even when the webhook is bypassed. They refuse a
//! part of what the webhook refuses, and nothing that the webhook accepts. They therefore do not check a
//! value that a template or a setting of the webhook can still supply.

use serde_json::{Value, json};

use super::choice::Backend;
use crate::bounds::{AGENT_TIMEOUT_MAX, MEMORY_BLOCK, MEMORY_MAX, MEMORY_MIN};
use crate::names::{CLOUD_INIT_DISK, POD_VOLUMES};
use crate::quantity::Bytes;

/// The rules about a Machine's spec as a whole.
pub(crate) fn machine() -> Vec<Value> {
    [&of_every_machine()[..], &on_libvirt()].concat()
}

fn of_every_machine() -> [Value; 10] {
    [
        // A value that the stored object already has is accepted, so that status and finalizers can
        // still be written.
        rule(
            "!has(self.backend) || !has(oldSelf.normalized) || self.backend == oldSelf.normalized.backend || (has(oldSelf.backend) && self.backend == oldSelf.backend)",
            "backend cannot change: a machine cannot move between backends; create another Machine",
        ),
        rule(
            "!has(oldSelf.normalized) || !has(self.normalized) || self.normalized.backend == oldSelf.normalized.backend",
            "normalized.backend cannot change: a machine stays where it was made; delete normalized from your file",
        ),
        rule(
            "!has(self.disks) || !has(self.cdroms) || !self.disks.exists(d, self.cdroms.exists(c, c.name == d.name))",
            "disks and CD-ROMs share one set of names",
        ),
        rule(
            "!has(self.networks) || self.networks.all(n, !has(n.macAddress) || self.networks.exists_one(m, has(m.macAddress) && m.macAddress.lowerAscii() == n.macAddress.lowerAscii()))",
            "each network card needs a MAC address of its own",
        ),
        // Templates have no CD-ROMs.
        rule(
            "!has(self.bootOrder) || !('cdrom' in self.bootOrder) || (has(self.cdroms) && self.cdroms.exists(c, has(c.image) || !has(self.backend) || self.backend != 'libvirt'))",
            "no CD-ROM holds an image to boot from; add one to cdroms, or take cdrom out of bootOrder",
        ),
        on(
            Backend::Kubevirt,
            "!has(self.cdroms) || self.cdroms.all(c, has(c.size) || !has(c.image) || !(has(c.image.url) || has(c.image.persistentVolumeClaim)))",
            "KubeVirt imports the image of a CD-ROM into a volume: give a size that holds it",
        ),
        on(
            Backend::Kubevirt,
            &every_image("!has(it.image.volume)"),
            "image.volume needs backend: libvirt",
        ),
        on(
            Backend::Kubevirt,
            &every_image("!has(it.image.secretRef)"),
            "image.secretRef needs backend: libvirt",
        ),
        on(
            Backend::Kubevirt,
            "!has(self.domain) || !has(self.domain.machine) || !has(self.domain.machine.type) || !(self.domain.machine.type in ['pc', 'pc-i440fx'])",
            "KubeVirt runs pc-q35 only",
        ),
        on(
            Backend::Kubevirt,
            "!has(self.display) || !has(self.display.passwordSecretRef)",
            "KubeVirt's VNC takes no password; display.passwordSecretRef needs backend: libvirt",
        ),
    ]
}

/// The rules about what a Machine on libvirt does not have.
fn on_libvirt() -> [Value; 9] {
    [
        on(
            Backend::Libvirt,
            "!has(self.disks) || self.disks.all(d, !has(d.selector) && !has(d.claimName))",
            "selector and claimName of a disk need backend: kubevirt",
        ),
        on(
            Backend::Libvirt,
            "!has(self.evictionStrategy)",
            "a libvirt host is not drained; evictionStrategy needs backend: kubevirt",
        ),
        on(
            Backend::Libvirt,
            "!has(self.placement) || !has(self.placement.tolerations)",
            "a libvirt host has no taints; placement.tolerations needs backend: kubevirt",
        ),
        on(
            Backend::Libvirt,
            "!has(self.placement) || (!has(self.placement.affinity) && !has(self.placement.topologySpreadConstraints))",
            "no scheduler places a Machine on libvirt; placement.affinity and topologySpreadConstraints need backend: kubevirt",
        ),
        on(
            Backend::Libvirt,
            "!has(self.placement) || !has(self.placement.priorityClassName)",
            "a libvirt host stops no guest to make room for another one; placement.priorityClassName needs backend: kubevirt",
        ),
        on(
            Backend::Libvirt,
            "!has(self.backendOverrides) || !has(self.backendOverrides.kubevirt)",
            "there is no VirtualMachine on libvirt; backendOverrides.kubevirt needs backend: kubevirt",
        ),
        on(
            Backend::Libvirt,
            &agent_is_asked(),
            "a libvirt host only asks whether the guest agent answers, within 5 s; other probes need backend: kubevirt",
        ),
        on(
            Backend::Libvirt,
            &every_image("!has(it.image.persistentVolumeClaim)"),
            "image.persistentVolumeClaim needs backend: kubevirt; use url or volume",
        ),
        on(
            Backend::Libvirt,
            &every_image("!has(it.image.url) || !it.image.url.startsWith('docker://')"),
            "an image.url that begins with docker:// needs backend: kubevirt; use https:// or http://",
        ),
    ]
}

/// The condition that there is no probe but that of readiness by the guest agent.
fn agent_is_asked() -> String {
    let none = ["exec", "httpGet", "tcpSocket"]
        .map(|field| format!("!has(self.probes.readiness.{field})"))
        .join(" && ");
    let timeout = "self.probes.readiness.timeoutSeconds";
    format!(
        "!has(self.probes) || (!has(self.probes.liveness) && (!has(self.probes.readiness) || ({none} && (!has({timeout}) || {timeout} <= {AGENT_TIMEOUT_MAX}))))"
    )
}

/// The rule that a probe is made in one way.
pub(crate) fn one_probe() -> Value {
    rule(
        "[has(self.exec), has(self.guestAgentPing), has(self.httpGet), has(self.tcpSocket)].exists_one(given, given)",
        "a probe is made by exactly one of exec, guestAgentPing, httpGet and tcpSocket",
    )
}

/// The rule that a liveness probe that failed need not succeed several times: the guest is a new one then.
pub(crate) fn liveness_succeeds_once() -> Value {
    rule(
        "!has(self.liveness) || !has(self.liveness.successThreshold) || self.liveness.successThreshold == 1",
        "the successThreshold of liveness is 1",
    )
}

/// The rule that a host needs credentials unless it is the controller's own.
pub(crate) fn credentials() -> Value {
    rule(
        "has(self.credentialsSecretRef) || !self.uri.matches('^(qemu|test)[+](tls|ssh)://')",
        "a host that is reached by tls or ssh needs credentialsSecretRef",
    )
}

/// The rule that a device of a host is offered by one name.
pub(crate) fn addresses_once() -> Value {
    rule(
        "self.all(kind, kind.addresses.all(address, self.exists_one(other, address in other.addresses)))",
        "a device can be offered by one name only",
    )
}

/// That no part of cloud-init's data is given as a text and as an object. CEL cannot count the fields of an object whose
/// fields are unknown to the schema, so these are plain conditions of the schema.
pub(crate) fn given_once() -> [Value; 2] {
    let not_both = |text: &str, object: &str| {
        json!({"not": {
            "required": [text, object],
            "properties": {text: {"minLength": 1}, object: {"minProperties": 1}},
        }})
    };
    [
        not_both("userData", "cloudConfig"),
        not_both("networkData", "networkConfig"),
    ]
}

/// That nothing for cloud-init is beside an answer file.
pub(crate) fn sysprep_alone() -> Value {
    let others = [
        "cloudConfig",
        "metaData",
        "networkConfig",
        "networkData",
        "networkDataSecretRef",
        "secretRef",
        "userData",
    ];
    let others = others
        .map(|field| format!("has(self.{field})"))
        .join(" || ");
    rule(
        &format!("!has(self.sysprep) || !({others})"),
        "an answer file is in place of all data for cloud-init",
    )
}

/// The rule that a machine without a screen has none of these fields of a screen.
pub(crate) fn no_display(fields: &[&str]) -> Value {
    let has = fields.iter().map(|field| format!("has(self.{field})"));
    let has = has.collect::<Vec<_>>().join(" || ");
    rule(
        &format!("!has(self.type) || self.type != 'none' || !({has})"),
        "a machine without a display takes no other field of it",
    )
}

/// The rule that no disk of a template is on a claim, which is an object of one namespace.
pub(crate) fn no_claim() -> Value {
    rule(
        "self.all(disk, !has(disk.claimName))",
        "claimName names an object of one namespace; set it in the Machine",
    )
}

/// The rule that no value occurs twice in a list.
pub(crate) fn named_once() -> Value {
    rule(
        "self.all(word, self.exists_one(other, other == word))",
        "each value may occur only once",
    )
}

/// The rules about a toleration, which are those of Kubernetes (`ValidateTolerations`).
pub(crate) fn toleration() -> [Value; 3] {
    [
        json!({
            "rule": "has(self.key) || has(self.operator) && self.operator == 'Exists'",
            "message": "a toleration of taints of any key needs operator: Exists",
        }),
        json!({
            "rule": "!has(self.value) || self.value == '' || !has(self.operator) || self.operator == 'Equal'",
            "message": "operator: Exists tolerates any value; drop value",
        }),
        json!({
            "rule": "!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
            "message": "tolerationSeconds needs effect: NoExecute",
        }),
    ]
}

/// The rule that an amount is within the bounds that the webhook enforces.
pub(crate) fn bounded(field: &str, min: u128, max: u128) -> Value {
    let [min, max] = [min, max].map(Bytes::new);
    rule(
        &format!(
            "!has(self.{field}) || !isQuantity(self.{field}) || (quantity(self.{field}).compareTo(quantity('{min}')) >= 0 && quantity(self.{field}).compareTo(quantity('{max}')) <= 0)"
        ),
        &format!("{field} must be from {min} to {max}"),
    )
}

/// The rules about memory and its maximum.
pub(crate) fn memory() -> [Value; 4] {
    let unless_both = "!has(self.size) || !has(self.maxSize) || !isQuantity(self.size) || !isQuantity(self.maxSize)";
    let growth = "quantity(self.maxSize).compareTo(quantity(self.size))";
    // CEL's `isInteger` is false for 1.5Gi although it is a whole number of bytes: the webhook checks
    // such values.
    let aligned = |field| {
        format!(
            "(!quantity(self.{field}).isInteger() || quantity(self.{field}).asInteger() % {MEMORY_BLOCK} == 0)"
        )
    };
    let (size, max_size) = (aligned("size"), aligned("maxSize"));
    let block = Bytes::new(MEMORY_BLOCK);
    [
        bounded("size", MEMORY_MIN, MEMORY_MAX),
        bounded("maxSize", MEMORY_MIN, MEMORY_MAX),
        rule(
            &format!("{unless_both} || {growth} >= 0"),
            "maxSize must be at least size",
        ),
        rule(
            &format!("{unless_both} || {growth} <= 0 || ({size} && {max_size})"),
            &format!("size and maxSize must be multiples of {block}, because the memory grows"),
        ),
    ]
}

/// The rule that no disk has the name of another volume in the guest's pod.
pub(crate) fn not_reserved() -> Value {
    let names = POD_VOLUMES.map(|name| format!("'{name}'")).join(", ");
    rule(
        &format!("!(self.name in ['{CLOUD_INIT_DISK}', {names}])"),
        "is reserved for a volume that the operator or KubeVirt adds to a guest; choose another",
    )
}

/// A rule for Machines that name this backend. The backend of the others depends on a setting of the
/// webhook, so the rule does not apply to them.
fn on(backend: Backend, condition: &str, message: &str) -> Value {
    let named = format!("!has(self.backend) || self.backend != '{backend}' || ({condition})");
    rule(&named, message)
}

/// The condition for the images of all disks and CD-ROM drives.
fn every_image(condition: &str) -> String {
    let of =
        |list| format!("(!has(self.{list}) || self.{list}.all(it, !has(it.image) || {condition}))");
    [of("disks"), of("cdroms")].join(" && ")
}

fn rule(condition: &str, message: &str) -> Value {
    json!({ "rule": condition, "message": message })
}
