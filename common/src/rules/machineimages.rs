//! MachineImages themselves. Names of them in Machines are checked where they are looked up.

use crate::api::choice::Backend;
use crate::api::choice::{Choice as _, OsFamily};
use crate::api::machine_image::{MachineImageSource, MachineImageSpec};
use crate::bounds::TEXT_MAX;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::image_source::redacted;
use crate::normalize::Leaf;
use crate::render::libvirt::{AS_THE_GUEST_HAD_IT, is_reserved_volume};
use crate::violation::{Findings, Kind, Violation};

use super::disks::CAPACITY;
use super::rule::{Check, rules};
use super::{form, images, limits, quantities};

rules! {
    "machineimages" Check::MachineImage(source), on IMAGES, Always, and [ImageSource, UnsupportedImageUrl, InvalidImageChecksum, InvalidImageSecret, InvalidObjectName, ImageVolumeReserved, TooLong] {
        Refuse ImageDigestRequired = "A MachineImage is a container image without a digest."
            because "What a tag means changes. Machines that name the image would get different contents, although the image has not changed."
            fix "End the `url` with the digest, `@sha256:` and 64 hexadecimal digits: `skopeo inspect docker://…` prints it."
            crd All,
        Refuse DataSourceIncomplete = "A DataSource lacks its name or namespace."
            because "MachineImages have no namespace, so the DataSource needs one of its own."
            fix "Give `name` and `namespace`."
            crd All,
    }
    "machineimages" Check::MachineImage(min_disk_size), on IMAGES, Always, and [InvalidQuantity, DiskTooSmall, DiskTooLarge, UnitMissing] {
        Refuse MinDiskSizeRequired = "A MachineImage does not say how large a disk must be for it."
            because "The size of an image is known only after it was fetched, and a disk is made before."
            fix "Give `minDiskSize`: at least the virtual size, which `qemu-img info` prints."
            crd All,
    }
    "machineimages" Check::MachineImage(os), on IMAGES, Always {
        Refuse UnsupportedImageOs = "The family of the operating system in an image does not exist."
            because "Defaults depend on it."
            fix "Take one of the values that the message lists."
            crd All,
    }
    "machineimages" Check::MachineImage(texts), on IMAGES, Always, and [TooLong] {}
}

/// Rules [`Code::ImageSource`], [`Code::UnsupportedImageUrl`], [`Code::InvalidImageChecksum`],
/// [`Code::ImageDigestRequired`], [`Code::DataSourceIncomplete`] and [`Code::ImageVolumeReserved`].
fn source(spec: &MachineImageSpec, findings: &mut Findings) {
    let at = FieldPath::field;
    let nothing = MachineImageSource::default();
    let MachineImageSource {
        checksum,
        data_source,
        url,
        volume,
    } = spec.source.as_ref().unwrap_or(&nothing);
    let count = usize::from(url.is_some())
        + usize::from(data_source.is_some())
        + usize::from(volume.is_some());
    if count != 1 {
        let detail = "give exactly one of url, dataSource and volume";
        let kind = if count == 0 {
            Kind::Required
        } else {
            Kind::Forbidden
        };
        findings.deny(Violation::new(
            at("source"),
            Code::ImageSource,
            kind,
            detail,
        ));
    }
    if let Some(url) = url {
        images::url_form(url, Backend::Libvirt, at("source.url"), findings);
        no_user(url, findings);
    }
    let is_container = url
        .as_deref()
        .is_some_and(|url| url.starts_with("docker://"));
    if let Some(url) = url
        .as_deref()
        .filter(|url| is_container && !has_digest(url))
    {
        let detail = "must end with the digest of the content, '@sha256:' and 64 lower-case hexadecimal digits: a tag can get another content, and Machines that name this image would differ";
        let code = Code::ImageDigestRequired;
        let fault = Violation::new(at("source.url"), code, Kind::Invalid, detail);
        findings.deny(fault.text(&redacted(url)));
    }
    if let Some(checksum) = checksum {
        let path = at("source.checksum");
        if is_container {
            let detail = "CDI verifies no checksum of a container image; remove it: the digest in the url is verified";
            let code = Code::InvalidImageChecksum;
            findings.deny(Violation::new(path, code, Kind::Forbidden, detail));
        } else {
            images::checksum_form(checksum, url.is_some() || count == 0, path, findings);
        }
    }
    if let Some(reference) = data_source {
        for (field, value) in [
            ("source.dataSource.namespace", &reference.namespace),
            ("source.dataSource.name", &reference.name),
        ] {
            let path = at(field);
            if value.is_none() {
                let detail = "name a DataSource of CDI and its namespace";
                let code = Code::DataSourceIncomplete;
                findings.deny(Violation::new(path, code, Kind::Required, detail));
            }
            match value.as_deref() {
                Some(name) if field.ends_with("namespace") && !form::is_label(name) => {
                    findings.deny(form::invalid_object_label(path, name));
                }
                value => form::object_name(Leaf { value, path }, findings),
            }
        }
    }
    if let Some(volume) = volume {
        let path = at("source.volume");
        limits::length(path, Some(volume), TEXT_MAX, findings);
        if volume.is_empty() {
            let detail = "name a volume of the image pool of the libvirt hosts";
            let code = Code::ImageSource;
            findings.deny(Violation::new(path, code, Kind::Required, detail));
        } else if is_reserved_volume(volume) {
            let detail = format!(
                "has the form of the names that the controller gives to disks and fetched images; write it into a volume of another name {AS_THE_GUEST_HAD_IT}, or name the url"
            );
            let code = Code::ImageVolumeReserved;
            findings.deny(Violation::new(path, code, Kind::Invalid, detail).text(volume));
        }
    }
}

/// Rule [`Code::InvalidImageSecret`]: everybody can read MachineImages.
fn no_user(url: &str, findings: &mut Findings) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') && !url.starts_with("docker://") {
        let detail = "everybody who is logged in can read MachineImages: remove the user from the url, and import an image that needs credentials yourself";
        let code = Code::InvalidImageSecret;
        let path = FieldPath::field("source.url");
        let fault = Violation::new(path, code, Kind::Invalid, detail);
        findings.deny(fault.text(&redacted(url)));
    }
}

/// Whether the reference of a container image ends with a digest.
fn has_digest(url: &str) -> bool {
    let hexadecimal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let digest = url.rsplit_once("@sha256:").map(|(_, digest)| digest);
    digest.is_some_and(|digest| digest.len() == 64 && digest.bytes().all(hexadecimal))
}

/// Rule [`Code::MinDiskSizeRequired`] and the bounds.
fn min_disk_size(spec: &MachineImageSpec, findings: &mut Findings) {
    let leaf = Leaf {
        value: spec.min_disk_size.as_deref(),
        path: FieldPath::field("minDiskSize"),
    };
    if leaf.value.is_none() {
        let detail = "give the smallest size of a disk for the image, such as '3Gi': at least its virtual size, which qemu-img info prints";
        let code = Code::MinDiskSizeRequired;
        findings.deny(Violation::new(leaf.path, code, Kind::Required, detail));
    }
    quantities::bytes(leaf, &CAPACITY, findings);
}

/// Rule [`Code::UnsupportedImageOs`].
fn os(spec: &MachineImageSpec, findings: &mut Findings) {
    if let Some(text) = spec
        .os
        .as_deref()
        .filter(|text| OsFamily::parse(text).is_none())
    {
        let path = FieldPath::field("os");
        let code = Code::UnsupportedImageOs;
        findings.deny(form::unsupported::<OsFamily>(path, text, code));
    }
}

/// Rule [`Code::TooLong`].
fn texts(spec: &MachineImageSpec, findings: &mut Findings) {
    for (field, text) in [
        ("defaultUser", &spec.default_user),
        ("deprecated", &spec.deprecated),
    ] {
        limits::length(FieldPath::field(field), text.as_deref(), TEXT_MAX, findings);
    }
}
