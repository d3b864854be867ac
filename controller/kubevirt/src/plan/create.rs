//! A Machine that lives: finalizer → network → storage → Secret → VirtualMachine → restart → growth
//! → status.

use super::network::networks;
use super::restart::restart;
use super::status::{Facts, report};
use super::storage::storage;
use super::vm::guest;
use super::{Action, Observed, Plan};
use controller_core::conditions::{Fault, not_normalized};
use controller_core::machine::{Block, Machine};
use controller_core::plan::{Now, Refusal, Subject};

pub(crate) fn plan(
    machine: &Machine,
    observed: &Observed,
    refusal: Option<&Refusal>,
    now: Now,
) -> Plan {
    let block = match &machine.block {
        Block::Matching(block) => block,
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
    let held_up = refusal.is_some();
    let guest = guest(
        machine, block, observed, held_up, &networks, &storage, &restart,
    );
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
    if let Some(refusal) = refusal {
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
    let actions = networks
        .actions
        .into_iter()
        .chain(storage.actions)
        .chain(guest.actions)
        .chain(restart.action)
        .chain(storage.growth)
        .chain(storage.farewells)
        .collect();
    report(machine, observed, now, &facts, actions)
}
