//! Snapshots of a few whole objects.

use std::collections::BTreeMap;

use super::super::types::VirtualMachine;
use super::super::{
    VirtualMachineInput, attachment, claim, data_volume, is_unverifiable, virtual_machine, volumes,
};
use super::fixtures::{self, WEB};
use crate::api::choice::{FirmwareType, PowerState};
use crate::api::machine::{CloudInit, Image};
use crate::api::network::NetworkConfigurationSpec;
use crate::api::normalized::{
    Firmware, Normalized, NormalizedCdrom, NormalizedDisk, NormalizedFeatures,
};
use crate::render::CloudInitPlan;

fn render(block: &Normalized, cloud: &CloudInit) -> VirtualMachine {
    virtual_machine(&VirtualMachineInput {
        machine: WEB,
        block,
        cloud_init: &CloudInitPlan::from(cloud),
        labels: &BTreeMap::new(),
        annotations: &BTreeMap::new(),
        attachments: &BTreeMap::new(),
        secret_revisions: &BTreeMap::new(),
    })
}

#[test]
fn a_small_machine_renders_as_in_its_snapshot() {
    let cloud = CloudInit {
        user_data: Some("#cloud-config\npackages: [curl]\n".into()),
        ..CloudInit::default()
    };
    insta::assert_yaml_snapshot!("small_with_cloud_init", render(&fixtures::block(), &cloud));
}

#[test]
fn a_windows_machine_with_every_feature_renders_as_in_its_snapshot() {
    let (disks, cdroms) = fixtures::storage().pop().unwrap();
    let (cpu, memory) = fixtures::sizes()[3];
    let block = Normalized {
        cpu,
        memory,
        disks,
        cdroms,
        networks: fixtures::networks().pop().unwrap(),
        firmware: Firmware {
            persistent: None,
            kind: FirmwareType::Efi,
            secure_boot: Some(true),
        },
        features: NormalizedFeatures {
            acpi: true,
            apic: true,
            hyperv: true,
        },
        power_state: PowerState::Stopped,
        node_selector: [("zone".to_owned(), "a".to_owned())].into(),
        ..fixtures::block()
    };
    let cloud = fixtures::cloud_inits().pop().unwrap();
    insta::assert_yaml_snapshot!("windows_with_everything", render(&block, &cloud));
}

#[test]
fn every_disk_renders_to_a_claim_as_in_its_snapshot() {
    let (disks, _) = fixtures::storage().pop().unwrap();
    let block = Normalized {
        disks,
        ..fixtures::block()
    };
    let claims = volumes(WEB.name, &block).take(4);
    let claims: Vec<_> = claims.map(|volume| claim(&WEB, &volume)).collect();
    insta::assert_yaml_snapshot!("claims", claims);
}

#[test]
fn an_image_that_cdi_can_import_renders_to_a_data_volume() {
    let sum = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let url = |url: &str, checksum: Option<&str>| Image {
        url: Some(url.to_owned()),
        checksum: checksum.map(ToOwned::to_owned),
        ..Image::default()
    };
    let clone = Image {
        persistent_volume_claim: Some("golden".into()),
        ..Image::default()
    };
    let elsewhere = Image {
        volume: Some("debian.qcow2".into()),
        ..Image::default()
    };
    let iso = url("http://images.example.com/debian.iso", None);
    let images = [
        url("https://images.example.com/debian.qcow2", Some(sum)),
        url("docker://quay.io/containerdisks/debian:13", None),
        clone,
        elsewhere,
    ];
    let disks = images.into_iter().zip(["root", "a", "b", "c"]);
    let block = Normalized {
        disks: disks
            .map(|(image, name)| NormalizedDisk {
                image: Some(image),
                ..fixtures::disk(name, "20Gi")
            })
            .collect(),
        cdroms: vec![NormalizedCdrom {
            hotpluggable: false,
            image_pin: None,
            name: "installer".into(),
            boot_order: None,
            image: Some(iso),
            size: Some("5Gi".parse().unwrap()),
            storage_class: Some("standard".into()),
        }],
        ..fixtures::block()
    };
    let rendered: Vec<_> = volumes(WEB.name, &block)
        .filter_map(|volume| data_volume(&WEB, &volume, "images"))
        .collect();
    insta::assert_yaml_snapshot!("data_volumes", rendered);

    let mut other = block.clone();
    other.cdroms[0].image = Some(url("http://images.example.com/drivers.iso", None));
    let claims = |block| -> Vec<_> { volumes(WEB.name, block).map(|it| it.claim).collect() };
    let (old, new) = (claims(&block), claims(&other));
    assert_eq!(old[..4], new[..4]);
    assert_ne!(old[4], new[4], "another medium is another claim");
}

#[test]
fn only_an_image_of_a_registry_has_an_unverifiable_checksum() {
    let image = |url: &str, checksum: bool| Image {
        url: Some(url.to_owned()),
        checksum: checksum.then(|| "sha256:0".to_owned()),
        ..Image::default()
    };
    assert!(is_unverifiable(&image("docker://quay.io/a", true)));
    assert!(!is_unverifiable(&image("docker://quay.io/a", false)));
    assert!(!is_unverifiable(&image("https://example.com/a", true)));
    assert!(!is_unverifiable(&image("http://example.com/a", true)));
}

#[test]
fn meta_data_renders_to_a_secret_with_the_files_of_nocloud() {
    let cloud = CloudInit {
        user_data: Some("#cloud-config\n".into()),
        meta_data: Some([("public-keys".to_owned(), "ssh-ed25519 AAAA".to_owned())].into()),
        ..CloudInit::default()
    };
    let secret = CloudInitPlan::from(&cloud).secret(&WEB, |_| None).unwrap();
    let data: BTreeMap<_, _> = secret
        .data
        .into_iter()
        .map(|(key, value)| (key, String::from_utf8(value).unwrap()))
        .collect();
    insta::assert_yaml_snapshot!("cloud_init_secret", (secret.metadata, data));
}

#[test]
fn a_bridge_renders_to_an_attachment_and_an_existing_attachment_to_none() {
    let spec = NetworkConfigurationSpec {
        vlan: Some(100),
        bridge: Some("br-prod".into()),
        mtu: Some(9000),
        ipam: None,
        network_attachment_definition: None,
    };
    insta::assert_yaml_snapshot!(
        "attachments",
        attachment("prod", "storage-network", "uid-1", &spec)
    );
    let existing = NetworkConfigurationSpec {
        network_attachment_definition: Some("made-elsewhere".into()),
        ..spec.clone()
    };
    assert_eq!(attachment("prod", "n", "uid-1", &existing), None);
    let nowhere = NetworkConfigurationSpec {
        bridge: None,
        ..spec
    };
    assert_eq!(attachment("prod", "n", "uid-1", &nowhere), None);
}
