//! The pools of a LibvirtHost beside those of disks: images, logs, volumes that exist; and where images may come from.

use crate::code::Code;
use crate::field_path::FieldPath;
use crate::image_source;
use crate::violation::{Findings, Kind, Violation};

use super::super::form;
use super::super::rule::{Check, rules};
use super::{Entries, HostIntent, entry, leaf, libvirt_name, required_at};

rules! {
    "libvirthosts" Check::Host(image_pool), on HOSTS, Always, and [InvalidObjectName] {
        Refuse ImagePoolShared = "The pool for images is also a pool of disks."
            because "A guest writes its disk, and could make it look like an image that names a file of the host. libvirt probes each file of a pool, so whatever is made of an image has to be in a pool that no guest writes to."
            fix "Define a pool for images alone on the host, and name it in `imagePool`."
            crd Nothing,
    }
    "libvirthosts" Check::Host(console_log_pool), on HOSTS, Always, and [InvalidObjectName] {
        Refuse ConsoleLogPoolShared = "The pool for logs of consoles is also a pool of disks or of images."
            because "A guest writes its console without end and any bytes: it could fill the pool of other guests, or make its log look like an image that names a file of the host."
            fix "Define a pool for logs alone on the host, and name it in `consoleLogPool`."
            crd Nothing,
    }
    "libvirthosts" Check::Host(existing_volumes), on HOSTS, Always, and [HostFieldRequired, DuplicateOffer, InvalidObjectName] {
        Refuse ExistingVolumesShared = "A pool with existing volumes is also a pool of disks, images or logs."
            because "Users name volumes in it. In a pool that the controller uses they could name the disk of another Machine or an image."
            fix "Define a pool for volumes that exist alone on the host, move them there, and name it in `existingVolumes`."
            crd Nothing,
    }
    "libvirthosts" Check::Host(image_sources), on HOSTS, Always {
        Refuse InvalidImageSource = "A source of images is no prefix of a URL."
            because "What images may be fetched is decided by scheme, host, port and the segments of a path. A prefix that programs could read differently would allow more than it says."
            fix "Write it as `https://images.example.com/os/`, without user, query and fragment."
            crd Some,
    }
}

/// Rules [`Code::InvalidObjectName`] and [`Code::ImagePoolShared`] for the image pool.
fn image_pool(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let path = FieldPath::field("imagePool");
    let Some(pool) = spec.image_pool.as_deref() else {
        return;
    };
    libvirt_name(leaf(path, Some(pool)), findings);
    let mut storage = spec.storage.iter().flatten();
    if let Some(shared) = storage.find(|item| item.pool.as_deref() == Some(pool)) {
        let class = shared.storage_class.as_deref().unwrap_or_default();
        let detail = format!(
            "is also the pool of storage class '{class}', which guests write to; define a pool for images alone (virsh pool-define-as) and name it here"
        );
        let fault = Violation::new(path, Code::ImagePoolShared, Kind::Invalid, detail);
        findings.deny(fault.text(pool));
    }
}

/// Rules [`Code::InvalidObjectName`] and [`Code::ConsoleLogPoolShared`] for the pool of logs.
fn console_log_pool(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let path = FieldPath::field("consoleLogPool");
    let Some(pool) = spec.console_log_pool.as_deref() else {
        return;
    };
    libvirt_name(leaf(path, Some(pool)), findings);
    let mut storage = spec.storage.iter().flatten();
    let is_storage = storage.any(|item| item.pool.as_deref() == Some(pool));
    if is_storage || spec.image_pool.as_deref() == Some(pool) {
        let other = if is_storage { "disks" } else { "images" };
        let detail = format!(
            "is also a pool of {other}, and guests write any bytes to their consoles; define a pool for logs alone (virsh pool-define-as) and name it here"
        );
        let fault = Violation::new(path, Code::ConsoleLogPoolShared, Kind::Invalid, detail);
        findings.deny(fault.text(pool));
    }
}

/// The rules about pools with existing volumes.
fn existing_volumes(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let (mut namespaces, mut pools) = (Entries::default(), vec![]);
    for (index, item) in spec.existing_volumes.iter().flatten().enumerate() {
        let at = |field| FieldPath::item("existingVolumes", index, field);
        let pool = required_at(
            leaf(at("pool"), item.pool.as_deref()),
            "name the pool",
            findings,
        );
        libvirt_name(pool, findings);
        pools.push(pool);
        if let Some((name, other)) = pool
            .value
            .and_then(|name| Some((name, use_of(spec, name)?)))
        {
            let detail = format!(
                "is also a pool of {other}; define a pool for volumes that exist alone (virsh pool-define-as) and name it here"
            );
            let fault = Violation::new(
                pool.path,
                Code::ExistingVolumesShared,
                Kind::Invalid,
                detail,
            );
            findings.deny(fault.text(name));
        }
        let named = item.namespaces.iter().flatten();
        if item.namespaces.as_ref().is_none_or(Vec::is_empty) {
            let fix = "name the namespaces whose Machines may use the volumes";
            required_at(leaf(at("namespaces"), None), fix, findings);
        }
        for (index, namespace) in named.enumerate() {
            let at = entry(at("namespaces"), index);
            if !form::is_label(namespace) {
                findings.deny(form::invalid_object_label(at.clone(), namespace));
            }
            let why = "a host offers each namespace one pool";
            namespaces.add(namespace, &at, why, findings);
        }
    }
    form::unique_names(pools, Code::DuplicateOffer, findings);
}

/// What else the controller uses a pool for.
fn use_of(spec: &HostIntent, pool: &str) -> Option<&'static str> {
    let mut storage = spec.storage.iter().flatten();
    if storage.any(|item| item.pool.as_deref() == Some(pool)) {
        Some("disks")
    } else if spec.image_pool.as_deref() == Some(pool) {
        Some("images")
    } else if spec.console_log_pool.as_deref() == Some(pool) {
        Some("logs")
    } else {
        None
    }
}

/// Rule [`Code::InvalidImageSource`].
fn image_sources(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    for (index, source) in spec.image_sources.iter().flatten().enumerate() {
        if let Err(error) = image_source::prefix(source) {
            let location = entry(FieldPath::field("imageSources"), index);
            let detail = format!("{error}; write it as 'https://images.example.com/os/'");
            let fault = Violation::new(location, Code::InvalidImageSource, Kind::Invalid, detail);
            findings.deny(fault.text(&image_source::redacted(source)));
        }
    }
}
