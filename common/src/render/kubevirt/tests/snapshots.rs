//! A few whole objects, to be read by people.

use std::collections::BTreeMap;

use super::super::types::VirtualMachine;
use super::super::{
    Guest, attachment, claim, data_volume, is_unverifiable, virtual_machine, volumes,
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
    virtual_machine(&Guest {
        machine: WEB,
        block,
        cloud_init: &CloudInitPlan::from(cloud),
        attachments: &BTreeMap::new(),
        marks: &BTreeMap::new(),
    })
}

#[test]
fn small_with_cloud_init() {
    let cloud = CloudInit {
        user_data: Some("#cloud-config\npackages: [curl]\n".into()),
        ..CloudInit::default()
    };
    insta::assert_yaml_snapshot!(render(&fixtures::block(), &cloud));
}

#[test]
fn windows_with_everything() {
    let (disks, cdroms) = fixtures::storage().pop().unwrap();
    let (cpu, memory) = fixtures::sizes()[3];
    let block = Normalized {
        cpu,
        memory,
        disks,
        cdroms,
        networks: fixtures::networks().pop().unwrap(),
        firmware: Firmware {
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
    insta::assert_yaml_snapshot!(render(&block, &cloud));
}

#[test]
fn claims() {
    let (disks, _) = fixtures::storage().pop().unwrap();
    let block = Normalized {
        disks,
        ..fixtures::block()
    };
    let claims = volumes(WEB.name, &block).take(4);
    let claims: Vec<_> = claims.map(|volume| claim(&WEB, &volume)).collect();
    insta::assert_yaml_snapshot!(claims);
}

#[test]
fn data_volumes() {
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
            name: "installer".into(),
            boot_order: None,
            image: Some(iso),
            size: Some("5Gi".parse().unwrap()),
            storage_class: Some("standard".into()),
        }],
        ..fixtures::block()
    };
    let made: Vec<_> = volumes(WEB.name, &block)
        .filter_map(|volume| data_volume(&WEB, &volume))
        .collect();
    insta::assert_yaml_snapshot!(made);

    let mut other = block.clone();
    other.cdroms[0].image = Some(url("http://images.example.com/drivers.iso", None));
    let claims = |block| -> Vec<_> { volumes(WEB.name, block).map(|it| it.claim).collect() };
    let (was, is) = (claims(&block), claims(&other));
    assert_eq!(was[..4], is[..4]);
    assert_ne!(was[4], is[4], "another medium is another claim");
}

#[test]
fn a_checksum_is_verified_by_web_servers_alone() {
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
fn cloud_init_secret() {
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
    insta::assert_yaml_snapshot!((secret.metadata, data));
}

#[test]
fn attachments() {
    let spec = NetworkConfigurationSpec {
        vlan: Some(100),
        bridge: Some("br-prod".into()),
        mtu: Some(9000),
        network_attachment_definition: None,
    };
    insta::assert_yaml_snapshot!(attachment("prod", "storage-network", "uid-1", &spec));
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
