//! Size × storage × networks × firmware × features × cloud-init: every VirtualMachine, claim and
//! Secret satisfies the rules of KubeVirt's webhooks and the schema of its CRD.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::types::{Claim, VirtualMachine};
use super::super::{VirtualMachineInput, claim, data_volume, virtual_machine, volumes};
use super::fixtures::{self, LONGEST};
use super::schema;
use crate::api::choice::{FirmwareType, NicModel};
use crate::api::machine::CloudInit;
use crate::api::normalized::{Normalized, NormalizedCdrom};
use crate::mac::Mac;
use crate::quantity::Bytes;
use crate::render::{CloudInitPlan, SecretKey, SecretValue};

fn for_each(mut check: impl FnMut(&Normalized, &CloudInit)) {
    let clouds = fixtures::cloud_inits();
    let mut block = fixtures::block();
    for (cpu, memory) in fixtures::sizes() {
        (block.cpu, block.memory) = (cpu, memory);
        for (disks, cdroms) in fixtures::storage() {
            (block.disks, block.cdroms) = (disks, cdroms);
            for networks in fixtures::networks() {
                block.networks = networks;
                for firmware in fixtures::firmware() {
                    block.firmware = firmware;
                    for features in fixtures::features() {
                        block.features = features;
                        for cloud in &clouds {
                            check(&block, cloud);
                        }
                    }
                }
            }
        }
    }
}

fn render(block: &Normalized, cloud: &CloudInit) -> VirtualMachine {
    virtual_machine(&VirtualMachineInput {
        machine: LONGEST,
        block,
        cloud_init: &CloudInitPlan::from(cloud),
        labels: &BTreeMap::new(),
        annotations: &BTreeMap::new(),
        attachments: &[("prod-network".to_owned(), "existing".to_owned())].into(),
        secret_revisions: &BTreeMap::new(),
    })
}

#[test]
fn every_combination_satisfies_the_rules_of_kubevirts_webhooks() {
    let mut renders = 0;
    for_each(|block, cloud| {
        let vm = render(block, cloud);
        metadata(&vm);
        hardware(&vm, block);
        disks(&vm, block);
        interfaces(&vm, block);
        cloud_init(&vm, cloud);
        for volume in volumes(LONGEST.name, block) {
            let claim = claim(&LONGEST, &volume);
            claim_rules(&claim);
            if let Some(filled) = data_volume(&LONGEST, &volume, "images") {
                assert_eq!(
                    (filled.metadata, filled.spec.pvc),
                    (claim.metadata, claim.spec)
                );
            }
        }
        renders += 1;
    });
    assert!(renders > 10_000, "the matrix shrank to {renders}");
}

#[test]
fn every_combination_is_valid_by_kubevirts_schema() {
    let Some(validator) = schema::virtual_machine() else {
        return;
    };
    // The schema has no rules about texts: an object that differs from an earlier one only in texts is
    // skipped to save time.
    let mut shapes = BTreeSet::new();
    for_each(|block, cloud| {
        let vm = serde_json::to_value(render(block, cloud)).unwrap();
        if shapes.insert(shape(&vm)) {
            let errors: Vec<_> = validator.iter_errors(&vm).map(|e| e.to_string()).collect();
            assert_eq!(errors, Vec::<String>::new(), "{vm:#}");
        }
    });
    assert!(shapes.len() > 1000, "only {} shapes", shapes.len());
}

/// The object with every text replaced by its type.
fn shape(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let fields: Vec<_> = map
                .iter()
                .map(|(key, value)| format!("{key}:{{{}}}", shape(value)))
                .collect();
            fields.concat()
        }
        Value::Array(items) => items.iter().map(|item| shape(item) + ",").collect(),
        Value::String(_) => "s".into(),
        other => other.to_string(),
    }
}

fn metadata(vm: &VirtualMachine) {
    assert_eq!(vm.metadata.name, LONGEST.name);
    assert_eq!(vm.metadata.owner_references[0].uid, LONGEST.uid);
    let labels = [&vm.metadata.labels, &vm.spec.template.metadata.labels];
    for value in labels.iter().flat_map(|labels| labels.values()) {
        assert!(value.len() <= 63, "label value {value}");
    }
    assert_eq!(labels[1]["vitistack.io/machine"], LONGEST.name);
    assert!(["Always", "RerunOnFailure", "Halted"].contains(&vm.spec.run_strategy.as_str()));
}

fn hardware(vm: &VirtualMachine, block: &Normalized) {
    let domain = &vm.spec.template.spec.domain;
    assert_eq!(domain.machine.r#type, "q35");
    assert_eq!(vm.spec.template.spec.architecture, "amd64");
    for uuid in [&domain.firmware.uuid, &domain.firmware.serial] {
        assert_eq!(uuid.len(), 36, "{uuid}");
    }
    assert_ne!(domain.firmware.uuid, domain.firmware.serial);

    let loader = &domain.firmware.bootloader;
    assert_eq!(
        loader.bios.is_some(),
        block.firmware.kind == FirmwareType::Bios
    );
    let secure = loader.efi.as_ref().map(|efi| efi.secure_boot.unwrap());
    assert_eq!(secure.is_some(), block.firmware.kind == FirmwareType::Efi);
    assert_eq!(
        domain
            .features
            .smm
            .as_ref()
            .is_some_and(|smm| smm.enabled == Some(true)),
        secure == Some(true),
    );

    let json = serde_json::to_value(&domain.features.hyperv).unwrap();
    assert_eq!(json.is_object(), block.features.hyperv);
    if block.features.hyperv {
        for feature in [
            "relaxed",
            "vapic",
            "spinlocks",
            "vpindex",
            "runtime",
            "synic",
            "synictimer",
            "reset",
            "frequencies",
            "reenlightenment",
            "tlbflush",
            "ipi",
        ] {
            assert_eq!(json[feature]["enabled"], true, "{feature}");
        }
        let clock = domain.clock.as_ref().unwrap();
        assert!(clock.utc.is_some());
        assert_eq!(clock.timer.hyperv.as_ref().unwrap().present, Some(true));
    }

    let guest: Bytes = domain.memory.guest.parse().unwrap();
    assert_eq!(guest, block.memory.size, "memory is exact");
    if let Some(max) = &domain.memory.max_guest {
        let max: Bytes = max.parse().unwrap();
        assert!(max == block.memory.max_size && max >= guest && guest >= Bytes::mib(1024));
        assert!(max.is_multiple_of(Bytes::mib(2)) && guest.is_multiple_of(Bytes::mib(2)));
    }
    assert_eq!(domain.cpu.max_sockets, Some(block.cpu.max_sockets));
    assert!(domain.devices.rng.is_some());
    let virtio = block
        .networks
        .iter()
        .any(|nic| nic.model == NicModel::Virtio);
    assert_eq!(
        domain.devices.network_interface_multiqueue == Some(true),
        virtio && block.cpu.cores * block.cpu.threads * block.cpu.max_sockets > 1
    );
}

fn disks(vm: &VirtualMachine, block: &Normalized) {
    let spec = &vm.spec.template.spec;
    let disks = &spec.domain.devices.disks;
    let names: BTreeSet<_> = disks.iter().map(|disk| &disk.name).collect();
    let filled: BTreeSet<_> = spec.volumes.iter().map(|volume| &volume.name).collect();
    let empty = names.difference(&filled).map(|name| name.as_str());
    let drives = block.cdroms.iter().filter(|cdrom| cdrom.image.is_none());
    let drives: BTreeSet<_> = drives.map(|cdrom| cdrom.name.as_str()).collect();
    assert_eq!(empty.collect::<BTreeSet<_>>(), drives);
    assert!(filled.is_subset(&names), "every volume has a disk");
    assert_eq!(
        (names.len(), filled.len()),
        (disks.len(), spec.volumes.len()),
        "unique"
    );
    for disk in disks {
        assert!(disk.name.len() <= 63);
        match (&disk.disk, &disk.cdrom) {
            (Some(disk), None) => {
                assert!(["virtio", "sata", "scsi"].contains(&disk.bus.as_str()));
            }
            (None, Some(cdrom)) => assert_eq!(cdrom.bus, "sata"),
            both => panic!("one device per disk, not {both:?}"),
        }
    }
    for volume in &spec.volumes {
        let sources = [
            volume.persistent_volume_claim.is_some(),
            volume.cloud_init_no_cloud.is_some(),
            volume.secret.is_some(),
        ];
        assert_eq!(
            sources.iter().filter(|source| **source).count(),
            1,
            "{volume:?}"
        );
    }
    let claims = spec
        .volumes
        .iter()
        .filter_map(|v| v.persistent_volume_claim.as_ref());
    let expected = block.disks.len() + block.cdroms.iter().filter(|c| c.image.is_some()).count();
    let claims: Vec<_> = claims.map(|source| source.claim_name.clone()).collect();
    assert_eq!(claims.len(), expected);
    let made: Vec<_> = volumes(LONGEST.name, block).map(|it| it.claim).collect();
    assert_eq!(claims, made);

    let orders: Vec<_> = disks
        .iter()
        .map(|disk| disk.boot_order)
        .chain(
            spec.domain
                .devices
                .interfaces
                .iter()
                .map(|nic| nic.boot_order),
        )
        .flatten()
        .collect();
    assert!(orders.iter().all(|order| *order >= 1));
    assert_eq!(orders.iter().collect::<BTreeSet<_>>().len(), orders.len());
}

fn interfaces(vm: &VirtualMachine, block: &Normalized) {
    let spec = &vm.spec.template.spec;
    let devices = &spec.domain.devices;
    let nics: Vec<_> = devices.interfaces.iter().map(|nic| &nic.name).collect();
    let networks: Vec<_> = spec.networks.iter().map(|network| &network.name).collect();
    assert_eq!(
        nics, networks,
        "every interface has a network and vice versa"
    );
    assert_eq!(nics.len(), block.networks.len());
    assert_eq!(
        devices.autoattach_pod_interface,
        nics.is_empty().then_some(false)
    );
    for (nic, network) in devices.interfaces.iter().zip(&spec.networks) {
        assert_ne!(
            nic.masquerade.is_some(),
            nic.bridge.is_some(),
            "one binding"
        );
        assert_ne!(
            network.pod.is_some(),
            network.multus.is_some(),
            "one network"
        );
        assert_eq!(nic.masquerade.is_some(), network.pod.is_some());
        let mac: Mac = nic.mac_address.parse().unwrap();
        assert!(!mac.is_multicast() && !mac.is_zero());
        if let Some(multus) = &network.multus {
            let known = ["prod/existing", "prod/storage-network"];
            assert!(known.contains(&multus.network_name.as_str()), "{multus:?}");
        }
    }
    assert!(
        spec.networks
            .iter()
            .filter(|network| network.pod.is_some())
            .count()
            <= 1
    );
}

fn cloud_init(vm: &VirtualMachine, cloud: &CloudInit) {
    let plan = CloudInitPlan::from(cloud);
    let volume = vm
        .spec
        .template
        .spec
        .volumes
        .iter()
        .find(|volume| volume.name == "cloudinitdisk");
    assert_eq!(volume.is_some(), *cloud != CloudInit::default());
    let value = |key: &SecretKey| {
        let content = key.key.clone().into_bytes();
        (key.clone(), SecretValue::new("uid", "1", content))
    };
    let values: BTreeMap<_, _> = plan.references().map(value).collect();
    let secret = plan.secret(&LONGEST, |key| values.get(key));
    assert_eq!(secret.is_some(), plan.needs_secret());
    let Some(volume) = volume else { return };
    let keys: Vec<_> = secret
        .iter()
        .flat_map(|secret| secret.data.keys())
        .collect();
    let own_secret = "machine-with-a-name-that-is-exactly-sixty-three-characters-long-cloudinit";
    if let Some(no_cloud) = &volume.cloud_init_no_cloud {
        let parts = [
            (&no_cloud.user_data, &no_cloud.secret_ref, "userdata"),
            (
                &no_cloud.network_data,
                &no_cloud.network_data_secret_ref,
                "networkdata",
            ),
        ];
        for (inline, reference, key) in parts {
            assert!(inline.is_none() || reference.is_none(), "one source");
            assert!(inline.as_ref().is_none_or(|text| text.len() <= 2048));
            let from_own_secret = reference
                .as_ref()
                .is_some_and(|secret| secret.name == own_secret);
            assert_eq!(from_own_secret, keys.iter().any(|k| *k == key), "{key}");
        }
    } else {
        let volume = volume.secret.as_ref().unwrap();
        assert_eq!(
            (volume.secret_name.as_str(), volume.volume_label.as_str()),
            (own_secret, "cidata")
        );
        assert_eq!(keys, ["meta-data", "network-config", "user-data"]);
    }
}

fn claim_rules(claim: &Claim) {
    assert!(claim.metadata.name.len() <= 253);
    assert!(
        claim.metadata.owner_references.is_empty(),
        "the controller deletes claims in order"
    );
    assert_eq!(
        (
            claim.spec.access_modes.len(),
            claim.spec.volume_mode.is_empty()
        ),
        (1, false),
        "CDI takes what is missing from the StorageProfile of the class, and refuses the import if that has none"
    );
    assert!(
        claim.spec.storage_class_name.is_some(),
        "never the default class at the time of creation"
    );
    assert!(
        claim
            .metadata
            .labels
            .values()
            .all(|value| value.len() <= 63)
    );
    let annotations: &BTreeMap<_, _> = &claim.metadata.annotations;
    assert_eq!(annotations["machine.vitistack.io/machine-uid"], LONGEST.uid);
    assert!(
        ["Delete", "Retain"].contains(&annotations["machine.vitistack.io/reclaim-policy"].as_str())
    );
    let size: Bytes = claim.spec.resources.requests.storage.parse().unwrap();
    assert!(size >= Bytes::mib(1));
}

#[test]
fn growth_up_to_the_maximum_changes_no_other_field() {
    for (mut block, name) in [
        (fixtures::block(), "sockets"),
        (fixtures::block(), "memory"),
    ] {
        block.cpu = fixtures::cpu(1, 1, 1);
        block.memory = fixtures::memory("1Gi", "4Gi");
        block.cpu.max_sockets = 4;
        let small = render(&block, &CloudInit::default());
        if name == "sockets" {
            block.cpu.sockets = 4;
        } else {
            block.memory.size = block.memory.max_size;
        }
        let mut grown = render(&block, &CloudInit::default()).spec.template.spec;
        let small = small.spec.template.spec;
        assert_ne!(grown, small, "{name}");
        grown.domain.cpu.sockets = small.domain.cpu.sockets;
        grown
            .domain
            .memory
            .guest
            .clone_from(&small.domain.memory.guest);
        assert_eq!(grown, small, "{name}");
    }
}

#[test]
fn a_medium_with_another_image_size_or_class_gets_another_claim() {
    let (disks, cdroms) = fixtures::storage().pop().unwrap();
    let mut block = fixtures::block();
    (block.disks, block.cdroms) = (disks, cdroms);
    let claim = |block: &Normalized| {
        let mut claims = volumes("web", block).map(|volume| volume.claim);
        let claim = claims.find(|claim| claim.starts_with("web-installer-"));
        claim.unwrap()
    };
    let mut claims = BTreeSet::from([claim(&block)]);
    block.cdroms[0].boot_order = Some(7);
    assert!(
        claims.contains(&claim(&block)),
        "the boot order is not part of the name"
    );
    let changes: [fn(&mut NormalizedCdrom); 3] = [
        |cdrom| cdrom.size = Some(Bytes::mib(9 * 1024)),
        |cdrom| cdrom.storage_class = Some("another".into()),
        |cdrom| cdrom.image.as_mut().unwrap().url = Some("docker://example.com/b".into()),
    ];
    for change in changes {
        change(&mut block.cdroms[0]);
        assert!(claims.insert(claim(&block)), "{:?}", block.cdroms);
    }
}
