//! Images whose content is written to disks and CD-ROMs.

use crate::api::choice::Backend;
use crate::api::machine::{Image, ImageSecretRef};
use crate::bounds::TEXT_MAX;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::image_source::redacted;
use crate::normalize::{Filled, Item, Leaf, Merged};
use crate::quantity::Bytes;
use crate::render::kubevirt::is_unverifiable;
use crate::render::libvirt::{AS_THE_GUEST_HAD_IT, is_reserved_volume};
use crate::userinfo::has_password;
use crate::violation::{Findings, Kind, Location, Violation};
use crate::words::shortened;

use super::rule::{Check, rules};
use super::{form, image_url};

rules! {
    "disks" Check::Value, on MACHINES_AND_TEMPLATES, Always {
        Refuse ImageSource = "An image has no source, or more than one."
            because "A disk is filled from one place."
            fix "Give exactly one of `name`, `url`, `persistentVolumeClaim` and `volume`; in a MachineImage one of `url`, `dataSource` and `volume`."
            crd Some,
        Refuse UnsupportedImageUrl = "Nothing can be fetched from the address of an image."
            because "The importer supports three schemes only, and CDI refuses a text that is neither a URL nor a reference to a container image."
            fix "Use an address that begins with `https://`, `http://` or `docker://`, in the form that the message names."
            crd Some,
        Refuse InvalidImageChecksum = "The checksum of an image is not a SHA-256, the image has no url, or the checksum would not be verified."
            because "A checksum that cannot be right would refuse every image. CDI verifies none of a container image, and the controller imports no image whose checksum would not be verified."
            fix "Write `sha256:` and 64 hexadecimal digits, beside a `url` with `https://` or `http://`. Of a container image, put the digest into the `url`."
            crd Some,
        Refuse ImageVolumeNeedsLibvirt = "An image names a volume of a libvirt host, and the backend is KubeVirt."
            because "Pools of volumes exist on libvirt hosts only."
            fix "Use `url` or `persistentVolumeClaim`, or `backend: libvirt`."
            crd Some,
        Refuse ImageVolumeReserved = "An image names a volume that the controller made."
            because "It is the disk of a guest, which the guest writes, or an image that was fetched for those who named its URL. A user who named it would read data of others."
            fix "Write what you may use into a volume of another name, in the format in which its guest had it (`qemu-img convert -f raw -O qcow2`, or `-f qcow2`), and name that. Do not use `virsh vol-clone`, which reads a header that a guest may have written. Name an image of a URL by `url`."
            crd Nothing,
        Refuse InvalidImageSecret = "An image has credentials, and no address that they can be sent to."
            because "They are sent in a header, which is not encrypted without TLS. Claims and volumes need none, and an address with a user has credentials of its own, which everybody who can read the Machine can read."
            fix "Use a `url` that begins with `https://` and has no user, or remove `secretRef`."
            crd Some,
        Refuse ImageSecretNeedsLibvirt = "An image has credentials, and the backend is KubeVirt."
            because "CDI sends the credentials of an import to every server that the first one redirects to."
            fix "Use `backend: libvirt`, or import the image into a PersistentVolumeClaim yourself and name that in `persistentVolumeClaim`."
            crd Some,
        Refuse DiskSmallerThanImage = "A disk or CD-ROM is smaller than the MachineImage that it is filled with needs."
            because "A volume that is smaller than the image cannot hold it, and a clone is never smaller than what it is a clone of."
            fix "Leave the size out, or give at least the one in the message."
            crd Nothing,
    }
}

/// Rule [`Code::DiskSmallerThanImage`].
pub(crate) fn smaller(size: Leaf<&str>, least: Bytes, image: Leaf<&str>) -> Violation {
    let image = image.value.unwrap_or_default();
    let detail = format!("MachineImage '{image}' needs at least {least}; leave size out for that");
    let code = Code::DiskSmallerThanImage;
    let fault = Violation::new(size.path, code, Kind::Invalid, detail);
    fault.text(size.value.unwrap_or_default())
}

/// Whether an item names a MachineImage that was not found, which is reported where it is looked up: [`Code::ImageNotFound`].
pub(crate) fn is_unknown<T: Filled>(merged: &Merged<'_>, item: &Item<'_, T>) -> bool {
    merged.is_complete() && item.image_name().value.is_some() && item.pinned_image().is_none()
}

/// Rule [`Code::ImageVolumeNeedsLibvirt`] for the MachineImage that an item names.
pub(crate) fn resolved<T: Filled>(item: &Item<'_, T>, backend: Backend, findings: &mut Findings) {
    let Some(pinned) = item.pinned_image() else {
        return;
    };
    if pinned.image.volume.is_some() && backend != Backend::Libvirt {
        let name = item.image_name();
        let detail = "is a MachineImage of a volume of libvirt hosts; use another one, or set backend: libvirt";
        let code = Code::ImageVolumeNeedsLibvirt;
        let fault = Violation::new(name.path, code, Kind::Invalid, detail);
        let fault = fault.text(name.value.unwrap_or_default());
        findings.deny(fault.unless_faulty(FieldPath::field("backend")));
    }
}

/// The source of an image: rules [`Code::ImageSource`], [`Code::UnsupportedImageUrl`],
/// [`Code::InvalidImageChecksum`], [`Code::ImageVolumeNeedsLibvirt`], [`Code::ImageVolumeReserved`]. `fetched_by_cdi`: whether CDI will
/// fetch the image, as far as is known. `at` returns the path of a field of the image.
pub(crate) fn source(
    image: &Image,
    backend: Backend,
    fetched_by_cdi: bool,
    at: &dyn Fn(&'static str) -> FieldPath,
    findings: &mut Findings,
) {
    let Image {
        url,
        checksum,
        name,
        persistent_volume_claim,
        secret_ref,
        volume,
    } = image;
    let sources = [name, url, persistent_volume_claim, volume]
        .into_iter()
        .flatten()
        .count();
    if sources != 1 {
        let detail = "give exactly one of name, url, persistentVolumeClaim and volume";
        let kind = if sources == 0 {
            Kind::Required
        } else {
            Kind::Forbidden
        };
        findings.deny(Violation::new(at("image"), Code::ImageSource, kind, detail));
    }
    if let Some(url) = url {
        url_form(url, backend, at("image.url"), findings);
    }
    if let Some(checksum) = checksum {
        // Without any source, the missing url is reported, not the checksum.
        let has_url = url.is_some() || sources == 0;
        let path = at("image.checksum");
        if fetched_by_cdi && is_unverifiable(image) {
            let detail = "CDI verifies no checksum of a container image; remove it, and put the digest into the url: docker://registry/image@sha256:<digest>";
            let code = Code::InvalidImageChecksum;
            let fault = Violation::new(path, code, Kind::Forbidden, detail);
            findings.deny(fault.unless_faulty(FieldPath::field("backend")));
        } else {
            checksum_form(checksum, has_url, path, findings);
        }
    }
    if let Some(reference) = secret_ref {
        // Without any source, the missing url is reported, not the credentials.
        let is_needed = url.is_some() || sources == 0;
        credentials(reference, url.as_deref(), is_needed, backend, at, findings);
    }
    let name = Leaf {
        value: name.as_deref(),
        path: at("image.name"),
    };
    form::object_name(name, findings);
    let claim = Leaf {
        value: persistent_volume_claim.as_deref(),
        path: at("image.persistentVolumeClaim"),
    };
    form::object_name(claim, findings);
    if let Some(volume) = volume {
        libvirt_volume(volume, sources == 1, backend, at("image.volume"), findings);
    }
}

/// The credentials of an image: rules [`Code::InvalidImageSecret`], [`Code::ImageSecretNeedsLibvirt`],
/// [`Code::SecretNameRequired`], [`Code::InvalidObjectName`]. Whether the Secret exists is known to the controller only.
fn credentials(
    reference: &ImageSecretRef,
    url: Option<&str>,
    is_needed: bool,
    backend: Backend,
    at: &dyn Fn(&'static str) -> FieldPath,
    findings: &mut Findings,
) {
    let path = at("image.secretRef");
    let name = Location::from(path).member("name");
    form::secret_name(name, reference.name.as_deref(), findings);
    let invalid = if is_needed {
        url.and_then(why_not_sent)
    } else {
        Some("credentials are sent only for an image with a url; remove secretRef")
    };
    if let Some(detail) = invalid {
        let code = Code::InvalidImageSecret;
        findings.deny(Violation::new(path, code, Kind::Forbidden, detail));
    } else if backend != Backend::Libvirt {
        let detail = "CDI would send the credentials to every server that the first one redirects to; set backend: libvirt, or import the image into a claim and name that in persistentVolumeClaim";
        let code = Code::ImageSecretNeedsLibvirt;
        let fault = Violation::new(path, code, Kind::Forbidden, detail);
        findings.deny(fault.unless_faulty(FieldPath::field("backend")));
    }
}

/// Why no credentials are sent to an address.
fn why_not_sent(url: &str) -> Option<&'static str> {
    let rest = url.strip_prefix("https://");
    let Some(rest) = rest else {
        return Some(
            "credentials are sent only to an address that begins with https://; use such a url, or remove secretRef",
        );
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority
        .contains('@')
        .then_some("the url has a user already; remove the user from the url, or remove secretRef")
}

/// A volume of a libvirt host's image pool; `is_only` if the image has no other source.
fn libvirt_volume(
    volume: &str,
    is_only: bool,
    backend: Backend,
    path: FieldPath,
    findings: &mut Findings,
) {
    super::limits::length(path, Some(volume), TEXT_MAX, findings);
    if volume.is_empty() {
        let detail = "name a volume of the libvirt host's image pool";
        findings.deny(Violation::new(
            path,
            Code::ImageSource,
            Kind::Required,
            detail,
        ));
    } else if is_only && backend != Backend::Libvirt {
        let detail = "is a volume of a libvirt host; on KubeVirt use url or persistentVolumeClaim, or set backend: libvirt";
        let code = Code::ImageVolumeNeedsLibvirt;
        let fault = Violation::new(path, code, Kind::Invalid, detail).text(volume);
        findings.deny(fault.unless_faulty(FieldPath::field("backend")));
    } else if is_reserved_volume(volume) {
        let detail = format!(
            "has the form of the names that the controller gives to disks and fetched images, which are no images; write it into a volume of another name {AS_THE_GUEST_HAD_IT}, or name the url"
        );
        let code = Code::ImageVolumeReserved;
        findings.deny(Violation::new(path, code, Kind::Invalid, detail).text(volume));
    }
}

pub(super) fn url_form(url: &str, backend: Backend, path: FieldPath, findings: &mut Findings) {
    if let Err(error) = image_url::check(url) {
        let is_file = url
            .get(..FILE.len())
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case(FILE));
        let fix = match (suggestion(&redacted(url), backend), backend) {
            _ if is_file && backend == Backend::Libvirt => {
                "; a file is not read: put it into the image pool of the host (virsh vol-upload) and name it in volume, or serve it by https://".to_owned()
            }
            _ if is_file => {
                "; a file is not read: put it into a PersistentVolumeClaim (virtctl image-upload) and name that in persistentVolumeClaim, or serve it by https://".to_owned()
            }
            (Some(url), _) => format!("; did you mean '{url}'?"),
            (None, _) => String::new(),
        };
        let code = Code::UnsupportedImageUrl;
        let fault = Violation::new(path, code, Kind::Invalid, format!("{error}{fix}"));
        findings.deny(fault.text(&redacted(url)));
    }
}

/// The scheme of a file of the author's own machine.
const FILE: &str = "file:";

/// The URL that the author of a text most likely means: a scheme that is not in lower case or left out. What has no
/// scheme is a container image, unless it ends as files of disk images do or a libvirt host fetches it.
fn suggestion(text: &str, backend: Backend) -> Option<String> {
    const ENDINGS: [&str; 10] = [
        "qcow2", "img", "iso", "raw", "vmdk", "vhd", "vhdx", "gz", "xz", "zst",
    ];
    let url = if let Some((scheme, rest)) = text.split_once("://") {
        match &*scheme.to_ascii_lowercase() {
            "oci" | "container" | "registry" => format!("docker://{rest}"),
            scheme => format!("{scheme}://{rest}"),
        }
    } else {
        let ending = text.rsplit_once('.').map(|(_, ending)| ending);
        let is_file = ending.is_some_and(|ending| ENDINGS.contains(&ending));
        let scheme = if is_file || backend == Backend::Libvirt {
            "https"
        } else {
            "docker"
        };
        format!("{scheme}://{}", text.trim_start_matches('/'))
    };
    let is_valid = image_url::check(&url).is_ok() && !has_password(&url);
    (url != text && is_valid).then(|| shortened(&url))
}

pub(super) fn checksum_form(
    checksum: &str,
    has_url: bool,
    path: FieldPath,
    findings: &mut Findings,
) {
    let code = Code::InvalidImageChecksum;
    if !has_url {
        let detail = "a checksum is verified only for an image with a url; remove it";
        findings.deny(Violation::new(path, code, Kind::Forbidden, detail));
    } else if !is_checksum(checksum) {
        let rule =
            "must be 'sha256:' and 64 lower-case hexadecimal digits, as sha256sum prints them";
        let lower = checksum.to_ascii_lowercase();
        let fix = if is_checksum(&lower) {
            "; write it in lower case"
        } else if is_checksum(&format!("sha256:{lower}")) {
            "; write 'sha256:' before it"
        } else {
            ""
        };
        let fault = Violation::new(path, code, Kind::Invalid, format!("{rule}{fix}"));
        findings.deny(fault.text(&redacted(checksum)));
    }
}

fn is_checksum(text: &str) -> bool {
    let hexadecimal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let digest = text.strip_prefix("sha256:");
    digest.is_some_and(|digest| digest.len() == 64 && digest.bytes().all(hexadecimal))
}
