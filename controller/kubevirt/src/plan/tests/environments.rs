//! Generators of arbitrary states of a cluster.

use common::api::choice::{PowerState, ReclaimPolicy};
use common::api::machine::{CloudInit, Image};
use common::api::normalized::{Normalized, NormalizedDisk};
use common::api::status::LastRestart;
use common::names;
use common::render::CloudInitPlan;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::environment::moves::owner;
use crate::environment::{FakeCluster, ORPHAN, decode, some_time};
use crate::objects::{Claim, DataVolume};
use controller_core::fixtures::{annotate, block, disk, machine, nic, pause};
use controller_core::machine::{Block, Machine};
use controller_core::objects::Meta as _;

/// Who made an object.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ownership {
    Ours,
    /// Another owner; without our labels.
    Stranger,
    /// A former Machine of the name; with our labels.
    Former,
    /// Another Machine, which exists; with our labels.
    Living,
}

fn ownership() -> impl Strategy<Value = Ownership> {
    use Ownership::{Former, Living, Ours, Stranger};
    prop_oneof![4 => Just(Ours), 1 => Just(Stranger), 1 => Just(Former), 1 => Just(Living)]
}

fn owned_metadata(name: &str, ownership: Ownership, annotations: &Value) -> Value {
    let uid = match ownership {
        Ownership::Ours => "uid-of-web",
        Ownership::Former => "uid-of-former",
        Ownership::Living => "uid-of-living",
        Ownership::Stranger => {
            return json!({
                "name": name, "namespace": "default", "uid": format!("strange-{name}"),
                "resourceVersion": "1",
            });
        }
    };
    let mut metadata = json!({
        "name": name, "namespace": "default", "uid": format!("old-{name}"), "resourceVersion": "1",
        "labels": {names::LABEL_MANAGED_BY: names::MANAGED_BY, names::LABEL_MACHINE: "web"},
        "annotations": annotations,
    });
    metadata["annotations"][names::ANNOTATION_MACHINE_UID] = uid.into();
    metadata
}

const DISKS: [&str; 3] = ["root", "data", "old"];

fn a_claim(disk: &'static str) -> impl Strategy<Value = Claim> {
    let policies = vec![None, Some("Delete"), Some("Retain"), Some("nonsense")];
    let sizes = vec!["10Gi", "20Gi", "40Gi"];
    let phases = vec!["Bound", "Pending"];
    (
        ownership(),
        prop::sample::select(policies),
        prop::sample::select(sizes),
        prop::sample::select(phases),
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(ownership, policy, size, phase, deleting)| {
            let mut annotations = json!({});
            if let Some(policy) = policy {
                annotations[names::ANNOTATION_RECLAIM_POLICY] = policy.into();
            }
            let mut metadata = owned_metadata(&names::claim("web", disk), ownership, &annotations);
            if ownership != Ownership::Stranger {
                metadata["labels"][names::LABEL_DISK] = disk.into();
            }
            let mut claim: Claim = decode(json!({
                "metadata": metadata,
                "spec": {
                    "storageClassName": "standard", "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": size}},
                },
                "status": {"phase": phase},
            }));
            claim.metadata.deletion_timestamp = deleting.then(some_time);
            claim
        })
}

/// A DataVolume beside a claim, which it may own, or without one.
fn an_import(disk: &'static str) -> impl Strategy<Value = (DataVolume, bool)> {
    let phases = vec![
        "",
        "WaitForFirstConsumer",
        "ImportInProgress",
        "Succeeded",
        "Failed",
    ];
    let owns = prop::bool::weighted(0.8);
    (
        ownership(),
        prop::sample::select(phases),
        owns,
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(ownership, phase, owns, deleting)| {
            let mut metadata = owned_metadata(&names::claim("web", disk), ownership, &json!({}));
            metadata["uid"] = format!("import-{disk}").into();
            metadata["resourceVersion"] = "1".into();
            if ownership != Ownership::Stranger {
                metadata["labels"][names::LABEL_DISK] = disk.into();
            }
            let mut import: DataVolume =
                decode(json!({"metadata": metadata, "status": {"phase": phase}}));
            // Deleting another owner's would delete their claim, which is no action of the controller.
            let deleting = deleting && matches!(ownership, Ownership::Ours | Ownership::Former);
            import.metadata.deletion_timestamp = deleting.then(some_time);
            // As the controller deletes it, without the claim.
            let orphans = deleting && import.is_finished();
            import.metadata.finalizers = orphans.then(|| vec![ORPHAN.to_owned()]);
            (import, owns)
        })
}

fn an_image() -> Image {
    Image {
        url: Some("https://images.example.com/debian.qcow2".into()),
        ..Image::default()
    }
}

fn a_block() -> impl Strategy<Value = Normalized> {
    let policy = || prop::sample::select(&[ReclaimPolicy::Delete, ReclaimPolicy::Retain][..]);
    (
        prop::sample::subsequence(&DISKS[..], 0..=3),
        policy(),
        prop::sample::subsequence(&["prod", "test"][..], 0..=2),
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(disks, policy, networks, on, stops, filled)| Normalized {
            disks: disks
                .into_iter()
                .map(|name| NormalizedDisk {
                    image: filled.then(an_image),
                    ..disk(name, policy)
                })
                .collect(),
            networks: networks
                .into_iter()
                .map(|name| nic(name, Some(name)))
                .collect(),
            power_state: if on {
                PowerState::Running
            } else {
                PowerState::Stopped
            },
            guest_shutdown_stops: stops,
            ..block()
        })
}

fn a_machine() -> impl Strategy<Value = Machine> {
    let texts = vec![String::new(), "#cloud-config".to_owned(), "#".repeat(4000)];
    (
        a_block(),
        prop::sample::select(texts),
        any::<bool>(),
        prop::bool::weighted(0.1),
        prop_oneof![
            8 => Just(None),
            1 => Just(Some(Block::Missing)),
            1 => Just(Some(Block::Stale)),
        ],
    )
        .prop_map(|(block, text, finalizer, paused, unfit)| {
            let mut machine = machine(block);
            machine.cloud_init = CloudInitPlan::from(&CloudInit {
                user_data: Some(text),
                ..CloudInit::default()
            });
            machine.metadata.finalizers = finalizer.then(|| vec![names::FINALIZER.to_owned()]);
            if paused {
                pause(&mut machine);
            }
            machine.block = unfit.unwrap_or(machine.block);
            machine
        })
}

/// VirtualMachine and instance, rendered from a block that may differ from the Machine's.
fn a_guest(
    environment: &mut FakeCluster,
    ownership: Ownership,
    made_of: Normalized,
    moves: usize,
    deleting: bool,
) {
    let mut other = FakeCluster::new(machine(made_of));
    other.add_network("prod", "br0");
    other.add_network("test", "br1");
    other.pass();
    for _ in 0..moves {
        other.advance_kubevirt();
    }
    let made = other.vm.take();
    environment.vm = made.map(|mut vm| {
        let rendered = vm
            .annotation(names::ANNOTATION_RENDERED)
            .unwrap()
            .to_owned();
        vm.metadata = decode(owned_metadata(
            "web",
            ownership,
            &json!({names::ANNOTATION_RENDERED: rendered}),
        ));
        vm.metadata.deletion_timestamp = deleting.then(some_time);
        vm
    });
    environment.instance = other.instance;
    if ownership == Ownership::Stranger
        && let Some(instance) = &mut environment.instance
    {
        instance.metadata.labels = None;
    }
}

/// The recorded restart request, and whether the running guest has to be replaced for it.
fn a_restart() -> impl Strategy<Value = (&'static str, bool)> {
    (prop::sample::select(&["now", "before"][..]), any::<bool>())
}

/// Requests a restart and records an earlier one.
fn a_request(environment: &mut FakeCluster, request: Option<&str>, last: Option<(&str, bool)>) {
    let instance = environment
        .instance
        .as_ref()
        .map(|instance| instance.uid().to_owned());
    let machine = environment.machine_mut();
    if let Some(text) = request {
        annotate(machine, names::ANNOTATION_RESTART_REQUESTED, text);
    }
    machine.status.last_restart = last.map(|(request, runs)| LastRestart {
        cause: None,
        request: request.to_owned(),
        replaces: instance.filter(|_| runs),
    });
}

/// A Machine with the MAC address that `web` gets on one of its networks.
fn any_conflicting_machine() -> impl Strategy<Value = Machine> {
    let network = prop::sample::select(&["prod", "test"][..]);
    (network, any::<bool>()).prop_map(|(network, older)| {
        let mut block = block();
        block.networks = vec![nic("eth0", Some(network))];
        let mac = machine(block.clone()).identity("cluster").mac(network);
        block.networks[0].mac_address = Some(mac);
        let mut conflict = machine(block);
        conflict.metadata.name = Some(if older { "db" } else { "x" }.to_owned());
        conflict
    })
}

prop_compose! {
    pub(super) fn any_environment()(
        machine in a_machine(),
        guest in prop::option::of((ownership(), a_block(), 0..4_usize, prop::bool::weighted(0.2))),
        claims in DISKS.map(|disk| prop::option::of(a_claim(disk))),
        imports in DISKS.map(|disk| prop::option::weighted(0.2, an_import(disk))),
        secret in prop::option::of(ownership()),
        served in [prop::bool::weighted(0.9); 3],
        networks in prop::sample::subsequence(&["prod", "test"][..], 0..=2),
        class in prop::bool::weighted(0.9),
        other in prop::option::weighted(0.2, any_conflicting_machine()),
        restart in (prop::option::of(Just("now")), prop::option::of(a_restart())),
    ) -> FakeCluster {
        let mut environment = FakeCluster::new(machine);
        environment.existing_uids.insert("uid-of-living".into());
        if let Some((ownership, block, moves, deleting)) = guest {
            a_guest(&mut environment, ownership, block, moves, deleting);
        }
        let claims = claims.into_iter().flatten();
        environment.claims = claims.map(|claim| (claim.name().to_owned(), claim)).collect();
        environment.secret = secret.map(|ownership| {
            decode(json!({"metadata": owned_metadata("web-cloudinit", ownership, &json!({}))}))
        });
        for (import, owns) in imports.into_iter().flatten() {
            // CDI gives a claim the labels and annotations of its DataVolume.
            let claim = environment.claims.get_mut(import.name());
            let claim = claim.filter(|claim| owns && claim.machine_uid() == import.machine_uid());
            if let Some(claim) = claim {
                claim.metadata.owner_references = Some(vec![owner(&import)]);
            }
            environment.data_volumes.insert(import.name().to_owned(), import);
        }
        [environment.kubevirt, environment.multus, environment.cdi] = served;
        a_request(&mut environment, restart.0, restart.1);
        for network in networks {
            environment.add_network(network, "br0");
        }
        environment.others.extend(other);
        if !class {
            environment.classes.clear();
        }
        environment
    }
}
