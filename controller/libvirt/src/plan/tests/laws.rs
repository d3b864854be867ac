//! The laws that every backend obeys, over a host in memory.

use std::collections::BTreeSet;

use common::api::status::MachineStatus;
use controller_core::backend::Growth;
use controller_core::conditions::Fault;
use controller_core::laws::{self, Refused};
use controller_core::machine::Machine;
use controller_core::plan::{Now, Step};

use super::*;
use crate::Libvirt;
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
        self.machine_mut().status = status;
    }

    fn delete_machine(&mut self) {
        self.delete();
    }

    fn observe(&self) -> Observation {
        Environment::observe(self).unwrap()
    }

    fn step(&mut self, step: &Step<'_, Action>) -> Result<(), Refused> {
        Environment::step(self, step).map_err(|_| Refused)
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

    fn changes(&self) -> usize {
        self.host.calls().len()
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
}

#[test]
fn a_plan_is_empty_once_it_was_carried_out() {
    laws::a_plan_is_empty_once_it_was_carried_out(rich());
}

#[test]
fn a_deletion_ends_from_any_point() {
    laws::a_deletion_ends(rich);
}

#[test]
fn a_stable_machine_reports_why_it_is_not_ready() {
    laws::a_stable_machine_reports_why_it_is_not_ready(rich);
}

#[test]
fn no_step_takes_effect_without_the_lease() {
    laws::no_step_takes_effect_without_the_lease(rich);
}

#[test]
fn no_volume_in_use_is_deleted() {
    laws::no_volume_in_use_is_deleted(rich);
}

#[test]
fn a_machine_whose_growth_is_held_is_switched_and_does_not_grow() {
    laws::a_machine_whose_growth_is_held_is_switched_and_does_not_grow(rich());
}
