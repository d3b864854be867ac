//! The family of the guest's operating system, and the defaults that follow from it.
//!
//! Each default is where its field is resolved; the functions here say whether the guest is Windows. The default's path
//! is that of the field that says so, so that a message names what the user can change.

use crate::api::choice::{Choice as _, Drivers, OsFamily};
use crate::code::Code;
use crate::normalize::{Leaf, Merged};
use crate::violation::Findings;

use super::boot_image::boot_image;
use super::form;
use super::rule::{Check, Parts, Subject, rules};

rules! {
    "machine" Check::Part(os), on MACHINES_AND_TEMPLATES, Always {
        Refuse UnsupportedOs = "The family of the guest's operating system does not exist."
            because "Defaults follow from it, so a guess would give the guest hardware that it does not start on."
            fix "Take one of the values that the message lists, or leave the field out."
            crd All,
        Refuse UnsupportedDrivers = "The kind of drivers does not exist."
            because "The buses of disks and the models of network cards follow from it."
            fix "Take one of the values that the message lists, or leave the field out."
            crd All,
    }
}

/// Time in seconds that Windows has to shut down by default: it may install updates meanwhile.
pub(super) const WINDOWS_GRACE_PERIOD: u32 = 3600;

/// The family that the Machine or its template names, else that of the MachineImage that the machine boots from.
pub(crate) fn family<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    let written = written(merged);
    let default = || match merged.defaults().os {
        Some(kept) => kept,
        None => boot_image(merged)?.pin.os,
    };
    Leaf {
        value: written.value.or_else(|| default().map(OsFamily::as_str)),
        ..written
    }
}

/// The family that the Machine or its template names.
pub(super) fn written<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
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
    let written = || drivers(merged).value.and_then(Drivers::parse);
    is_windows(merged) && written().unwrap_or(Drivers::Inbox) == Drivers::Inbox
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

/// Rules [`Code::UnsupportedOs`] and [`Code::UnsupportedDrivers`].
fn os(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    parts.os = form::given_choice(family(merged), Code::UnsupportedOs, findings);
    // Buses and models follow from it; the block has those.
    let _: Option<Drivers> =
        form::given_choice(drivers(merged), Code::UnsupportedDrivers, findings);
}
