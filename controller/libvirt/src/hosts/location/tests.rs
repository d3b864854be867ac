//! On which host a Machine is of which several show the domain, and what follows for effects.

use std::sync::Arc;

use kube::runtime::watcher::Event;

use super::*;
use crate::access::State;
use crate::access::fake::FakeLibvirt;
use crate::environment::{host_object, running_domain};
use crate::snapshot::Snapshot;

const UID: &str = "uid-of-web";

fn shown(host: &str, is_active: bool, answers: bool) -> ShownDomain {
    ShownDomain {
        host: host.into(),
        is_active,
        answers,
    }
}

#[test]
fn a_machine_is_where_its_guest_is_active_and_only_then_where_its_status_says() {
    let (on, off) = (true, false);
    let table = [
        // The guest was migrated from the host of the status, or a moved definition was restored.
        (vec![("a", off, true), ("b", on, true)], Some("a"), "b"),
        (vec![("a", on, true), ("b", off, true)], Some("b"), "a"),
        (vec![("a", off, true), ("b", off, true)], Some("b"), "b"),
        (vec![("b", off, true), ("a", off, true)], None, "a"),
        (vec![("a", on, true), ("b", on, true)], Some("b"), "b"),
        // What a host showed before it was away is older than what others show now.
        (vec![("a", on, false), ("b", on, true)], Some("a"), "b"),
        (vec![("a", on, false), ("b", off, true)], Some("b"), "a"),
        (vec![("a", off, false), ("b", off, true)], Some("a"), "a"),
    ];
    for (all, hint, expected) in table {
        let domains: Vec<_> = all.iter().map(|it| shown(it.0, it.1, it.2)).collect();
        let location = Location::choose(domains.clone(), hint).unwrap();
        assert_eq!(location.host, expected, "{all:?} {hint:?}");
        let others = domains.into_iter().filter(|it| it.host != expected);
        assert_eq!(location.others, others.collect::<Vec<_>>());
    }
    assert_eq!(Location::choose(vec![], Some("a")), None);
}

/// Registered hosts, with what their last polls showed: a domain of the Machine in this state, or none.
fn hosts(polls: &[(&str, Result<Option<State>, &str>)]) -> (Hosts, Cache<LibvirtHost>) {
    let (hosts, objects) = (Hosts::new(Arc::new(FakeLibvirt::new())), Cache::default());
    for (name, polled) in polls {
        objects.apply(Event::Apply(host_object(name)), |_| ());
        let polled = polled.map(|state| Snapshot {
            domains: state
                .map(|state| {
                    let mut domain = running_domain(Some(UID), 1 << 30);
                    domain.domain.state = state;
                    domain
                })
                .into_iter()
                .collect(),
            ..Snapshot::default()
        });
        let polled = polled.map_err(ToOwned::to_owned);
        hosts.connect(name, FakeLibvirt::new(), polled);
    }
    (hosts, objects)
}

#[test]
fn right_before_an_effect_every_other_host_that_may_have_the_guest_counts() {
    let (on, off) = (Ok(Some(State::Running)), Ok(Some(State::ShutOff)));
    let ask = |polls: &[(&str, Result<Option<State>, &str>)], hint| {
        let (hosts, objects) = hosts(polls);
        let found = hosts.other_hosts(UID, hint, "alpha", &objects);
        (found.bound, found.defined, found.unknown)
    };
    let beta = || Some("beta".to_owned());
    let none = |defined: &[&str]| {
        let defined: Vec<_> = defined.iter().map(|&it| it.to_owned()).collect();
        (None, defined, None)
    };
    let away = Err("no route");
    assert_eq!(ask(&[("alpha", off), ("beta", Ok(None))], None), none(&[]));
    assert_eq!(
        ask(&[("alpha", on), ("beta", off)], Some("alpha")),
        none(&["beta"])
    );
    assert_eq!(
        ask(&[("alpha", off), ("beta", on)], Some("alpha")),
        (beta(), vec!["beta".to_owned()], None)
    );
    // The status names a host that does not answer.
    assert_eq!(
        ask(&[("alpha", off), ("beta", away)], Some("beta")),
        (None, vec![], beta())
    );
    // Other hosts that do not answer prevent nothing, and neither does one that is not registered.
    assert_eq!(
        ask(&[("alpha", off), ("beta", away)], Some("alpha")),
        none(&[])
    );
    assert_eq!(ask(&[("alpha", off)], Some("gone")), none(&[]));
}

#[test]
fn a_domain_of_another_owner_is_no_definition_of_the_machine() {
    let (hosts, _) = hosts(&[("alpha", Ok(None))]);
    let mut foreign = running_domain(Some(UID), 1 << 30);
    foreign.metadata = Some(DomainMetadata::default());
    let polled = Snapshot {
        domains: [foreign].into_iter().collect(),
        ..Snapshot::default()
    };
    hosts.connect("beta", FakeLibvirt::new(), Ok(polled));
    assert_eq!(hosts.location(UID, Some("beta")), None);
    assert_eq!(hosts.other_domains(UID, "alpha"), []);
}
