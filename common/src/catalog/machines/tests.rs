use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::api::choice::Backend;

const A: Mac = Mac::new([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac::new([2, 0, 0, 0, 0, 0xb]);

fn machine<'a>(namespace: &'a str, name: &'a str) -> MachineName<'a> {
    MachineName { namespace, name }
}

/// A card of KubeVirt on this NetworkConfiguration.
fn card(network: &str, mac: Mac) -> Card {
    Card {
        network: Some(network.into()),
        mac,
        addresses: Box::default(),
        backend: Backend::Kubevirt,
    }
}

fn others(machines: &Machines, who: MachineName<'_>, mac: Mac) -> Vec<String> {
    let others = machines.others_with_mac(who, mac);
    let others = others.map(|(it, card)| {
        let network = card.network.as_deref().unwrap_or_default();
        format!("{}/{} {network}", it.namespace, it.name)
    });
    others.collect()
}

#[test]
fn an_address_is_free_after_the_last_machine_with_it_is_removed() {
    let mut machines = Machines::default();
    let row = || MachineRow::new([card("lan", A)], []);
    machines.insert(machine("prod", "db"), row());
    machines.insert(machine("prod", "app"), row());
    machines.insert(machine("test", "web"), row());
    let all = ["prod/app lan", "prod/db lan", "test/web lan"];
    assert_eq!(others(&machines, machine("prod", "web"), A), all);
    assert_eq!(
        others(&machines, machine("prod", "db"), A),
        ["prod/app lan", "test/web lan"]
    );
    assert_eq!(others(&machines, machine("test", "web"), A), all[..2]);
    assert_eq!(machines.len(), 3);

    assert_eq!(machines.remove(machine("prod", "app")), Some(row()));
    assert_eq!(others(&machines, machine("prod", "web"), A), all[1..]);
    let changed = MachineRow::new([card("lan", B), card("wan", A)], []);
    assert_eq!(
        machines.insert(machine("prod", "db"), changed.clone()),
        Some(row())
    );
    assert_eq!(
        others(&machines, machine("prod", "web"), A),
        ["prod/db wan", "test/web lan"]
    );
    assert_eq!(
        others(&machines, machine("prod", "web"), B),
        ["prod/db lan"]
    );
    assert_eq!(machines.get(machine("prod", "db")), Some(&changed));
    assert_eq!(machines.remove(machine("prod", "app")), None);
    machines.remove(machine("prod", "db"));
    machines.remove(machine("test", "web"));
    assert!(machines.is_empty());
    assert_eq!(others(&machines, machine("prod", "web"), A), [""; 0]);
}

#[test]
fn machines_share_an_address_across_networks_and_namespaces() {
    let mut machines = Machines::default();
    machines.insert(
        machine("prod", "wan"),
        MachineRow::new([card("wan", A)], []),
    );
    machines.insert(
        machine("test", "lan"),
        MachineRow::new([card("lan", A)], []),
    );
    machines.insert(
        machine("prod", "alone"),
        MachineRow::new([card("lan", B)], []),
    );
    let row = MachineRow::new([card("lan", A)], []);
    let sharing = machines.sharing_address(machine("prod", "web"), &row);
    let expected = [machine("prod", "wan"), machine("test", "lan")];
    assert_eq!(sharing.collect::<Vec<_>>(), expected);
}

#[test]
fn a_forged_amount_is_gone_from_the_sum_when_its_machine_is() {
    let (mut machines, cpu) = (Machines::default(), |cpu| Usage {
        cpu,
        ..Usage::default()
    });
    for (name, amount) in [("a", 2), ("b", u64::MAX), ("c", u64::MAX)] {
        let mut row = MachineRow::default();
        row.usage = cpu(amount);
        machines.insert(machine("prod", name), row);
    }
    assert_eq!(machines.usage("prod"), cpu(u64::MAX));
    machines.remove(machine("prod", "b"));
    assert_eq!(machines.usage_of_others(machine("prod", "c")), cpu(2));
    machines.remove(machine("prod", "c"));
    assert_eq!(machines.usage("prod"), cpu(2));
    assert_eq!(machines.usage("test"), cpu(0));
}

const NAMES: &[&str] = &["a", "a-b", "a-b-c", "b"];
const DISKS: &[&str] = &["a", "b", "c", "b-c", "b-c-c"];

/// A Machine is inserted with these cards and disks, or removed.
type Step = (
    &'static str,
    Option<(Vec<(&'static str, u8)>, Vec<&'static str>)>,
);

fn step() -> impl Strategy<Value = Step> {
    let cards = vec((select(&["lan", "wan"][..]), 0..3_u8), 0..3);
    let row = (cards, vec(select(DISKS), 0..3));
    (select(NAMES), proptest::option::weighted(0.8, row))
}

proptest! {
    #[test]
    fn queries_return_what_a_scan_of_all_machines_finds(steps in vec(step(), 0..20)) {
        let mac = |last| Mac::new([2, 0, 0, 0, 0, last]);
        let mut machines = Machines::default();
        let mut all = std::collections::BTreeMap::new();
        for (name, held) in steps {
            let at = machine("prod", name);
            let before = match &held {
                Some((cards, disks)) => {
                    let cards = cards.iter().map(|(network, last)| card(network, mac(*last)));
                    machines.insert(at, MachineRow::new(cards, disks.iter().copied()))
                }
                None => machines.remove(at),
            };
            let known = match held {
                Some(held) => all.insert(name, held),
                None => all.remove(name),
            };
            prop_assert_eq!(before.is_some(), known.is_some());
        }
        prop_assert_eq!(machines.len(), all.len());
        for last in 0..3 {
            let found: BTreeSet<_> = others(&machines, machine("prod", "b"), mac(last)).into_iter().collect();
            let scanned = all.iter().filter(|(name, _)| **name != "b").flat_map(|(name, (cards, _))| {
                let cards = cards.iter().filter(move |(_, it)| *it == last);
                cards.map(move |(network, _)| format!("prod/{name} {network}"))
            });
            prop_assert_eq!(found, scanned.collect::<BTreeSet<_>>());
        }
        for (name, disk) in NAMES.iter().flat_map(|name| DISKS.iter().map(move |disk| (name, disk))) {
            let claim = names::claim(name, disk);
            let found: BTreeSet<_> = machines.disks_with_claim("prod", &claim).collect();
            let scanned = all.iter().flat_map(|(name, (_, disks))| disks.iter().map(|disk| (*name, *disk)));
            let scanned: BTreeSet<_> =
                scanned.filter(|(name, disk)| names::claim(name, disk) == claim).collect();
            prop_assert_eq!(found, scanned);
        }
    }
}
