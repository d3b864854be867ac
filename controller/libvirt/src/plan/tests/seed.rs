//! The seed of a guest that runs, when addresses of its cards change.

use std::collections::BTreeMap;

use common::render::libvirt::{Domain, SeedRecord};
use common::render::{SecretKey, SecretValue};
use serde_json::json;

use super::*;

/// Network data as they follow from the addresses of the cards.
fn with_addresses(env: &mut Environment, network: Option<&str>) {
    let machine = env.machine_mut();
    let plan = machine.cloud_init.clone();
    machine.cloud_init = plan.with_network_configuration(network.map(ToOwned::to_owned));
}

fn recorded(env: &Environment) -> Option<SeedRecord> {
    let host = env.host.state();
    let domain = &host.domains[&domain_uuid(UID)];
    let defined = Domain::parse(&domain.inactive).unwrap();
    defined.metadata.unwrap().seed
}

fn pending(env: &Environment) -> Vec<String> {
    let changes = env.machine().status.pending_changes.iter();
    changes.map(|change| change.field.clone()).collect()
}

fn restart(env: &mut Environment) {
    for power in [PowerState::Stopped, PowerState::Running] {
        env.power(power);
        env.settle();
    }
}

#[test]
fn a_card_with_an_address_is_plugged_in_and_out_and_nothing_waits_for_a_restart() {
    let mut env = rich();
    with_addresses(&mut env, Some("first"));
    env.settle();
    let (seed, card) = (recorded(&env), nic("second", None));
    assert!(seed.is_some());
    env.edit(|block| block.networks.push(card));
    with_addresses(&mut env, Some("first, second"));
    let done = env.settle();
    let is_plugged = |line: &String| line.contains("AttachNic") && line.contains("second");
    assert!(done.iter().any(is_plugged), "{done:#?}");
    assert_eq!((pending(&env), recorded(&env)), (vec![], seed.clone()));

    env.edit(|block| drop(block.networks.pop()));
    with_addresses(&mut env, Some("first"));
    env.settle();
    assert_eq!((pending(&env), recorded(&env)), (vec![], seed));
}

#[test]
fn the_next_start_has_the_network_data_of_the_addresses_that_changed() {
    let mut env = rich();
    with_addresses(&mut env, Some("first"));
    env.settle();
    let before = recorded(&env).unwrap();
    with_addresses(&mut env, Some("second"));
    assert_eq!(env.settle(), [""; 0]);
    restart(&mut env);
    let after = recorded(&env).unwrap();
    assert_ne!(after.digest, before.digest);
    assert_eq!(after.user_digest, before.user_digest);
    assert!(volumes(&env).contains(&after.volume));
    assert_eq!(pending(&env), [""; 0]);
}

#[test]
fn a_guest_without_a_seed_gets_one_of_its_addresses_at_the_next_start_and_loses_it_so() {
    let mut env = Environment::new(block());
    env.settle();
    for network in [Some("first"), None] {
        with_addresses(&mut env, network);
        assert_eq!(env.settle(), [""; 0]);
        assert_eq!(pending(&env), [""; 0]);
        restart(&mut env);
        assert_eq!(recorded(&env).is_some(), network.is_some());
    }
}

#[test]
fn other_user_data_wait_for_the_restart_whatever_the_addresses_are() {
    let mut env = rich();
    with_addresses(&mut env, Some("first"));
    env.settle();
    env.machine_mut().cloud_init = CloudInitPlan::from(&CloudInit {
        user_data: Some("#cloud-config\npackages: [vim]\n".into()),
        ..CloudInit::default()
    });
    with_addresses(&mut env, Some("second"));
    env.settle();
    assert_eq!(pending(&env), ["cloudInit"]);
}

/// The record of an earlier release does not say what of its seed followed from addresses.
#[test]
fn a_seed_of_an_earlier_release_is_kept_until_anything_in_it_changes() {
    let mut env = rich();
    with_addresses(&mut env, Some("first"));
    env.settle();
    let seed = recorded(&env).unwrap();
    let digest = format!(",\"userDigest\":\"{}\"", seed.user_digest.unwrap());
    {
        let mut host = env.host.state();
        let domain = host.domains.get_mut(&domain_uuid(UID)).unwrap();
        assert!(domain.inactive.contains(&digest));
        domain.inactive = domain.inactive.replace(&digest, "");
        domain.live = Some(domain.inactive.clone());
    }
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(recorded(&env).unwrap().user_digest, None);
    with_addresses(&mut env, Some("second"));
    env.settle();
    assert_eq!(pending(&env), ["cloudInit"]);
    restart(&mut env);
    assert!(recorded(&env).unwrap().user_digest.is_some());
}

/// Without its Secret the guest could not be started again, although its present seed is complete.
#[test]
fn a_restart_waits_for_the_seed_of_the_next_start() {
    let mut env = Environment::new(block());
    let reference = json!({"name": "web-user", "key": "userdata"});
    env.machine_mut().cloud_init = CloudInitPlan::from(&CloudInit {
        secret_ref: serde_json::from_value(reference).ok(),
        ..CloudInit::default()
    });
    let key = SecretKey {
        name: "web-user".into(),
        key: "userdata".into(),
    };
    let value = SecretValue::new("uid", "1", b"#cloud-config\n".to_vec());
    env.contents = Ok(BTreeMap::from([(key.clone(), Some(value))]));
    with_addresses(&mut env, Some("first"));
    env.settle();
    assert!(recorded(&env).is_some());
    with_addresses(&mut env, Some("second"));
    env.contents = Ok(BTreeMap::from([(key, None)]));
    env.settle();
    assert_eq!(reported(&env, "VirtualMachineReady").0, "True");
    let annotation = names::ANNOTATION_RESTART_REQUESTED;
    annotate(env.machine_mut(), annotation, "now");
    env.settle();
    assert_eq!(times(&env, "shutdown"), 0);
    assert_eq!(reported(&env, "RestartRequired"), ("True", "RestartWaits"));
}
