//! A few whole objects, to be read by people.

use std::collections::BTreeMap;

use super::super::types::VirtualMachine;
use super::super::{CloudInitPlan, Guest, attachment, claim, virtual_machine};
use super::fixtures::{self, WEB};
use crate::api::choice::{FirmwareType, PowerState};
use crate::api::machine::CloudInit;
use crate::api::network::NetworkConfigurationSpec;
use crate::api::normalized::{Firmware, Normalized, NormalizedFeatures};

fn render(block: &Normalized, cloud: &CloudInit) -> VirtualMachine {
    virtual_machine(&Guest {
        machine: WEB,
        block,
        cloud_init: &CloudInitPlan::from(cloud),
        attachments: &BTreeMap::new(),
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
    let claims: Vec<_> = disks[..4].iter().map(|disk| claim(&WEB, disk)).collect();
    insta::assert_yaml_snapshot!(claims);
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
