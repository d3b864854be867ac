//! The laws that every backend obeys, over a host in memory.

use std::collections::{BTreeMap, BTreeSet};

use common::api::status::MachineStatus;
use controller_core::action_kinds;
use controller_core::backend::Growth;
use controller_core::conditions::Fault;
use controller_core::laws::{self, Refused, Waiting};
use controller_core::machine::Machine;
use controller_core::plan::{Now, Step};
use controller_core::preconditions::{Effect, Precondition};

use super::inputs::{
    changed, defined_on_two_hosts, ignoring_shutdown, ignoring_stop, leaving, movable, moving,
    on_no_host, resetting, restarting, under_maintenance, unmounted, unreachable, with_lost_host,
    without_network, without_pool_for_its_class, without_room,
};
use super::*;
use crate::Libvirt;
use crate::access::fake::{FakeLibvirt, FakePool, FakeVolume, HostState};
use crate::environment;
use crate::images::names::marker;
use crate::observe::Observation;
use crate::observed::Binding;
use crate::plan::action::Action;

impl laws::Environment for Environment {
    type Backend = Libvirt;

    fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    fn machine_mut(&mut self) -> &mut Machine {
        Environment::machine_mut(self)
    }

    fn write_status(&mut self, status: MachineStatus) {
        controller_core::documented_reasons::assert_documented(&status);
        self.machine_mut().status = status;
    }

    fn delete_machine(&mut self) {
        self.delete();
    }

    fn observe(&self) -> Observation {
        Environment::observe(self).unwrap()
    }

    fn step(&mut self, step: &Step<'_, Action>) -> Result<(), Refused> {
        Ok(Environment::step(self, step)?)
    }

    const PARTS: &'static [&'static str] = &["host", "pool", "another pool", "network", "secrets"];

    fn set_readable(&mut self, part: &str, readable: bool) {
        match part {
            "host" => self.host.set_reachable(readable),
            "pool" => self.host.state().pools.get_mut(POOL).unwrap().active = readable,
            "another pool" => {
                let active = readable;
                let pool = FakePool {
                    active,
                    ..FakePool::of(1 << 30)
                };
                self.host.state().pools.insert("other".into(), pool);
            }
            "network" => {
                let mut host = self.host.state();
                host.networks.get_mut("default").unwrap().active = readable;
            }
            "secrets" if readable => self.contents = Ok(BTreeMap::new()),
            "secrets" => self.contents = Err("secrets is forbidden".into()),
            other => unreachable!("{other} is no part"),
        }
    }

    /// Guests shut down as soon as it is requested: nothing changes on the host without a call.
    fn advance(&mut self) -> bool {
        self.now += time::Duration::seconds(10);
        false
    }

    fn now(&self) -> Now {
        Now(self.now)
    }

    fn lose_lease(&mut self) {
        self.has_lease = false;
    }

    action_kinds!(
        Action: Bind, MoveTo, Leave, FetchImage, CreateVolume, CopyVolume, GrowDisk, GrowVolume, CreateSeed, Define,
        SetMetadata, HotPlug, SetDisplayPassword, SetDhcpHosts, DeleteConsoleLog, Start, AskToStop, Destroy, Reset,
        Undefine, DeleteVolume, RecordKept, ReleaseKept, RemoveAnnotation, RecordOrphan,
    );

    fn unplanned(_: &str) -> Option<&'static str> {
        None
    }

    fn changes(&self) -> usize {
        self.host.calls().len() + self.writes
    }

    /// The volumes of disks: seeds and markers hold no data of a guest.
    fn volumes(&self) -> BTreeSet<String> {
        let all = volumes(self).into_iter();
        all.filter(|name| {
            name.starts_with("default-web-")
                && !name.contains(".seed-")
                && !name.ends_with(".complete")
        })
        .collect()
    }

    fn set_hold(&mut self, hold: Option<Fault>) {
        self.hold = hold;
    }

    fn growth(&self) -> Growth<'_> {
        Environment::growth(self)
    }

    fn guest(&self) -> Option<String> {
        let runs = state(self) == Some(State::Running);
        runs.then(|| format!("start {}", times(self, "start")))
    }

    fn resources(&self) -> BTreeSet<String> {
        let Binding::Bound(view) = Environment::observe(self).unwrap().observed.binding else {
            panic!("the Machine is bound to its host");
        };
        let guest = view.guest.unwrap();
        let domains = guest.defined.iter().chain(&guest.running);
        let sizes = domains.map(|domain| format!("{:?} {:?}", domain.cpu, domain.memory));
        let names = laws::Environment::volumes(self);
        let host = self.host.state();
        let volumes = names.into_iter().map(|name| {
            let size = host.pools[POOL].volumes[&name].capacity;
            format!("{name}: {size}")
        });
        sizes.chain(volumes).collect()
    }

    fn use_volume(&mut self, name: &str) {
        define_foreign_domain(self, name);
    }

    fn break_precondition(&mut self, action: &Action, precondition: Precondition) -> bool {
        match (precondition, action) {
            (Precondition::LeaseHeld, _) => self.has_lease = false,
            (Precondition::NotBoundElsewhere, _) => self.is_bound_elsewhere = true,
            (Precondition::OnlyDefinition, Action::ReleaseKept(kept)) => {
                define_on_another_host(self, &kept.volume.uid);
            }
            (Precondition::OnlyDefinition, _) => define_on_another_host(self, UID),
            (Precondition::Movable, Action::Leave { .. }) => {
                let mut host = self.connection().unwrap();
                host.start(domain_uuid(UID), false).unwrap();
            }
            (Precondition::Owned, Action::DeleteVolume(_) | Action::ReleaseKept(_)) => {
                return false;
            }
            (Precondition::Owned, _) => strip_metadata(self),
            (Precondition::Unchanged, Action::DeleteVolume(removal)) => {
                let key = Some("recreated".to_owned());
                let mut state = self.host.state();
                let volumes = &mut state.pools.get_mut(POOL).unwrap().volumes;
                volumes.get_mut(&removal.name).unwrap().key = key;
            }
            (Precondition::Unused, Action::DeleteVolume(removal)) => {
                define_foreign_domain(self, &removal.name);
            }
            (Precondition::NotABackingFile, Action::DeleteVolume(removal)) => {
                add_overlay(self, &removal.name);
            }
            (Precondition::Unused, Action::ReleaseKept(kept)) => {
                define_foreign_domain(self, &kept.volume.volume);
            }
            (Precondition::NotABackingFile, Action::ReleaseKept(kept)) => {
                add_overlay(self, &kept.volume.volume);
            }
            (
                Precondition::Incomplete,
                Action::CopyVolume { name, .. } | Action::CreateSeed { name, .. },
            ) => {
                put(self, &marker(name));
            }
            // A seed of the name that nothing uses is removed first, under the preconditions of a deletion.
            (Precondition::Unused, Action::CopyVolume { name, .. }) => put(self, name),
            _ => return false,
        }
        true
    }

    fn excluded(effect: Effect, precondition: Precondition) -> Option<&'static str> {
        let of_removals = "volume_effects::tests::no_volume_is_removed_without_each_precondition";
        match (effect, precondition) {
            (Effect::Replace, _) => Some("a domain is no instance that waits for a node"),
            (Effect::RemoveImage | Effect::RemoveUnusedImage, _) => Some(of_removals),
            // The deletion itself says whose volume it is and which policy it has.
            (Effect::DeleteVolume, Precondition::Owned | Precondition::Deletable) => {
                Some(of_removals)
            }
            (_, Precondition::ExistingDisksFree) => Some(
                "plan::tests::existing::no_effect_gives_a_volume_to_the_guest_that_another_domain_has_by_then",
            ),
            (_, Precondition::HardwareFree) => Some(
                "plan::tests::hardware::no_effect_gives_a_device_to_the_guest_that_another_domain_has_by_then",
            ),
            (_, Precondition::StateKept) => Some("access::contract::guests::nvram"),
            _ => None,
        }
    }
}

/// Somebody defines another domain in place of the Machine's.
fn strip_metadata(env: &Environment) {
    let uuid = domain_uuid(UID);
    let mut host = env.connection().unwrap();
    if host.domain(uuid).unwrap().is_some() {
        host.set_metadata(uuid, None).unwrap();
        return;
    }
    let xml = format!("<domain><name>theirs</name><uuid>{uuid}</uuid><devices/></domain>");
    host.define(&xml).unwrap();
}

/// Somebody defines the domain of the Machine of this uid on another host, as a restored backup does.
pub(super) fn define_on_another_host(env: &mut Environment, owner: &str) {
    let beta = || (FakeLibvirt::new(), environment::host_object("beta"));
    env.other.get_or_insert_with(beta);
    let uuid = domain_uuid(owner);
    let xml = format!("<domain><name>default-web</name><uuid>{uuid}</uuid><devices/></domain>");
    let mut host = env.other_connection().unwrap();
    host.define(&xml).unwrap();
    let metadata = DomainMetadata {
        uid: owner.to_owned(),
        ..DomainMetadata::default()
    };
    host.set_metadata(uuid, Some(&metadata.xml())).unwrap();
}

/// Somebody makes an overlay of a volume, in another pool.
pub(super) fn add_overlay(env: &Environment, name: &str) {
    let overlay = FakeVolume {
        backing: Some(HostState::path(POOL, name)),
        ..FakeVolume::default()
    };
    let mut other = FakePool::of(1 << 30);
    other.volumes.insert("clone.qcow2".into(), overlay);
    env.host.state().pools.insert("other".into(), other);
}

/// Somebody makes a volume of this name.
fn put(env: &Environment, name: &str) {
    let mut state = env.host.state();
    let volumes = &mut state.pools.get_mut(POOL).unwrap().volumes;
    volumes.insert(name.to_owned(), FakeVolume::default());
}

#[test]
fn a_plan_is_empty_once_it_was_carried_out() {
    laws::a_plan_is_empty_once_it_was_carried_out(rich());
}

#[test]
fn a_deletion_ends() {
    laws::a_deletion_ends(&[
        &rich,
        &movable,
        &ignoring_shutdown,
        &without_pool_for_its_class,
        &without_network,
        &without_room,
        &unmounted,
        &laws::held(rich),
        &on_no_host,
    ]);
}

#[test]
fn a_machine_that_waits_reports_why() {
    let deleting = |part| Some(("Ready", "Deleting", part));
    let because = |reason, part| Some(("Ready", reason, part));
    let waits = |new, exists, deleted| Waiting {
        new,
        exists,
        deleted,
    };
    laws::a_machine_that_waits_reports_why(
        rich,
        &[
            waits(
                &without_pool_for_its_class,
                because("NoHostFits", "alpha: offers no storage class"),
                None,
            ),
            waits(
                &without_network,
                because("VMFailed", "network 'default' is not active"),
                None,
            ),
            waits(
                &without_room,
                because("NoRoom", "has room for 1Mi memory"),
                None,
            ),
            waits(
                &on_no_host,
                because("NoHostFits", "alpha: is not schedulable"),
                None,
            ),
            waits(
                &unmounted,
                because("VolumeLost", "of disk 'root' is no longer in pool 'vms'"),
                None,
            ),
            waits(
                &unreachable,
                because("HostUnreachable", "LibvirtHost 'alpha' cannot be reached"),
                deleting("deletion waits for LibvirtHost 'alpha'"),
            ),
            waits(
                &under_maintenance,
                because("HostMaintenance", "the host is in maintenance"),
                deleting("LibvirtHost 'alpha' is in maintenance"),
            ),
            waits(
                &defined_on_two_hosts,
                because(
                    "DomainOnAnotherHost",
                    "'alpha' and 'beta' have a definition",
                ),
                deleting("'alpha' and 'beta' have a definition"),
            ),
            waits(
                &restarting,
                because("VMFailed", "the host is busy"),
                deleting("the host is busy"),
            ),
            waits(&moving, because("VMFailed", "the host is busy"), None),
            waits(
                &leaving,
                because("VMFailed", "the host is busy"),
                deleting("the host is busy"),
            ),
            waits(&resetting, because("VMFailed", "the host is busy"), None),
        ],
    );
}

#[test]
fn an_unreadable_part_costs_no_guest_and_no_volume() {
    laws::an_unreadable_part_costs_no_guest_and_no_volume(&[&rich]);
}

#[test]
fn no_step_takes_effect_without_the_lease() {
    laws::no_step_takes_effect_without_the_lease(&[
        &rich,
        &movable,
        &released::releasing,
        &ignoring_stop,
        &changed,
        &with_lost_host,
    ]);
}

#[test]
fn no_volume_in_use_is_deleted() {
    laws::no_volume_in_use_is_deleted(rich);
}

#[test]
fn no_effect_without_each_precondition() {
    laws::no_effect_without_each_precondition(&[&rich, &movable, &released::releasing]);
}

#[test]
fn a_machine_whose_growth_is_held_is_switched_and_does_not_grow() {
    laws::a_machine_whose_growth_is_held_is_switched_and_does_not_grow(rich());
}
