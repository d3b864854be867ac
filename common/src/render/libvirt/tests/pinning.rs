//! CPUs of the host that a guest runs on.

use std::collections::BTreeSet;

use super::super::{Domain, Pinning, pinned_cpus};
use super::fixtures;
use super::golden::validate;

/// A guest with these CPUs for its vCPUs, and these for its other threads.
fn on(dedicated: &[u32], shared: Option<&str>) -> Domain {
    let mut case = fixtures::named("small");
    case.pinning = Pinning {
        dedicated: dedicated.to_vec(),
        shared: shared.map(|text| text.parse().unwrap()),
    };
    case.render()
}

#[test]
fn a_pinned_guest_renders_to_xml_that_libvirts_schema_accepts_and_is_read_again() {
    for (dedicated, shared, expected) in [
        (&[][..], Some("0-1,8"), "<vcpu cpuset='0-1,8' current='"),
        (&[5, 2], None, "<vcpupin vcpu='0' cpuset='5'/>"),
        (&[5, 2], Some("0"), "<vcpupin vcpu='1' cpuset='2'/>"),
    ] {
        let mut domain = on(dedicated, shared);
        for quota in [false, true] {
            domain.vcpu_quota = quota;
            let xml = domain.xml();
            validate("domain", &xml);
            assert!(xml.contains(expected), "{xml}");
            assert_eq!(Domain::parse(&xml), Ok(domain.clone()));
            let pinned: BTreeSet<u32> = dedicated.iter().copied().collect();
            assert_eq!(pinned_cpus(&xml).unwrap(), pinned);
        }
    }
}

#[test]
fn other_dedicated_cpus_are_a_restart_and_other_shared_ones_are_none() {
    let differences = |desired: &Domain, running: &Domain| -> Vec<_> {
        let all = desired.differences_from(running).into_iter();
        all.map(|it| (it.field, it.current, it.desired, it.live.is_some()))
            .collect()
    };
    let (any, shared) = (on(&[], None), on(&[], Some("0-1")));
    assert_eq!(differences(&shared, &any), []);
    let pinned = on(&[2, 3], Some("0-1"));
    let changed = |current: &str, desired: &str| {
        let field = "cpu.dedicated".to_owned();
        vec![(field, current.to_owned(), desired.to_owned(), false)]
    };
    assert_eq!(differences(&pinned, &any), changed("none", "CPUs 2-3"));
    assert_eq!(differences(&any, &pinned), changed("CPUs 2-3", "none"));
    // A guest that runs gets other shared CPUs at its next start.
    assert_eq!(shared.with_limits_of(&any).pinning.shared, None);
}

#[test]
fn a_vcpu_that_somebody_pinned_to_several_cpus_has_no_dedicated_one() {
    let xml = on(&[2], None).xml().replace("cpuset='2'", "cpuset='2-4'");
    assert_eq!(pinned_cpus(&xml).unwrap(), [2, 3, 4].into());
    assert_eq!(Domain::parse(&xml).unwrap().pinning.dedicated, [0; 0]);
}
