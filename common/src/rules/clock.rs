//! The hardware clock.

use crate::bounds::TIME_ZONE_MAX;
use crate::code::Code;
use crate::normalize::{Leaf, Merged};
use crate::violation::{Findings, Kind, Violation};
use crate::words::nearest;

use super::rule::{Check, Parts, Subject, rules};

rules! {
    "firmware" Check::Part(clock), on MACHINES_AND_TEMPLATES, Always {
        Refuse InvalidTimezone = "The time zone of the clock is not the name of an IANA time zone."
            because "QEMU takes an unknown time zone for UTC, and the guest's clock would be wrong by hours without an error."
            fix "Write the name with its area, such as `Europe/Oslo`, or `UTC`."
            crd Some,
    }
}

/// The time zone that is the default.
const UTC: &str = "UTC";
/// The areas of the IANA time zone database, release 2025b. Names of countries and abbreviations are links to these.
const AREAS: [&str; 11] = [
    "Africa",
    "America",
    "Antarctica",
    "Arctic",
    "Asia",
    "Atlantic",
    "Australia",
    "Etc",
    "Europe",
    "Indian",
    "Pacific",
];

/// The time zone that is requested.
pub(super) fn timezone<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    merged.pick_domain("domain.clock.timezone", |domain| {
        domain.clock.as_ref()?.timezone.as_deref()
    })
}

/// Rule [`Code::InvalidTimezone`].
fn clock(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let leaf = timezone(subject.merged);
    let Some(text) = leaf.value.filter(|text| *text != UTC) else {
        return;
    };
    if is_zone(text) {
        parts.timezone = Some(text.to_owned());
        return;
    }
    let requirement =
        "must be the name of an IANA time zone with its area, such as 'Europe/Oslo', or 'UTC'";
    let detail = match meant(text) {
        Some(meant) => format!("{requirement}; did you mean '{meant}'?"),
        None => requirement.to_owned(),
    };
    let fault = Violation::new(leaf.path, Code::InvalidTimezone, Kind::Invalid, detail);
    findings.deny(fault.text(text));
}

/// Whether a text is an area and a place in it. Whether the place exists depends on the host's database.
fn is_zone(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "_+-".contains(c);
    let is_place = |place: &str| {
        place
            .split('/')
            .all(|part| !part.is_empty() && part.chars().all(is_inner))
    };
    let parts = text.split_once('/');
    text.len() <= TIME_ZONE_MAX
        && parts.is_some_and(|(area, place)| AREAS.contains(&area) && is_place(place))
}

fn meant(text: &str) -> Option<String> {
    if text.eq_ignore_ascii_case(UTC) || text.eq_ignore_ascii_case("gmt") {
        return Some(UTC.to_owned());
    }
    let text = text.replace(' ', "_");
    let (area, place) = text.split_once('/')?;
    let same = |known: &&&str| known.eq_ignore_ascii_case(area);
    let known = AREAS.iter().find(same).copied();
    let area = known.or_else(|| nearest(area, AREAS))?;
    let zone = format!("{area}/{place}");
    is_zone(&zone).then_some(zone)
}
