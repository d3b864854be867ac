//! Images that the policies of a namespace allow.

use crate::api::choice::Backend;
use crate::api::machine::{Disk, Image};
use crate::catalog::Policy;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::image_source::redacted;
use crate::normalize::{Item, Leaf};
use crate::rules::disks::existing;
use crate::rules::image_url;
use crate::rules::rule::PolicySubject;
use crate::violation::{Findings, Kind, Violation};

use super::message::allows;

/// Rule [`Code::ImageSourceNotAllowed`] for the images of disks and CD-ROM drives, and for disks on existing claims and volumes.
pub(super) fn images(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    for item in &machine.merged.disks {
        name(item.image_name(), policy, findings);
        existing_disk(item, machine.backend, policy, findings);
        if let Some(image) = item.pick("image", |disk| disk.image.as_ref()).value {
            let at = |field| item.path(field, |disk| disk.image.is_some());
            source(image, &at, policy, findings);
        }
    }
    for item in &machine.merged.cdroms {
        name(item.image_name(), policy, findings);
        if let Some(image) = item.pick("image", |cdrom| cdrom.image.as_ref()).value {
            let at = |field| item.path(field, |cdrom| cdrom.image.is_some());
            source(image, &at, policy, findings);
        }
    }
}

/// Rule [`Code::ImageSourceNotAllowed`] for the name of a MachineImage. Its source is not compared with the policy: the
/// administrator wrote it.
fn name(leaf: Leaf<&str>, policy: &Policy, findings: &mut Findings) {
    if let (Some(name), Some(patterns)) = (leaf.value, &policy.image_names)
        && !patterns.iter().any(|pattern| pattern.matches(name))
    {
        let patterns = patterns.iter().map(ToString::to_string).collect();
        let detail = allows(policy, name, patterns);
        let code = Code::ImageSourceNotAllowed;
        let fault = Violation::new(leaf.path, code, Kind::Forbidden, detail);
        findings.deny(fault.text(name));
    }
}

/// Rule [`Code::ImageSourceNotAllowed`] for a disk on an existing claim or volume: its content comes from there.
fn existing_disk(
    item: &Item<'_, Disk>,
    backend: Backend,
    policy: &Policy,
    findings: &mut Findings,
) {
    let leaf = existing::source(item, backend);
    if let Some(claim) = leaf.value.filter(|_| !policy.allows_claims) {
        let what = match backend {
            Backend::Kubevirt => "claims",
            Backend::Libvirt => "volumes",
        };
        let detail = format!(
            "policy '{}' allows no disks on existing {what}",
            policy.name
        );
        let code = Code::ImageSourceNotAllowed;
        findings.deny(Violation::new(leaf.path, code, Kind::Forbidden, detail).text(claim));
    }
}

fn source(
    image: &Image,
    at: &dyn Fn(&'static str) -> FieldPath,
    policy: &Policy,
    findings: &mut Findings,
) {
    // A message shows a part of a long value, and a URL without the credentials in it: another image is another fault.
    let mut deny = |field, value: &str, whole: &str, detail: String| {
        let code = Code::ImageSourceNotAllowed;
        let identity = format!("{}: {whole}", policy.name);
        let fault = Violation::new(at(field), code, Kind::Forbidden, detail);
        findings.deny(fault.text(value).known_as(identity));
    };
    // A text that is no URL is refused as such.
    if let (Some(url), Some(prefixes)) = (&image.url, &policy.sources)
        && image_url::check(url).is_ok()
        && !prefixes.iter().any(|prefix| prefix.covers(url))
    {
        let shown = redacted(url);
        let prefixes = prefixes.iter().map(ToString::to_string).collect();
        deny("image.url", &shown, url, allows(policy, &shown, prefixes));
    }
    if let Some(claim) = &image.persistent_volume_claim
        && !policy.allows_claims
    {
        let detail = format!("policy '{}' allows no copies of claims", policy.name);
        deny("image.persistentVolumeClaim", claim, claim, detail);
    }
    if let (Some(volume), Some(patterns)) = (&image.volume, &policy.volumes)
        && !patterns.iter().any(|pattern| pattern.matches(volume))
    {
        let patterns = patterns.iter().map(ToString::to_string).collect();
        let detail = allows(policy, volume, patterns);
        deny("image.volume", volume, volume, detail);
    }
}
