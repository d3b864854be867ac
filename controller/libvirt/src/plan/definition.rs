//! What the domain of a Machine is to be, and what has to be there before it is defined.

use std::collections::BTreeMap;

use common::api::normalized::Normalized;
use common::render::libvirt::{Domain, NicAttachment};
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::plan::Now;

use super::action::Action;
use super::desired::{Attachments, render};
use super::dhcp::reserve;
use super::hardware::Hardware;
use super::power::starts;
use super::seed::seed;
use super::status::Findings;
use super::volumes::{Volumes, volumes};
use crate::observed::{HostView, Observed};

/// The desired domain with its parts.
#[derive(Debug)]
pub(super) struct Definition {
    /// `None`: a part of it is missing, and the domain stays as it is.
    pub(super) domain: Option<Domain>,
    pub(super) volumes: Volumes,
    /// Each seed is a volume of its own: none is written before the domain can be defined with it.
    pub(super) writes_seed: Option<Action>,
    /// Makes the DHCP servers of the host's networks keep its addresses.
    pub(super) reservations: Option<Action>,
}

/// Plans the parts of the domain. `attached`: how each card is attached; `hardware`: that of the host, or why the Machine
/// does not get it.
pub(super) fn definition(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    view: &HostView,
    (attached, hardware): (&BTreeMap<String, NicAttachment>, &Result<Hardware, Fault>),
    now: Now,
    findings: &mut Findings<'_>,
) -> Definition {
    let mut volumes = volumes(machine, block, view, observed.hold.is_some(), now);
    let no_room = findings.no_room.take();
    findings.no_room = no_room.or_else(|| volumes.no_room.clone());
    let seed = seed(machine, block, view, observed, now);
    let lacks_other_parts = hardware.is_err()
        || findings.network.fault.is_some()
        || (seed.fault.is_some() && seed.desired.is_none());
    volumes.withhold(lacks_other_parts);
    let held = lacks_other_parts || volumes.outcome.fault.is_some() || volumes.import.is_some();
    // The faults found from here on are reported and block no action.
    findings.network.record_first(network_fault(view));
    findings.guest.record_first(seed.fault);
    let guest = view.guest.as_ref();
    let hardware = hardware.as_ref().ok().filter(|_| !held);
    let mut domain = hardware.map(|hardware| {
        let context = (observed.on_foreign_stop, now);
        let attachments = Attachments {
            volumes: &volumes,
            networks: attached,
            hardware,
            seed: seed.desired.as_ref(),
            starts: guest.is_some_and(|guest| starts(machine, block, guest, context)),
        };
        render(machine, block, observed, view, &attachments)
    });
    let reservations = domain.as_mut().and_then(|domain| {
        let (identity, held) = (machine.identity(&observed.cluster), &machine.addresses);
        reserve(&identity, held, domain, view, &mut findings.network)
    });
    Definition {
        domain,
        volumes,
        writes_seed: seed.action.filter(|_| !held),
        reservations,
    }
}

/// The networks of the running guest that cannot be read. Only its addresses need them: it can be stopped.
fn network_fault(view: &HostView) -> Option<Fault> {
    (!view.network_faults.is_empty()).then(|| {
        let faults = view.network_faults.join("; ");
        let message = format!("on LibvirtHost '{}' {faults}", view.host);
        Fault::new("NetworkFailed", message)
    })
}
