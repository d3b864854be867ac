//! The family of the guest's operating system, and the defaults that follow from it.
//!
//! Each default is where its field is resolved; the functions here say whether the guest is Windows. The default's path
//! is that of the field that says so, so that a message names what the user can change.

use std::collections::BTreeMap;

use crate::api::choice::{Choice as _, Drivers, OsFamily};
use crate::api::normalized::Normalized;
use crate::code::Code;
use crate::normalize::{ImageDefaults, Leaf, Merged, defaults_of};
use crate::violation::Findings;

use super::rule::{Check, Lookup, Parts, Subject, rules};
use super::{boot, firmware, form, sizing};

rules! {
    "machine" Check::Part(os), on MACHINES_AND_TEMPLATES, Always {
        Refuse UnsupportedOs = "The family of the guest's operating system does not exist."
            because "Defaults follow from it, so a guess would give the guest hardware that it does not start on."
            fix "Take one of the values that the message lists, or leave the field out."
            crd All,
        Refuse UnsupportedDrivers = "The drivers of the guest are none of those that are known."
            because "The buses of disks and the models of network cards follow from it."
            fix "Take one of the values that the message lists, or leave the field out."
            crd All,
    }
    "machine" Check::Lookup(many_sockets), on MACHINES, Create {
        Warn ManyWindowsSockets = "A Windows guest has more than two sockets, because the cores are sockets by default."
            because "Windows 10 and 11 use two sockets; the other vCPUs would be idle. Windows Server uses all."
            fix "Write `sockets: 1` or `sockets: 2` for those, and the cores of each."
            crd Nothing,
    }
}

/// Time in seconds that Windows has to shut down by default: it may install updates meanwhile.
pub(super) const WINDOWS_GRACE_PERIOD: u32 = 3600;

/// The family that the Machine or its template names, else that of the MachineImage that the machine boots from.
pub(crate) fn family<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    let written = written(merged);
    let default = || match merged.defaults().os {
        Some(kept) => kept,
        None => boot::boot_image(merged)?.pin.os,
    };
    Leaf {
        value: written.value.or_else(|| default().map(OsFamily::as_str)),
        ..written
    }
}

/// The defaults of a stored block that neither its spec nor the new one writes.
pub(crate) fn kept(merged: &Merged<'_>, old: &Merged<'_>, old_block: &Normalized) -> ImageDefaults {
    let [was, is] = [old, merged].map(|merged| written(merged).value);
    let stored = defaults_of(old_block);
    let is_open = |merged: &Merged<'_>| firmware::written_efi(merged).value.is_none();
    ImageDefaults {
        os: stored.os.filter(|_| was.is_none() && is.is_none()),
        // Windows needs UEFI, so another family decides anew.
        efi: stored
            .efi
            .filter(|_| was == is && is_open(old) && is_open(merged)),
    }
}

fn written<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    merged.pick(
        "os",
        |spec| spec.os.as_deref(),
        |template| template.os.as_deref(),
    )
}

fn drivers<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    merged.pick(
        "drivers",
        |spec| spec.drivers.as_deref(),
        |template| template.drivers.as_deref(),
    )
}

/// Whether the guest is Windows.
pub(crate) fn is_windows(merged: &Merged<'_>) -> bool {
    family(merged).value == Some(OsFamily::Windows.as_str())
}

/// Whether the guest has the drivers only that Windows brings along: none for virtio.
pub(crate) fn lacks_virtio(merged: &Merged<'_>) -> bool {
    let default = if is_windows(merged) {
        Drivers::Inbox
    } else {
        Drivers::Virtio
    };
    let written = drivers(merged).value.and_then(Drivers::parse);
    is_windows(merged) && written.unwrap_or(default) == Drivers::Inbox
}

/// A field that is true by default on Windows.
pub(crate) fn or_windows(written: Leaf<bool>, merged: &Merged<'_>) -> Leaf<bool> {
    if written.value.is_none() && is_windows(merged) {
        Leaf {
            value: Some(true),
            path: family(merged).path,
        }
    } else {
        written
    }
}

/// Rule [`Code::ManyWindowsSockets`].
fn many_sockets(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let merged = lookup.merged;
    let [cores, _, sockets, _] = sizing::cpu_leaves(merged);
    let count = sockets.value.unwrap_or(1);
    if is_windows(merged) && cores.value.is_none() && count > 2 {
        let text = format!(
            "{}: {count} cores are {count} sockets of a Windows guest, and Windows 10 and 11 use two; set sockets to 1 for those",
            sockets.path
        );
        findings.warn(Code::ManyWindowsSockets, &text);
    }
}

/// Rules [`Code::UnsupportedOs`] and [`Code::UnsupportedDrivers`].
fn os(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    let family = family(merged);
    if let Some(text) = family.value {
        parts.os = OsFamily::parse(text);
        if parts.os.is_none() {
            let code = Code::UnsupportedOs;
            findings.deny(form::unsupported::<OsFamily>(family.path, text, code));
        }
    }
    let drivers = drivers(merged);
    if let Some(text) = drivers.value.filter(|text| Drivers::parse(text).is_none()) {
        let code = Code::UnsupportedDrivers;
        findings.deny(form::unsupported::<Drivers>(drivers.path, text, code));
    }
}
