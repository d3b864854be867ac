//! Moves between two hosts with the same storage behind their pools.

use common::api::choice::{FirmwareType, GroupScope, MigrationResult};
use common::api::normalized::{NormalizedGroup, NormalizedTpm};
use common::api::status::LastMigration;
use common::catalog::Policy;
use controller_core::conditions::Fault;
use controller_core::fixtures::existing_disk;
use controller_core::migration::REFUSED;
use controller_core::plan::{Refusal, Subject};
use serde_json::json;

use super::faults::at_each_change;
use super::*;
use crate::access::AccessError;
use crate::access::fake::{FakeLibvirt, FakeVolume, HostState, When};
use crate::apply::moving::verify_volumes;
use crate::images::names::{is_attempt, is_marker, marker};
use crate::plan::action::{Action, MovedVolume};

/// A stopped Machine with a blank disk, a copy of an image and cloud-init.
fn stopped() -> Environment {
    let mut block = block();
    block.disks.push(disk("copy", ReclaimPolicy::Delete));
    block.disks[1].storage_class = "copied".into();
    block.disks[1].image = Some(image());
    let mut env = Environment::new(block).with_other_host();
    env.machine_mut().cloud_init = CloudInitPlan::from(&CloudInit {
        user_data: Some("#cloud-config\n".into()),
        ..CloudInit::default()
    });
    env.settle();
    env.power(PowerState::Stopped);
    env.settle();
    assert_eq!(phase(&env), Some(Phase::Stopped));
    env
}

fn request(env: &mut Environment) {
    annotate(env.machine_mut(), names::ANNOTATION_MIGRATE_REQUESTED, "a");
}

fn last(env: &Environment) -> &LastMigration {
    env.machine().status.last_migration.as_ref().unwrap()
}

/// The volumes of disks in a pool.
fn disks_on(host: &FakeLibvirt) -> Vec<String> {
    let state = host.state();
    let names = state.pools[POOL].volumes.keys().cloned();
    let is_disk =
        |name: &String| (name.contains(".root.") || name.contains(".copy.")) && !is_marker(name);
    names.filter(is_disk).collect()
}

/// The hosts with a domain of the Machine, and how many of these run.
fn domains(env: &Environment) -> (Vec<String>, usize) {
    let (other, object) = env.other.as_ref().unwrap();
    let (mut names, mut running) = (vec![], 0);
    for (host, object) in [(&env.host, &env.object), (other, object)] {
        if let Some(domain) = host.state().domains.get(&domain_uuid(UID)) {
            names.extend(object.metadata.name.clone());
            running += usize::from(domain.state.active());
        }
    }
    (names, running)
}

fn on(name: &str) -> (Vec<String>, usize) {
    (vec![name.to_owned()], 0)
}

#[test]
fn a_stopped_machine_moves_with_its_disks_and_starts_on_the_other_host() {
    let mut env = stopped();
    let before = disks_on(&env.host);
    assert_eq!(before.len(), 2, "{before:?}");
    request(&mut env);
    let done = env.settle();
    assert_eq!(done[0], "recorded the move from LibvirtHost alpha to beta");
    assert_eq!(
        done[1],
        "removed the definition of the domain from LibvirtHost alpha"
    );
    assert!(!done.iter().any(|it| it.contains("volume")), "{done:#?}");
    assert_eq!(
        last(&env).result,
        Some(MigrationResult::Succeeded),
        "{:#?}",
        env.machine().status
    );
    assert_eq!(last(&env).node.as_deref(), Some("beta"));
    assert_eq!(env.machine().status.host.as_deref(), Some("beta"));
    assert_eq!(domains(&env), on("beta"));
    assert_eq!(reported(&env, "Ready"), ("True", "Stopped"));
    assert_eq!(disks_on(&env.host), before);
    // The same text moves it once.
    assert_eq!(env.settle(), [""; 0]);
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(domains(&env), (vec!["beta".to_owned()], 1));
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}

#[test]
fn a_move_that_is_interrupted_anywhere_ends_with_one_domain_and_the_same_disks() {
    // The controller is killed after so many steps of each of the first passes.
    for steps in 0..4 {
        for passes in 0..6 {
            let mut env = stopped();
            let before = disks_on(&env.host);
            request(&mut env);
            for _ in 0..passes {
                env.pass_until(steps);
                assert!(domains(&env).0.len() <= 1, "{steps} {passes}");
                assert_eq!(disks_on(&env.host), before, "{steps} {passes}");
            }
            env.settle();
            assert_eq!(domains(&env), on("beta"), "{steps} {passes}");
            assert_eq!(disks_on(&env.host), before, "{steps} {passes}");
            assert_eq!(last(&env).result, Some(MigrationResult::Succeeded));
        }
    }
    // Each call of a host fails, before or after its effect, while the power is switched on as well.
    for when in [When::Before, When::During, When::After] {
        for (on_target, changes) in [(false, 1), (true, 8)] {
            at_each_change(changes, |number| {
                let mut env = stopped();
                let before = disks_on(&env.host);
                let host = match &env.other {
                    Some((beta, _)) if on_target => beta.clone(),
                    _ => env.host.clone(),
                };
                host.fail_nth(number, when, AccessError::TimedOut("no answer".into()));
                request(&mut env);
                for pass in 0..12 {
                    env.pass();
                    let (names, running) = domains(&env);
                    assert!(names.len() <= 1 && running <= 1, "{when:?} {number}");
                    assert_eq!(disks_on(&env.host), before, "{when:?} {number}");
                    if pass == 3 {
                        env.power(PowerState::Running);
                    }
                }
                env.settle();
                let place = env.machine().status.host.clone().unwrap();
                assert_eq!(domains(&env), (vec![place], 1), "{when:?} {number}");
                assert!(last(&env).result.is_some(), "{when:?} {number}");
                !host.has_fault()
            });
        }
    }
}

#[test]
fn a_machine_that_is_deleted_during_a_move_leaves_nothing() {
    for passes in 0..6 {
        for steps in 0..3 {
            let mut env = stopped();
            request(&mut env);
            for _ in 0..passes {
                env.pass_until(steps);
            }
            env.delete();
            env.settle();
            assert!(env.machine.is_none());
            assert_eq!(domains(&env).0, [""; 0], "{passes} {steps}");
            assert_eq!(disks_on(&env.host), [""; 0], "{passes} {steps}");
        }
    }
}

type Change = fn(&mut Environment);

#[test]
fn a_machine_that_cannot_be_moved_stays_and_the_status_says_why() {
    let table: [(&str, Change); 16] = [
        ("the guest runs", |env| env.power(PowerState::Running)),
        ("the content of its TPM", |env| {
            env.edit(|block| block.tpm = Some(NormalizedTpm { persistent: true }));
        }),
        ("its EFI variables", |env| {
            env.edit(|block| block.firmware.kind = FirmwareType::Efi);
        }),
        ("on a volume that existed before", |env| {
            let disk = existing_disk("old", "old");
            env.edit(|block| block.existing_disks.push(disk));
        }),
        ("the volume of disk 'copy', which left the spec", |env| {
            env.edit(|block| drop(block.disks.pop()));
        }),
        ("disk 'root' is in a pool of its host alone", |env| {
            env.object.spec.storage.as_mut().unwrap()[0].shared_as = None;
        }),
        ("beta: does not share the storage of class 'local'", |env| {
            let (_, beta) = env.other.as_mut().unwrap();
            beta.spec.storage.as_mut().unwrap()[0].shared_as = Some("other".into());
        }),
        ("beta: has no label zone=b", |env| {
            env.edit(|block| drop(block.node_selector.insert("zone".into(), "b".into())));
        }),
        ("beta: has no label topology.kubernetes.io/zone", |env| {
            let group = NormalizedGroup {
                name: "db".into(),
                required: true,
                scope: GroupScope::Zone,
            };
            env.edit(|block| {
                let placement = block.placement.get_or_insert_default();
                placement.anti_affinity_group = Some(group);
            });
        }),
        ("beta: is not schedulable", |env| {
            env.other.as_mut().unwrap().1.spec.schedulable = Some(false);
        }),
        ("beta: is in maintenance", |env| {
            env.other.as_mut().unwrap().1.spec.maintenance = Some(true);
        }),
        ("LibvirtHost 'alpha' is in maintenance", |env| {
            env.object.spec.maintenance = Some(true);
        }),
        ("beta: has 1 of 1 vCPUs left", |env| {
            env.other.as_ref().unwrap().0.state().info.cpus = 1;
        }),
        ("beta: cannot be reached", |env| {
            env.other.as_ref().unwrap().0.set_reachable(false);
        }),
        ("the Machine is on LibvirtHost 'alpha' already", |env| {
            annotate(env.machine_mut(), names::ANNOTATION_MIGRATE_TO, "alpha");
        }),
        ("there is no LibvirtHost 'gamma'", |env| {
            annotate(env.machine_mut(), names::ANNOTATION_MIGRATE_TO, "gamma");
        }),
    ];
    for (why, change) in table {
        let mut env = stopped();
        change(&mut env);
        request(&mut env);
        env.pass();
        let last = last(&env);
        assert_eq!(last.result, Some(MigrationResult::Refused), "{why}");
        let message = last.message.as_deref().unwrap();
        assert!(message.contains(why), "{message}");
        assert_eq!(domains(&env).0, ["alpha"], "{why}");
        assert_eq!(env.machine().status.host.as_deref(), Some("alpha"));
    }
}

#[test]
fn a_move_is_given_up_until_the_definition_is_removed_and_the_machine_is_where_it_was() {
    let table: [(&str, Change); 5] = [
        ("the guest runs", |env| env.power(PowerState::Running)),
        ("is not shut off", |env| {
            let mut host = env.connection().unwrap();
            host.start(domain_uuid(UID), false).unwrap();
        }),
        ("LibvirtHost 'beta' cannot be reached", |env| {
            env.other.as_ref().unwrap().0.set_reachable(false);
        }),
        ("LibvirtHost 'alpha' is in maintenance", |env| {
            env.object.spec.maintenance = Some(true);
        }),
        ("may get nothing more: the quota is used up", |env| {
            env.hold = Some(Fault::new("QuotaExceeded", "the quota is used up"));
        }),
    ];
    for (why, change) in table {
        let mut env = stopped();
        request(&mut env);
        env.pass();
        assert_eq!(env.machine().status.host.as_deref(), Some("beta"));
        change(&mut env);
        env.pass();
        let last = last(&env);
        assert_eq!(
            (last.result, &last.from),
            (Some(MigrationResult::Failed), &None),
            "{why}"
        );
        let message = last.message.as_deref().unwrap();
        assert!(message.contains(why), "{message}");
        assert_eq!(domains(&env).0, ["alpha"], "{why}");
        assert_eq!(env.machine().status.host.as_deref(), Some("alpha"));
    }
}

/// What the other host lacks shows only when its pools are read.
#[test]
fn a_step_that_the_other_host_refuses_ends_the_move() {
    let mut env = stopped();
    request(&mut env);
    let refusal = Refusal {
        subject: Subject::Migration,
        reason: Some(REFUSED),
        message: "volume vms/x is not there".into(),
    };
    for result in [MigrationResult::Refused, MigrationResult::Failed] {
        let plan = env.plan_after(Some(&refusal)).unwrap();
        let status = plan.status.unwrap();
        let last = status.last_migration.unwrap();
        assert_eq!(last.result, Some(result));
        assert!(last.message.unwrap().contains(&refusal.message));
        assert_eq!(status.host.as_deref(), Some("alpha"));
        env.pass();
    }
}

#[test]
fn a_disk_that_the_other_host_has_lost_is_not_made_anew() {
    let mut env = stopped();
    request(&mut env);
    env.pass();
    env.pass();
    assert_eq!(domains(&env).0, [""; 0]);
    let mut lost = Vec::new();
    let (beta, _) = env.other.clone().unwrap();
    beta.state()
        .pools
        .get_mut(POOL)
        .unwrap()
        .volumes
        .retain(|name, volume| {
            let is_disk = name.contains(".root.") || name.contains(".copy.");
            if is_disk {
                lost.push((name.clone(), volume.clone()));
            }
            !is_disk
        });
    env.settle();
    assert_eq!(reported(&env, "StorageReady"), ("False", "VolumeFailed"));
    let text = message(&env, "StorageReady");
    assert!(text.contains("it is not recreated"), "{text}");
    assert_eq!(domains(&env).0, [""; 0]);
    beta.state()
        .pools
        .get_mut(POOL)
        .unwrap()
        .volumes
        .extend(lost);
    env.settle();
    assert_eq!(domains(&env), on("beta"));
    assert_eq!(last(&env).result, Some(MigrationResult::Succeeded));
}

/// A change of what a host has.
type Alter = fn(&mut HostState);

#[test]
fn the_other_host_must_have_each_volume_whole_unused_and_only_once() {
    fn copied(state: &mut HostState) -> String {
        let volumes = &state.pools[POOL].volumes;
        let mut names = volumes.keys();
        let copied = names.find(|name| is_attempt(name) && name.contains(".copy."));
        copied.unwrap().clone()
    }
    fn change(state: &mut HostState, change: impl FnOnce(&mut FakeVolume)) {
        let name = copied(state);
        let volumes = &mut state.pools.get_mut(POOL).unwrap().volumes;
        change(volumes.get_mut(&name).unwrap());
    }
    let table: [(&str, Alter); 7] = [
        ("is not there", |state| {
            let name = copied(state);
            state.pools.get_mut(POOL).unwrap().volumes.remove(&name);
        }),
        ("bytes instead of", |state| {
            change(state, |it| it.capacity += 1);
        }),
        ("is an overlay of a volume", |state| {
            change(state, |it| it.backing = Some("/images/base".into()));
        }),
        ("has no marker that it is complete", |state| {
            let marker = marker(&copied(state));
            state.pools.get_mut(POOL).unwrap().volumes.remove(&marker);
        }),
        ("is one of two for the same disk", |state| {
            let name = copied(state) + "0";
            let volumes = &mut state.pools.get_mut(POOL).unwrap().volumes;
            volumes.insert(marker(&name), FakeVolume::default());
            volumes.insert(name, FakeVolume::default());
        }),
        ("is used by domain", |state| {
            let domain = state.domains.values().next();
            assert!(domain.is_none(), "the other host has none before");
        }),
        ("pool", |state| {
            state.pools.get_mut(POOL).unwrap().active = false;
        }),
    ];
    for (why, break_it) in table {
        let mut env = stopped();
        request(&mut env);
        let plan = env.plan().unwrap();
        let Some(Action::MoveTo { volumes, .. }) = plan.actions.first() else {
            panic!("{plan:?}");
        };
        let volumes: Vec<MovedVolume> = volumes.clone();
        let (beta, _) = env.other.clone().unwrap();
        break_it(&mut beta.state());
        if why == "is used by domain" {
            let xml = format!(
                "<domain><name>theirs</name><uuid>{}</uuid><devices><disk type='volume' device='disk'>\
                 <source pool='{POOL}' volume='{}'/><target dev='vda'/></disk></devices></domain>",
                uuid::Uuid::from_u128(7),
                volumes[0].name
            );
            env.other_connection().unwrap().define(&xml).unwrap();
        }
        let mut host = env.other_connection().unwrap();
        let error = verify_volumes(&mut *host, &volumes)
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
        // Neither step has an effect.
        env.pass();
        assert_eq!(env.machine().status.host.as_deref(), Some("alpha"), "{why}");
        assert_eq!(domains(&env).0, ["alpha"], "{why}");
    }
}

/// The node selector of a Machine from before the policy does not have the labels.
#[test]
fn a_host_that_a_policy_does_not_allow_gets_no_machine() {
    let spec = json!({"namespaceSelector": {}, "libvirtHosts": {"matchLabels": {"zone": "a"}}});
    let policy = Policy::new("tenants".into(), serde_json::from_value(spec).unwrap()).unwrap();
    let mut env = stopped();
    env.policies = vec![policy.into()];
    request(&mut env);
    env.settle();
    assert_eq!(last(&env).result, Some(MigrationResult::Refused));
    let message = last(&env).message.as_deref().unwrap();
    let why = "beta: does not have the label zone=a that policy 'tenants' asks of hosts";
    assert!(message.contains(why), "{message}");
    assert_eq!(domains(&env), on("alpha"));
}
