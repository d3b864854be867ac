//! The watchdog: how it is written and read, and that it stays where the guest has found it.

use super::super::Domain;
use super::fixtures;
use super::golden::validate;
use crate::api::choice::{Choice as _, WatchdogAction};

fn watched(action: Option<WatchdogAction>) -> Domain {
    let mut domain = fixtures::named("small").render();
    domain.watchdog = action;
    domain
}

#[test]
fn each_action_renders_to_xml_that_libvirts_schema_accepts_and_is_read_again() {
    let names = ["reset", "poweroff", "shutdown"];
    for (action, name) in WatchdogAction::ALL.iter().zip(names) {
        let domain = watched(Some(*action));
        let xml = domain.xml();
        validate("domain", &xml);
        let element = format!("<watchdog model='i6300esb' action='{name}'/>");
        assert!(xml.contains(&element), "{xml}");
        assert_eq!(Domain::parse(&xml), Ok(domain));
    }
}

/// The definition of a domain with these watchdogs in place of its own.
fn with(watchdogs: &str) -> Domain {
    let ours = "<watchdog model='i6300esb' action='reset'/>";
    let xml = watched(Some(WatchdogAction::Reset)).xml();
    assert!(xml.contains(ours), "{xml}");
    Domain::parse(&xml.replace(ours, watchdogs)).unwrap()
}

const CHIPSET: &str = "<watchdog model='itco' action='poweroff'/>";

#[test]
fn the_watchdog_of_the_chipset_is_none_of_this_operator() {
    assert_eq!(with(CHIPSET).watchdog, None);
    let both = format!("{CHIPSET}<watchdog model='i6300esb' action='shutdown'/>");
    assert_eq!(with(&both).watchdog, Some(WatchdogAction::Shutdown));
}

#[test]
fn another_action_is_a_restart_and_leaves_the_watchdog_at_its_address() {
    let slot = "<address type='pci' domain='0x0000' bus='0x07' slot='0x01' function='0x0'/>";
    let current = with(&format!(
        "{CHIPSET}<watchdog model='i6300esb' action='reset'>{slot}</watchdog>"
    ));
    let desired = watched(Some(WatchdogAction::PowerOff));
    let differences = desired.differences_from(&current);
    let [difference] = differences.as_slice() else {
        panic!("{differences:?}");
    };
    assert_eq!(difference.field, "watchdog");
    assert_eq!(
        (&*difference.current, &*difference.desired),
        ("Reset", "PowerOff")
    );
    assert!(difference.live.is_none());
    let kept = desired.preserving(&current);
    assert_eq!(kept.addresses["watchdog"], current.addresses["watchdog"]);
    assert_eq!(Domain::parse(&kept.xml()), Ok(kept));
    let without = watched(None).preserving(&current);
    assert_eq!(without.addresses.get("watchdog"), None);
}
