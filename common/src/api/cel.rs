//! Rules in CEL, which stand in the CRDs beside the schemas: with them the API server alone refuses a
//! part of what the webhook does. None refuses what the webhook accepts, so nothing is said here of what
//! a template or a setting may still bring.

use serde_json::{Value, json};

use super::choice::Backend;
use crate::bounds::{MEMORY_BLOCK, MEMORY_MAX, MEMORY_MIN};
use crate::names::{CLOUD_INIT_DISK, POD_VOLUMES};
use crate::quantity::Bytes;

/// The rules about a Machine's spec as a whole.
pub(crate) fn machine() -> [Value; 12] {
    [
        // What the stored object has already is no change: status and finalizers can be written still.
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
            "!has(self.bootOrder) || !('cdrom' in self.bootOrder) || (has(self.cdroms) && self.cdroms.exists(c, has(c.image)))",
            "no CD-ROM holds an image to boot from; add one to cdroms, or take cdrom out of bootOrder",
        ),
        on(
            Backend::Kubevirt,
            "!has(self.cdroms) || self.cdroms.all(c, has(c.image))",
            "KubeVirt has no empty drives",
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
            "!has(self.domain) || !has(self.domain.machine) || !has(self.domain.machine.type) || !(self.domain.machine.type in ['pc', 'pc-i440fx'])",
            "KubeVirt runs pc-q35 only",
        ),
        on(
            Backend::Libvirt,
            "!has(self.disks) || self.disks.all(d, !has(d.selector) && !has(d.volumeName))",
            "selector and volumeName of a disk need backend: kubevirt",
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

/// The rule that a host is reached with credentials, unless it is the controller's own.
pub(crate) fn credentials() -> Value {
    rule(
        "has(self.credentialsSecretRef) || !self.uri.matches('^(qemu|test)[+](tls|ssh)://')",
        "a host that is reached by tls or ssh needs credentialsSecretRef",
    )
}

/// The rule that no word stands twice in a list.
pub(crate) fn named_once() -> Value {
    rule(
        "self.all(word, self.exists_one(other, other == word))",
        "each is named once",
    )
}

/// The rule that an amount stays within the bounds that the webhook demands, too.
pub(crate) fn bounded(field: &str, min: u128, max: u128) -> Value {
    let [min, max] = [min, max].map(Bytes::new);
    rule(
        &format!(
            "!has(self.{field}) || !isQuantity(self.{field}) || (quantity(self.{field}).compareTo(quantity('{min}')) >= 0 && quantity(self.{field}).compareTo(quantity('{max}')) <= 0)"
        ),
        &format!("{field} must be from {min} to {max}"),
    )
}

/// The rules about memory, and what it may grow to.
pub(crate) fn memory() -> [Value; 4] {
    let unless_both = "!has(self.size) || !has(self.maxSize) || !isQuantity(self.size) || !isQuantity(self.maxSize)";
    let growth = "quantity(self.maxSize).compareTo(quantity(self.size))";
    // 1.5Gi is no integer to Kubernetes, whole as it is: such are left to the webhook.
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

/// The rule that no disk has the name of a volume that a guest has beside its disks.
pub(crate) fn not_reserved() -> Value {
    let names = POD_VOLUMES.map(|name| format!("'{name}'")).join(", ");
    rule(
        &format!("!(self.name in ['{CLOUD_INIT_DISK}', {names}])"),
        "is the name of a volume that a guest has beside its disks; choose another",
    )
}

/// A rule for Machines that name this backend: what the others run on, a setting says.
fn on(backend: Backend, demand: &str, message: &str) -> Value {
    let named = format!("!has(self.backend) || self.backend != '{backend}' || ({demand})");
    rule(&named, message)
}

/// What every image of a disk or a CD-ROM has to be.
fn every_image(demand: &str) -> String {
    let of =
        |list| format!("(!has(self.{list}) || self.{list}.all(it, !has(it.image) || {demand}))");
    [of("disks"), of("cdroms")].join(" && ")
}

fn rule(demand: &str, message: &str) -> Value {
    json!({ "rule": demand, "message": message })
}
