//! Any state a cluster can be in.

use common::api::choice::{PowerState, ReclaimPolicy};
use common::api::machine::{CloudInit, Image};
use common::api::normalized::{Normalized, NormalizedDisk};
use common::api::status::LastRestart;
use common::names;
use common::render::CloudInitPlan;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::objects::Claim;
use crate::objects::data_volume::DataVolume;
use crate::plan::world::{ORPHAN, World, decode, owner, sometime};
use controller_core::fixtures::{annotate, block, disk, machine, nic, pause};
use controller_core::machine::{Block, Machine};
use controller_core::objects::Meta as _;

/// Whose an object is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Whose {
    Ours,
    /// Somebody's who knows nothing of us.
    Stranger,
    /// With our labels, of a Machine of the name that is no more.
    Former,
    /// With our labels, of a Machine that lives.
    Living,
}

fn whose() -> impl Strategy<Value = Whose> {
    use Whose::{Former, Living, Ours, Stranger};
    prop_oneof![4 => Just(Ours), 1 => Just(Stranger), 1 => Just(Former), 1 => Just(Living)]
}

fn marked(name: &str, whose: Whose, annotations: &Value) -> Value {
    let uid = match whose {
        Whose::Ours => "uid-of-web",
        Whose::Former => "uid-of-former",
        Whose::Living => "uid-of-living",
        Whose::Stranger => {
            return json!({"name": name, "namespace": "default", "uid": format!("strange-{name}")});
        }
    };
    let mut metadata = json!({
        "name": name, "namespace": "default", "uid": format!("old-{name}"),
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
        whose(),
        prop::sample::select(policies),
        prop::sample::select(sizes),
        prop::sample::select(phases),
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(whose, policy, size, phase, deleting)| {
            let mut annotations = json!({});
            if let Some(policy) = policy {
                annotations[names::ANNOTATION_RECLAIM_POLICY] = policy.into();
            }
            let mut metadata = marked(&names::claim("web", disk), whose, &annotations);
            if whose != Whose::Stranger {
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
            claim.metadata.deletion_timestamp = deleting.then(sometime);
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
        whose(),
        prop::sample::select(phases),
        owns,
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(whose, phase, owns, deleting)| {
            let mut metadata = marked(&names::claim("web", disk), whose, &json!({}));
            metadata["uid"] = format!("import-{disk}").into();
            metadata["resourceVersion"] = "1".into();
            if whose != Whose::Stranger {
                metadata["labels"][names::LABEL_DISK] = disk.into();
            }
            let mut import: DataVolume =
                decode(json!({"metadata": metadata, "status": {"phase": phase}}));
            // Somebody else's would take what is theirs with it, and that is not our doing.
            let deleting = deleting && matches!(whose, Whose::Ours | Whose::Former);
            import.metadata.deletion_timestamp = deleting.then(sometime);
            // As we delete it: whoever else does so deletes a disk.
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

/// VirtualMachine and instance, made of a block that need not be the Machine's.
fn a_guest(world: &mut World, whose: Whose, made_of: Normalized, moves: usize, deleting: bool) {
    let mut other = World::new(machine(made_of));
    other.add_network("prod", "br0");
    other.add_network("test", "br1");
    other.pass();
    for _ in 0..moves {
        other.kubevirt_moves();
    }
    let made = other.vm.take();
    world.vm = made.map(|mut vm| {
        let rendered = vm
            .annotation(names::ANNOTATION_RENDERED)
            .unwrap()
            .to_owned();
        vm.metadata = decode(marked(
            "web",
            whose,
            &json!({names::ANNOTATION_RENDERED: rendered}),
        ));
        vm.metadata.deletion_timestamp = deleting.then(sometime);
        vm
    });
    world.instance = other.instance;
    if whose == Whose::Stranger
        && let Some(instance) = &mut world.instance
    {
        instance.metadata.labels = None;
    }
}

/// The text that a restart was asked for with, and whether the guest that runs had to go for it.
fn a_restart() -> impl Strategy<Value = (&'static str, bool)> {
    (prop::sample::select(&["now", "before"][..]), any::<bool>())
}

/// A restart is asked for, and one is remembered.
fn a_request(world: &mut World, asked: Option<&str>, last: Option<(&str, bool)>) {
    let instance = world
        .instance
        .as_ref()
        .map(|instance| instance.uid().to_owned());
    let machine = world.machine_mut();
    if let Some(text) = asked {
        annotate(machine, names::ANNOTATION_RESTART_REQUESTED, text);
    }
    machine.status.last_restart = last.map(|(request, runs)| LastRestart {
        request: request.to_owned(),
        replaces: instance.filter(|_| runs),
    });
}

/// A Machine that has the address that `web` is given on one of its networks.
fn a_rival() -> impl Strategy<Value = Machine> {
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
    pub(super) fn a_world()(
        machine in a_machine(),
        guest in prop::option::of((whose(), a_block(), 0..4_usize, prop::bool::weighted(0.2))),
        claims in DISKS.map(|disk| prop::option::of(a_claim(disk))),
        imports in DISKS.map(|disk| prop::option::weighted(0.2, an_import(disk))),
        secret in prop::option::of(whose()),
        served in [prop::bool::weighted(0.9); 3],
        networks in prop::sample::subsequence(&["prod", "test"][..], 0..=2),
        class in prop::bool::weighted(0.9),
        other in prop::option::weighted(0.2, a_rival()),
        restart in (prop::option::of(Just("now")), prop::option::of(a_restart())),
    ) -> World {
        let mut world = World::new(machine);
        world.living.insert("uid-of-living".into());
        if let Some((whose, block, moves, deleting)) = guest {
            a_guest(&mut world, whose, block, moves, deleting);
        }
        let claims = claims.into_iter().flatten();
        world.claims = claims.map(|claim| (claim.name().to_owned(), claim)).collect();
        world.secret = secret.map(|whose| {
            decode(json!({"metadata": marked("web-cloudinit", whose, &json!({}))}))
        });
        for (import, owns) in imports.into_iter().flatten() {
            // CDI gives a claim the labels and annotations of its DataVolume.
            let claim = world.claims.get_mut(import.name());
            let claim = claim.filter(|claim| owns && claim.machine_uid() == import.machine_uid());
            if let Some(claim) = claim {
                claim.metadata.owner_references = Some(vec![owner(&import)]);
            }
            world.data_volumes.insert(import.name().to_owned(), import);
        }
        [world.kubevirt, world.multus, world.cdi] = served;
        a_request(&mut world, restart.0, restart.1);
        for network in networks {
            world.add_network(network, "br0");
        }
        world.others.extend(other);
        if !class {
            world.classes.clear();
        }
        world
    }
}
