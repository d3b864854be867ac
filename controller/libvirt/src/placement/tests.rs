use common::api::choice::{DeviceKind, GroupScope, HugepageSize};
use common::api::libvirt_host::HostDevices;
use common::api::normalized::{
    NormalizedDevice, NormalizedGroup, NormalizedHardware, NormalizedPlacement,
};

use super::*;
use crate::access::Pool;
use crate::environment::{self, block};
use controller_core::machine::NO_RESOURCES;

type Change = fn(&mut Normalized, &mut Candidate);

fn host(name: &str) -> Candidate {
    Candidate {
        name: name.into(),
        labels: BTreeMap::new(),
        spec: environment::host_spec(),
        snapshot: Ok(Arc::new(Snapshot {
            info: HostInfo {
                cpus: 8,
                memory: 16 << 30,
                efi: true,
                ..HostInfo::default()
            },
            pools: vec![Pool {
                name: "vms".into(),
                active: true,
                path: None,
                kind: "dir".into(),
                capacity: 1 << 40,
                available: 1 << 40,
            }],
            space_left: [("vms".to_owned(), 1 << 40)].into(),
            ..Snapshot::default()
        })),
        allocated: NO_RESOURCES,
        cpus_left: 0,
        devices_left: BTreeMap::new(),
        groups: vec![],
    }
}

/// What the host reports of itself.
fn info(host: &mut Candidate) -> &mut HostInfo {
    &mut Arc::make_mut(host.snapshot.as_mut().unwrap()).info
}

fn dedicated() -> NormalizedHardware {
    NormalizedHardware {
        dedicated_cpu: true,
        ..NormalizedHardware::default()
    }
}

/// A device that a guest has for itself.
fn gpu() -> NormalizedHardware {
    let device = NormalizedDevice {
        device_name: "a.b/gpu".into(),
        kind: DeviceKind::Pci,
        name: "gpu".into(),
    };
    NormalizedHardware {
        devices: vec![device],
        ..NormalizedHardware::default()
    }
}

fn why(block: &Normalized, host: Candidate) -> String {
    choose("default", block, &BTreeMap::new(), &[host]).unwrap_err()
}

#[test]
fn the_least_allocated_host_is_chosen_and_of_equal_ones_the_first_by_name() {
    let (alpha, beta) = (host("alpha"), host("beta"));
    let mut full = host("gamma");
    full.allocated.cpu = 4;
    let networks = BTreeMap::new();
    let chosen = |hosts: &[Candidate]| {
        choose("default", &block(), &networks, hosts)
            .unwrap()
            .to_owned()
    };
    assert_eq!(chosen(&[beta.clone(), alpha.clone()]), "alpha");
    assert_eq!(chosen(&[full.clone(), beta]), "beta");
    let mut by_memory = host("delta");
    by_memory.allocated.memory = Bytes::mib(12 * 1024);
    assert_eq!(chosen(&[by_memory, full]), "gamma");
}

#[test]
fn another_host_than_that_of_the_group_is_taken_even_if_it_is_fuller() {
    let group = |required| NormalizedGroup {
        name: "db".into(),
        required,
        scope: GroupScope::Host,
    };
    let mut alpha = host("alpha");
    alpha.groups.push(Member {
        namespace: "default".into(),
        name: "first".into(),
        group: group(false),
    });
    let mut beta = host("beta");
    beta.allocated.cpu = 4;
    let mut block = block();
    let networks = BTreeMap::new();
    let hosts = [alpha.clone(), beta];
    assert_eq!(
        choose("default", &block, &networks, &hosts).unwrap(),
        "alpha"
    );
    let mut of = |required| {
        let anti_affinity_group = group(required);
        block.placement = Some(NormalizedPlacement {
            anti_affinity_group: Some(anti_affinity_group),
            ..NormalizedPlacement::default()
        });
        block.clone()
    };
    assert_eq!(
        choose("default", &of(false), &networks, &hosts).unwrap(),
        "beta"
    );
    assert_eq!(
        choose("default", &of(false), &networks, &hosts[..1]).unwrap(),
        "alpha"
    );
    let message = choose("default", &of(true), &networks, &hosts[..1]).unwrap_err();
    assert!(
        message.contains("alpha: Machine 'first' of group 'db' is on this host"),
        "{message}"
    );
}

#[test]
fn no_machine_is_placed_on_a_pool_in_which_new_volumes_may_show_old_content() {
    let mut host = host("alpha");
    for (kind, is_refused) in [("logical", true), ("iscsi", true), ("netfs", false)] {
        let snapshot = Arc::make_mut(host.snapshot.as_mut().unwrap());
        snapshot.pools[0].kind = kind.into();
        let hosts = [host.clone()];
        let chosen = choose("default", &block(), &BTreeMap::new(), &hosts);
        let refused = chosen.map(str::to_owned).err().unwrap_or_default();
        let part = format!("alpha: its pool 'vms' is of type '{kind}'");
        assert_eq!(refused.contains(&part), is_refused, "{kind}: {refused}");
    }
}

#[test]
fn the_message_names_for_each_host_what_it_lacks() {
    assert!(
        choose("default", &block(), &BTreeMap::new(), &[])
            .unwrap_err()
            .contains("create one")
    );
    let table: [(&str, Change); 18] = [
        ("cannot be reached (no route)", |_, host| {
            host.snapshot = Err("no route".into());
        }),
        ("is in maintenance", |_, host| {
            host.spec.maintenance = Some(true);
        }),
        ("has no dedicated CPUs", |block, _| {
            block.hardware = Some(dedicated());
        }),
        (
            "has 1 of 6 dedicated CPUs left, 2 are needed",
            |block, host| {
                block.hardware = Some(dedicated());
                host.spec.dedicated_cpus = Some("2-7".into());
                host.cpus_left = 1;
            },
        ),
        // Five dedicated CPUs are free, and no others are.
        ("has 1 of 8 vCPUs left, 2 are needed", |_, host| {
            host.spec.dedicated_cpus = Some("3-7".into());
            (host.cpus_left, host.allocated.cpu) = (5, 2);
        }),
        ("offers no device 'a.b/gpu'", |block, _| {
            block.hardware = Some(gpu());
        }),
        (
            "has 0 of 2 devices 'a.b/gpu' left, 1 needed",
            |block, host| {
                block.hardware = Some(gpu());
                host.devices_left.insert("a.b/gpu".into(), 0);
                host.spec.devices = Some(vec![HostDevices {
                    addresses: vec!["0000:01:00.0".into(), "0000:02:00.0".into()],
                    name: "a.b/gpu".into(),
                }]);
            },
        ),
        ("is not schedulable", |_, host| {
            host.spec.schedulable = Some(false);
        }),
        (
            "its pool 'vms' has room for 1Ti, 2Ti are needed",
            |block, _| {
                block.disks[0].size = Bytes::mib(2 << 20);
            },
        ),
        ("has no label disk=ssd", |block, _| {
            block.node_selector.insert("disk".into(), "ssd".into());
        }),
        ("offers no storage class 'fast'", |block, _| {
            block.disks[0].storage_class = "fast".into();
        }),
        ("its pool 'elsewhere' is not active", |_, host| {
            host.spec.storage.as_mut().unwrap()[0].pool = "elsewhere".into();
        }),
        ("offers no network 'default'", |_, host| {
            host.spec.networks = None;
        }),
        ("NetworkConfiguration 'prod' does not exist", |block, _| {
            block.networks[0].network_name = Some("prod".into());
        }),
        ("has no EFI firmware with secure boot", |block, _| {
            block.firmware.secure_boot = Some(true);
        }),
        ("has 1 of 8 vCPUs left, 2 are needed", |_, host| {
            host.allocated.cpu = 7;
        }),
        ("has 1Gi of 16Gi memory left, 2Gi are needed", |_, host| {
            host.allocated.memory = Bytes::mib(15 * 1024);
        }),
        (
            "has 2Gi of 16Gi memory left, 3Gi are needed",
            |block, host| {
                // A guest boots with its maximum.
                block.memory.max_size = Bytes::mib(3 * 1024);
                host.allocated.memory = Bytes::mib(14 * 1024);
            },
        ),
    ];
    assert_lacks(&table);
}

#[test]
fn a_host_without_the_cpu_model_or_the_huge_pages_says_so_unless_it_does_not_know() {
    let table: [(&str, Change); 2] = [
        (
            "its guests cannot have the CPU model Haswell with virtType qemu",
            |block, host| {
                block.hardware = Some(NormalizedHardware {
                    cpu_model: Some("Haswell".into()),
                    ..NormalizedHardware::default()
                });
                host.spec.virt_type = VirtType::Qemu;
                let models = [
                    (VirtType::Kvm, vec!["Haswell".to_owned()]),
                    (VirtType::Qemu, vec!["qemu64".to_owned()]),
                ];
                info(host).cpu_models = models.into();
            },
        ),
        ("has no huge pages of 1Gi", |block, host| {
            block.hardware = Some(NormalizedHardware {
                hugepages: Some(HugepageSize::Gibi1),
                ..NormalizedHardware::default()
            });
            info(host).hugepages = Some(vec![HugepageSize::Mebi2]);
        }),
    ];
    assert_lacks(&table);
    let mut block = block();
    block.hardware = Some(NormalizedHardware {
        cpu_model: Some("Haswell".into()),
        hugepages: Some(HugepageSize::Gibi1),
        ..NormalizedHardware::default()
    });
    let hosts = [host("alpha")];
    let chosen = choose("default", &block, &BTreeMap::new(), &hosts);
    assert_eq!(chosen, Ok("alpha"));
}

/// A host with each change lacks what is named beside it.
fn assert_lacks(table: &[(&str, Change)]) {
    for (lack, change) in table {
        let (mut block, mut host) = (block(), host("alpha"));
        change(&mut block, &mut host);
        let why = why(&block, host);
        assert!(why.contains(&format!("alpha: {lack}")), "{lack}: {why}");
    }
}
