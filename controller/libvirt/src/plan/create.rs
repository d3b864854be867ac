//! A Machine that is not under deletion: host → images → volumes → seed → definition or hot-plugged devices → DHCP entries →
//! power → deletion of kept volumes → growth → password of the screen → reset → status.

use std::mem::take;
use std::time::Duration;

use common::api::choice::PowerState;
use common::api::normalized::{Normalized, is_counted};
use common::api::status::MachineStatus;
use common::render::libvirt::{Difference, Domain, DomainMetadata, VolumeRecord, domain_uuid};
use controller_core::addresses::address_conflict;
use controller_core::conditions::{Fault, Outcome};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::{Now, Refusal, Subject};
use controller_core::refusal::{Part, Reasons};
use controller_core::reset::reset;
use controller_core::restart::may_stop_for_restart;

use super::action::{Action, Draft};
use super::definition::{Definition, definition};
use super::desired::networks;
use super::display::display;
use super::hardware::hardware;
use super::moving::{Move, moving};
use super::other_hosts::conflict;
use super::power::{self, Power, power};
use super::release::{kept_volumes, releases};
use super::room::room;
use super::status::{Findings, report};
use super::steps::{SOON, Scope, Steps, finish};
use super::volumes::Volumes;
use crate::failure::NO_ROOM;
use crate::observed::{Binding, Guest, HostView, Observed, Password};
use crate::placement::choose;

/// Reasons of what a host refuses.
pub(crate) const REASONS: Reasons = Reasons {
    network: "NetworkFailed",
    storage: "VolumeFailed",
    guest: "VMFailed",
    display: "DisplayFailed",
};

/// What to do about a Machine that is not under deletion.
pub(crate) fn plan(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    refusal: Option<&Refusal>,
    now: Now,
) -> Draft {
    let findings = Findings {
        block: Some(block),
        ..Findings::default()
    };
    let only = |findings: &Findings<'_>| only_report(machine, observed, now, findings);
    match &observed.binding {
        // The status of a Machine that is bound now is written by the binding.
        Binding::Unbound(_) if machine.is_paused() => only(&findings),
        Binding::Unbound(hosts) => {
            if let Some(hold) = &observed.hold {
                let findings = Findings {
                    guest: hold.clone().into(),
                    ..findings
                };
                return only(&findings);
            }
            match choose(machine.namespace(), block, &observed.networks, hosts) {
                Ok(host) => Draft {
                    actions: vec![Action::Bind {
                        host: host.to_owned(),
                    }],
                    requeue_after: Some(Duration::ZERO),
                    ..Draft::default()
                },
                Err(why) => {
                    let findings = Findings {
                        guest: Fault::new("NoHostFits", why).into(),
                        ..findings
                    };
                    only(&findings)
                }
            }
        }
        Binding::Unregistered { host } => {
            let findings = Findings {
                unknown: Some(Fault::new(
                    "HostUnreachable",
                    format!(
                        "LibvirtHost '{host}' was deleted, so the state of the guest is unknown: create it again"
                    ),
                )),
                ..findings
            };
            only(&findings)
        }
        Binding::Unreachable { host, why } => {
            let findings = Findings {
                unknown: Some(Fault::new(
                    "HostUnreachable",
                    format!(
                        "LibvirtHost '{host}' cannot be reached, so the state of the guest is unknown: {why}"
                    ),
                )),
                ..findings
            };
            only(&findings)
        }
        Binding::Bound(view) => match moving(machine, block, observed, view, refusal) {
            Move::Only(draft) => *draft,
            Move::None(last) => {
                let findings = Findings {
                    migration: last,
                    ..findings
                };
                on(machine, block, observed, view, findings, refusal, now)
            }
        },
    }
}

/// The status of a Machine without a block to act on.
pub(crate) fn report_unfit(
    machine: &Machine,
    observed: &Observed,
    unfit: Fault,
    now: Now,
) -> MachineStatus {
    let findings = Findings {
        unfit: Some(unfit),
        ..Findings::default()
    };
    report(machine, observed, now, &findings)
}

/// Nothing but the status.
fn only_report(machine: &Machine, observed: &Observed, now: Now, findings: &Findings<'_>) -> Draft {
    Draft {
        status: Some(report(machine, observed, now, findings)),
        ..Draft::default()
    }
}

fn on<'a>(
    machine: &Machine,
    block: &'a Normalized,
    observed: &Observed,
    view: &HostView,
    mut findings: Findings<'a>,
    refusal: Option<&Refusal>,
    now: Now,
) -> Draft {
    findings.maintenance = view.spec.maintenance == Some(true);
    let guest = view.guest.as_ref();
    findings.kept_volumes = kept_volumes(machine, block, view);
    let room = room(block, view, observed.hold.as_ref());
    let block = room.block.as_ref().unwrap_or(block);
    findings.no_room = room.fault;
    let hardware = hardware(block, view);
    findings.add_lack(hardware.as_ref().err(), guest);
    if guest.is_some_and(|guest| !guest.belongs_to(machine)) {
        findings.guest = name_conflict(machine, &view.host).into();
        return only_report(machine, observed, now, &findings);
    }
    let conflict = conflict(machine, observed, view);
    let scope = Scope::of(&findings, conflict.is_some());
    findings.guest.fault = conflict.or(findings.guest.fault);
    let (attached, network) = networks(block, observed, view);
    findings.network = with_addresses(network, machine, observed, guest.is_some());
    if let Some(fault) = findings.no_room.as_ref().filter(|_| guest.is_none()) {
        findings.guest = fault.clone().into();
        let releases = releases(machine, block, view, &observed.kept_of_former, false);
        let mut actions = releases.into_actions();
        actions.retain(|_| scope == Scope::All);
        return Draft {
            actions,
            ..only_report(machine, observed, now, &findings)
        };
    }
    let parts = (&attached, &hardware);
    let definition = definition(machine, block, observed, view, parts, now, &mut findings);
    let Definition {
        domain: desired,
        mut volumes,
        writes_seed,
        reservations,
    } = definition;
    let mut steps = Steps::default();
    steps.actions.extend(volumes.actions.iter().cloned());
    steps.actions.extend(volumes.answer_to_recreation(machine));
    steps.actions.extend(writes_seed);
    let is_refused = refusal.is_some_and(|refusal| refusal.subject == Subject::Guest);
    let running = guest.and_then(|guest| guest.running.as_ref());
    findings.changes = changes(block, desired.as_ref(), running);
    let present = guest.and_then(|guest| guest.defined.as_ref());
    let held = present.zip(running).filter(|_| observed.hold.is_some());
    findings.at_start = held.map(|(present, running)| present.differences_from(running));
    let screen = findings.add_display(display(machine, block, view, &observed.password));
    let defines = desired.is_some() && !is_refused && observed.hold.is_none();
    let releases = releases(machine, block, view, &observed.kept_of_former, defines);
    steps.actions.extend(releases.answer);
    if let Some(desired) = desired.as_ref().filter(|_| !is_refused) {
        steps.define_or_hot_plug(desired, guest, &findings.changes);
    }
    // The address is there before the guest asks for it.
    steps
        .actions
        .extend(reservations.filter(|_| guest.is_some()));
    let mut due_reset = None;
    if let Some(guest) = guest {
        let is_written = observed.hold.is_none() && scope == Scope::All;
        let written = desired.as_ref().filter(|_| is_written);
        let recorded = recorded(written, guest, view);
        let is_complete = desired
            .as_ref()
            .is_some_and(|desired| !steps.wait_for(refusal, guest, desired));
        let context = power::Context {
            on_foreign_stop: observed.on_foreign_stop,
            now,
            may_restart: may_stop_for_restart(machine, is_complete),
        };
        let power = power(machine, block, guest, &recorded, context);
        findings.add_power(&power, &view.host);
        let requested = reset(machine, power.plan(block, guest), refusal);
        findings.reset = requested.last;
        due_reset = requested.is_due.then_some(Action::Reset);
        steps.add_power(power, desired.is_some() && !is_refused);
    }
    // First what makes room for the growth.
    steps.add_deletions(releases.deletions);
    steps.answer_discarded_state(machine, guest.and_then(|guest| guest.defined.as_ref()));
    steps.add_growth(take(&mut volumes.growth));
    // The guest runs with or without it, so nothing else waits for it.
    steps.add_screen(screen.filter(|_| !is_refused));
    // The last one: the status that reports it is written right afterwards.
    steps.actions.extend(due_reset);
    if volumes.import.is_some() || is_partial(observed, view) {
        steps.requeue_after = steps.requeue_after.or(Some(SOON));
    }
    findings.add_volumes(volumes);
    if let Some(refusal) = refusal {
        add_refusal(&mut findings, refusal, guest.is_some());
    }
    finish(
        machine,
        (block, guest),
        observed,
        now,
        findings,
        (steps, scope),
    )
}

/// What a running guest does not have of the desired domain, which is `None` if a part of it is missing. What the guest has of
/// the quota counts until it is off, and while nothing can be defined.
fn changes(
    block: &Normalized,
    desired: Option<&Domain>,
    running: Option<&Domain>,
) -> Vec<Difference> {
    let Some(running) = running else {
        return vec![];
    };
    let Some(desired) = desired else {
        return other_sizes(block, running);
    };
    let mut changes = desired.differences_from(running);
    if block.power_state == PowerState::Stopped {
        changes.retain(|change| is_counted(&change.field));
        for change in &mut changes {
            change.live = None;
        }
    }
    changes
}

/// The sizes that a running guest has in place of those of the block.
fn other_sizes(block: &Normalized, running: &Domain) -> Vec<Difference> {
    let sizes = block.other_sizes(running.cpu, running.memory).into_iter();
    let differences = sizes.map(|(field, current, desired)| Difference {
        field: field.to_owned(),
        current,
        desired,
        live: None,
    });
    differences.collect()
}

impl Findings<'_> {
    /// Adds why the guest does not get hardware of the host. A guest that runs keeps what it has, and one that is off is not
    /// started.
    fn add_lack(&mut self, lack: Option<&Fault>, guest: Option<&Guest>) {
        let Some(fault) = lack else { return };
        self.no_room.get_or_insert_with(|| fault.clone());
        if guest.is_some_and(|guest| !guest.state.active()) {
            self.guest = fault.clone().into();
        }
    }

    fn add_volumes(&mut self, volumes: Volumes) {
        (self.storage, self.import) = (volumes.outcome, volumes.import);
        self.withheld = volumes.withheld;
        self.volumes = Some(volumes.reported);
        self.growing = volumes.growing;
    }

    fn add_power(&mut self, power: &Power, host: &str) {
        self.restart.clone_from(&power.last);
        self.stays_off = power.stays_off;
        self.restarting = power.restarting;
        self.foreign_stop.clone_from(&power.foreign_stop);
        if power.failed {
            self.guest.record_first(failed(host));
        }
    }
}

/// What is recorded with a step of power: what the desired domain has. While no definition is written, because the growth is
/// held or another host has one, what the guest has stays. A volume that this pass makes is recorded by the definition
/// alone: the step of power is carried out even if the volume could not be made, and a recorded volume counts as one that
/// was made.
fn recorded(desired: Option<&Domain>, guest: &Guest, view: &HostView) -> DomainMetadata {
    let old = guest.metadata.as_ref();
    let desired = desired.and_then(|desired| desired.metadata.as_ref());
    let mut recorded = desired.or(old).cloned().unwrap_or_default();
    recorded.migrated_away = guest.was_migrated_away();
    let known = old.map_or(&[][..], |old| &old.volumes);
    recorded.volumes.retain(|volume| {
        let key = (volume.pool.clone(), volume.volume.clone());
        let is_same = |old: &VolumeRecord| (&old.pool, &old.volume) == (&key.0, &key.1);
        known.iter().any(is_same) || view.volumes.contains_key(&key)
    });
    recorded
}

/// With the faults of the addresses of network cards.
fn with_addresses(
    mut network: Outcome,
    machine: &Machine,
    observed: &Observed,
    has_guest: bool,
) -> Outcome {
    let missing = machine.addresses.fault.as_ref();
    network.record_first(missing.map(|missing| missing.fault.clone()));
    network.record_first(address_conflict(machine, &observed.conflicts, has_guest));
    network
}

fn name_conflict(machine: &Machine, host: &str) -> Fault {
    let uuid = domain_uuid(machine.uid());
    let message = format!(
        "LibvirtHost '{host}' has a domain with the uuid {uuid}, which the Machine's domain is to have, and it is not this Machine's: undefine it there, or define it again with another uuid (virsh dominfo {uuid}); it is left untouched"
    );
    Fault::new("NameConflict", message)
}

/// Adds an action that was refused to the part that it was about. A Machine that has a domain keeps what it has if a pool
/// has no room.
fn add_refusal(findings: &mut Findings<'_>, refusal: &Refusal, has_domain: bool) {
    let Some((part, fault)) = REASONS.fault(refusal) else {
        return;
    };
    let outcome = match part {
        Part::Display => return findings.display.refused(&fault),
        Part::Network | Part::Storage | Part::Guest if has_domain && fault.reason() == NO_ROOM => {
            findings.no_room.get_or_insert(fault);
            return;
        }
        Part::Network => &mut findings.network,
        Part::Storage => &mut findings.storage,
        Part::Guest => &mut findings.guest,
    };
    outcome.record_first(fault);
}

/// Whether a part could not be read.
fn is_partial(observed: &Observed, view: &HostView) -> bool {
    !view.unreadable_pools.is_empty()
        || !view.network_faults.is_empty()
        || observed.contents.is_err()
        || matches!(observed.password, Password::Unreadable(_))
}

fn failed(host: &str) -> Fault {
    let message = format!(
        "QEMU of the guest crashed or did not start: its log on LibvirtHost '{host}' (/var/log/libvirt/qemu) has the cause; the guest is started again every half minute"
    );
    Fault::new("VMFailed", message)
}
