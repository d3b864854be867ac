//! A Machine that lives: finalizer → network → storage → Secret → VirtualMachine → restart → growth
//! → status.

use common::names;

use super::network::networks;
use super::restart::restart;
use super::status::{Facts, report};
use super::storage::storage;
use super::vm::guest;
use super::{Action, Observed, Plan};
use crate::machine::{Block, Machine};
use crate::objects::Meta as _;
use crate::plan::{Now, Subject};
use crate::status::{Fault, not_normalized};

pub(super) fn plan(machine: &Machine, observed: &Observed, now: Now) -> Plan {
    let block = match &machine.block {
        Block::Belongs(block) => block,
        unfit => {
            let facts = Facts {
                unfit: Some(not_normalized(unfit)),
                ..Facts::default()
            };
            return report(machine, observed, now, &facts, vec![]);
        }
    };
    let networks = networks(machine, block, observed);
    let storage = storage(machine, block, observed);
    let restart = restart(machine, block, observed);
    let guest = guest(machine, block, observed, &networks, &storage, &restart);
    let mut facts = Facts {
        block: Some(block),
        network: networks.outcome,
        storage: storage.outcome,
        guest: guest.outcome,
        wish: guest.wish,
        import: storage.import,
        pending: storage.pending,
        sizes: storage.sizes,
        restart: restart.last,
        makes_vm: guest
            .actions
            .iter()
            .any(|action| matches!(action, Action::CreateVm(_))),
        ..Facts::default()
    };
    if let Some(refusal) = &observed.refusal {
        let (outcome, reason) = match refusal.subject {
            Subject::Network => (&mut facts.network, "NetworkFailed"),
            Subject::Storage => (&mut facts.storage, "PVCPending"),
            Subject::Machine | Subject::Guest => (&mut facts.guest, "KubeVirtApiError"),
        };
        outcome.worsen(Fault::new(reason, refusal.message.clone()));
    }

    if machine.is_paused() {
        facts.paused = true;
        facts.makes_vm = false;
        facts.restart = None;
        return report(machine, observed, now, &facts, vec![]);
    }
    let finalizer = (!machine.has_finalizer(names::FINALIZER)).then_some(Action::AddFinalizer);
    let actions = finalizer
        .into_iter()
        .chain(networks.actions)
        .chain(storage.actions)
        .chain(guest.actions)
        .chain(restart.action)
        .chain(storage.growth)
        .chain(storage.farewells)
        .collect();
    report(machine, observed, now, &facts, actions)
}
