//! The status: phase and conditions from the desired state and what was observed.

use common::api::choice::{Backend, Choice as _, PendingAction, Phase, PowerState};
use common::api::normalized::Normalized;
use common::api::status::{
    GuestOs, InterfaceStatus, LastMigration, LastReset, LastRestart, MachineStatus, PendingChange,
    VolumeStatus,
};
use common::render::libvirt::{Difference, Domain};
use common::rules::update::pending_action;

use super::action::Action;
use super::display::{DisplayPlan, DisplayReport};
use super::power::Restarting;
use crate::access::State;
use crate::names::domain_of;
use crate::observed::{Binding, Guest, HostView, Observed};
use crate::probing::Readiness;
use controller_core::addresses::ReportedAddresses;
use controller_core::conditions::{
    Conditions, Fault, Outcome, Verdict, agent_connected, network, normalized, paused,
    restart_required,
};
use controller_core::machine::Machine;
use controller_core::missing_guest::MissingGuest;
use controller_core::plan::Now;
use controller_core::ready::{ReadyInputs, last_known, readiness_probe_fails, restarting};
use controller_core::restart::waiting;

/// Findings of the plan.
#[derive(Debug, Default)]
pub(super) struct Findings<'a> {
    pub(super) block: Option<&'a Normalized>,
    /// Why there is no block to act on.
    pub(super) unfit: Option<Fault>,
    /// Why the state is unknown.
    pub(super) unknown: Option<Fault>,
    pub(super) network: Outcome,
    pub(super) storage: Outcome,
    pub(super) guest: Outcome,
    /// Why the Machine does not get the vCPUs or the memory that it asks for.
    pub(super) no_room: Option<Fault>,
    /// Progress of an image that is not complete yet.
    pub(super) import: Option<Fault>,
    /// That disks have no volume yet, because the domain cannot be defined for another reason.
    pub(super) withheld: Option<Fault>,
    /// The volumes of the disks; `None`: they were not planned, and the status keeps what it has.
    pub(super) volumes: Option<Vec<VolumeStatus>>,
    /// The volumes that are kept of disks which left the spec.
    pub(super) kept_volumes: Vec<VolumeStatus>,
    /// Disks that are smaller than they are to be.
    pub(super) growing: Vec<String>,
    /// Parts of the definition that the running guest does not have.
    pub(super) changes: Vec<Difference>,
    /// Those that its next start brings, if these are others: while the growth is held, the definition stays as it is.
    pub(super) at_start: Option<Vec<Difference>>,
    pub(super) display: DisplayReport,
    /// The last restart for the status; `None`: power was not planned.
    pub(super) restart: Option<LastRestart>,
    pub(super) restarting: Restarting,
    /// The last requested reset for the status; `None`: as it is there.
    pub(super) reset: Option<LastReset>,
    /// The last move for the status; `None`: as it is there.
    pub(super) migration: Option<LastMigration>,
    /// Whether the guest shut itself down, or another client has switched it off, and it is not started again.
    pub(super) stays_off: bool,
    /// That another client has switched the guest off.
    pub(super) foreign_stop: Option<Fault>,
    pub(super) maintenance: bool,
    /// Whether planned actions or a requested restart are not carried out, because the Machine is paused, its host is in
    /// maintenance, or another host shows its domain.
    pub(super) leaves_changes: bool,
}

impl Findings<'_> {
    /// Adds what was found about the screen; returns what to do about it.
    pub(super) fn add_display(&mut self, plan: DisplayPlan) -> Option<Action> {
        let DisplayPlan {
            action,
            change,
            report,
        } = plan;
        let stops = |block: &Normalized| block.power_state == PowerState::Stopped;
        self.changes
            .extend(change.filter(|_| !self.block.is_some_and(stops)));
        self.display = report;
        action
    }
}

impl Findings<'_> {
    /// What is reported while there is no domain. `is_bound`: the Machine has a host, which answers.
    fn missing_guest(&self, is_bound: bool) -> MissingGuest<'_> {
        let storage = self.storage.fault.as_ref();
        let network = self.network.fault.as_ref();
        let is_left_alone = !is_bound || self.maintenance || self.leaves_changes;
        MissingGuest {
            object: "domain",
            planned: "the domain is being defined",
            blocker: storage.or(network).or(self.import.as_ref()),
            is_planned: true,
            is_left_alone,
            fails: self.fails(),
        }
    }

    fn fails(&self) -> bool {
        let mut all = [&self.network, &self.storage, &self.guest].into_iter();
        all.any(|outcome| outcome.fault.is_some())
    }
}

/// The status that reports these findings.
pub(super) fn report(
    machine: &Machine,
    observed: &Observed,
    now: Now,
    findings: &Findings<'_>,
) -> MachineStatus {
    let old = &machine.status;
    let mut conditions = Conditions::new(machine, now);
    if let Some(fault) = &findings.unfit {
        conditions.set("Normalized", "False", fault);
    } else {
        let (template, images) = (observed.template.as_deref(), &observed.outdated_images);
        let verdict = normalized(findings.block, template, images);
        conditions.set("Normalized", "True", &verdict);
    }
    if let Some(unknown) = &findings.unknown {
        return last_known(machine, conditions, unknown);
    }
    conditions.set_paused();
    let view = match &observed.binding {
        Binding::Bound(view) => Some(&**view),
        Binding::Unbound(_) | Binding::Unregistered { .. } | Binding::Unreachable { .. } => None,
    };
    let guest = view
        .and_then(|view| view.guest.as_ref())
        .filter(|guest| guest.belongs_to(machine));
    let missing = findings.missing_guest(view.is_some());
    let phase = phase(findings, guest, || missing.phase(machine));
    let machine_ready = virtual_machine(findings, guest, || missing.verdict(machine));
    if findings.block.is_some() && view.is_some() {
        let storage = storage(findings);
        conditions.set("StorageReady", storage.0, &storage.1);
        let network = network(&findings.network);
        conditions.set("NetworkReady", network.0, &network.1);
    }
    if findings.block.is_some() {
        conditions.set("VirtualMachineReady", machine_ready.0, &machine_ready.1);
    }
    if let Some(fault) = &findings.no_room {
        conditions.set("Scheduled", "False", fault);
    }
    let pending_changes = pending(&findings.changes);
    let restart_waits = (findings.restarting == Restarting::Waits).then(|| restart_waits(findings));
    let required = findings
        .block
        .filter(|block| block.power_state == PowerState::Running);
    let at_start = findings.at_start.as_ref().unwrap_or(&findings.changes);
    let required = required.and_then(|_| waits_for_restart(machine, &pending(at_start)));
    if let Some(fault) = restart_waits.or(required) {
        conditions.set("RestartRequired", "True", &fault);
    }
    if guest.is_some_and(|guest| guest.has_agent) {
        conditions.set("AgentConnected", "True", &agent_connected());
    }
    let display = findings.display.ready.as_ref();
    conditions.set_if("DisplayReady", display);
    let readiness = view.and_then(|view| view.readiness.as_ref());
    let ready = ready(machine, findings, guest, phase, &machine_ready, readiness);
    conditions.set("Ready", ready.0, &ready.1);
    let running = guest.and_then(|guest| guest.running.as_ref());
    let (network_interfaces, ip_addresses) = view
        .zip(running)
        .map(|(view, running)| interfaces(view, running))
        .unwrap_or_default();
    let migration = findings.migration.clone();
    let migration = migration.or_else(|| old.last_migration.clone());
    // While the Machine is moved, the host that still has its definition is not the one of the status.
    let moves_to = migration
        .as_ref()
        .filter(|migration| migration.from.is_some() && migration.result.is_none())
        .and_then(|migration| migration.node.clone());
    let name = || domain_of(machine);
    MachineStatus {
        phase: Some(phase),
        conditions: conditions.list,
        observed_generation: machine.generation(),
        vm_name: guest.map(|_| name()),
        node_name: running.and(view).map(|view| view.host.clone()),
        host: moves_to
            .clone()
            .or_else(|| view.map(|view| view.host.clone()))
            .or_else(|| old.host.clone()),
        guest_os: running.and(view).and_then(guest_os),
        ip_addresses,
        network_interfaces,
        // Which disks the Machine had is known from there until it has its definition on the other host.
        volumes: match (moves_to, &findings.volumes) {
            (None, Some(planned)) => planned.clone(),
            (Some(_), _) | (None, None) => old.volumes.clone(),
        },
        kept_volumes: match findings.block {
            Some(_) => findings.kept_volumes.clone(),
            None => old.kept_volumes.clone(),
        },
        pending_changes,
        display: findings.display.status.clone(),
        last_restart: findings.restart.clone(),
        last_migration: migration,
        last_reset: findings.reset.clone(),
        ..MachineStatus::default()
    }
}

/// The changes that the guest has after its next restart, as a condition.
fn waits_for_restart(machine: &Machine, changes: &[PendingChange]) -> Option<Fault> {
    let waits = changes
        .iter()
        .filter(|change| change.action == PendingAction::Restart.as_str());
    let fields: Vec<_> = waits.map(|change| change.field.as_str()).collect();
    restart_required(machine, &fields, "")
}

/// Why the guest is not shut down for a requested restart.
fn restart_waits(findings: &Findings<'_>) -> Fault {
    waiting(&[
        findings.storage.fault.as_ref(),
        findings.network.fault.as_ref(),
        findings.import.as_ref(),
        findings.guest.fault.as_ref(),
        findings.no_room.as_ref(),
    ])
}

/// The operating system of a running guest, if its agent reports it.
fn guest_os(view: &HostView) -> Option<GuestOs> {
    let os = &view.guest_os;
    (*os != GuestOs::default()).then(|| os.clone())
}

/// `missing`: the phase of a Machine with a block and without a domain.
fn phase(findings: &Findings<'_>, guest: Option<&Guest>, missing: impl Fn() -> Phase) -> Phase {
    let Some(guest) = guest else {
        return findings.block.map_or(Phase::Pending, |_| missing());
    };
    let on = findings
        .block
        .is_some_and(|block| block.power_state == PowerState::Running);
    match guest.state {
        State::Crashed => Phase::Failed,
        State::ShutOff if !on || findings.stays_off => Phase::Stopped,
        State::ShutOff if findings.fails() => Phase::Failed,
        State::ShutOff => Phase::Creating,
        _ => Phase::Running,
    }
}

fn storage(findings: &Findings<'_>) -> Verdict {
    let storage = findings.storage.fault.as_ref();
    let why = storage.or(findings.import.as_ref());
    if let Some(fault) = why.or(findings.withheld.as_ref()) {
        return ("False", fault.clone());
    }
    if findings.growing.is_empty() {
        return (
            "True",
            Fault::new("VolumesReady", "every disk has its volume"),
        );
    }
    (
        "True",
        Fault::new("VolumesResizing", findings.growing.join("; ")),
    )
}

/// `missing`: the verdict of a Machine without a domain.
fn virtual_machine(
    findings: &Findings<'_>,
    guest: Option<&Guest>,
    missing: impl Fn() -> Verdict,
) -> Verdict {
    if let Some(fault) = &findings.guest.fault {
        return ("False", fault.clone());
    }
    let Some(guest) = guest else {
        return missing();
    };
    match guest.state {
        State::Crashed => (
            "False",
            Fault::new(
                "VMFailed",
                "the guest crashed: its console and the log of QEMU on the host have the cause; restart it with the annotation machine.vitistack.io/restart-requested",
            ),
        ),
        _ => ("True", Fault::new("VMCreated", "the domain is there")),
    }
}

fn ready(
    machine: &Machine,
    findings: &Findings<'_>,
    guest: Option<&Guest>,
    phase: Phase,
    machine_ready: &Verdict,
    readiness: Option<&Readiness>,
) -> Verdict {
    let is_to_run = findings
        .block
        .is_some_and(|block| block.power_state == PowerState::Running);
    let state = guest.map(|guest| guest.state);
    let differs = match state {
        None => true,
        Some(State::ShutOff | State::Crashed) => is_to_run && !findings.stays_off,
        Some(_) => !is_to_run,
    };
    let left_alone = if machine.is_paused() {
        differs.then(paused)
    } else {
        let is_left = differs || findings.leaves_changes;
        (findings.maintenance && is_left).then(in_maintenance)
    };
    let unready = readiness.filter(|shown| !shown.is_ready);
    // A domain that is not made, because nothing is done, says less than why nothing is done.
    let is_only_left = guest.is_none() && findings.guest.fault.is_none() && left_alone.is_some();
    let ready = ReadyInputs {
        unfit: findings.unfit.as_ref(),
        // During maintenance nothing is done about it.
        foreign_stop: findings
            .foreign_stop
            .as_ref()
            .filter(|_| !findings.maintenance),
        storage: findings.storage.fault.as_ref(),
        network: findings.network.fault.as_ref(),
        import: findings.import.as_ref().filter(|_| guest.is_none()),
        guest: (machine_ready.0 == "False" && !is_only_left).then_some(&machine_ready.1),
        restart: (findings.restarting == Restarting::UnderWay && is_to_run)
            .then(|| restarting(None)),
        guest_paused: (phase == Phase::Running && state == Some(State::Paused)).then(|| {
            let message = "the guest is paused on its host: resume it there (virsh resume)";
            Fault::new("GuestPaused", message)
        }),
        left_alone,
        is_to_run,
        probe: unready.map(|shown| readiness_probe_fails(&shown.why)),
        ..ReadyInputs::default()
    };
    ready.verdict(machine, phase)
}

fn in_maintenance() -> Fault {
    let message = "the host is in maintenance, so nothing is done: set spec.maintenance of the LibvirtHost to false";
    Fault::new("HostMaintenance", message)
}

/// The cards, in the order of the spec, and the addresses of all of them.
fn interfaces(view: &HostView, running: &Domain) -> (Vec<InterfaceStatus>, Vec<String>) {
    let nics = running.nics.iter();
    let reported = nics.map(|nic| view.addresses.of_card(nic.mac).collect());
    let reported = ReportedAddresses::of(reported);
    let cards = running.nics.iter().zip(reported.cards);
    let cards = cards.map(|(nic, ip_addresses)| InterfaceStatus {
        name: nic.name().to_owned(),
        allocated_addresses: vec![],
        ip_addresses,
        mac_address: Some(nic.mac.to_string()),
    });
    (cards.collect(), reported.guest)
}

/// The changes that wait, with the action that the table of update effects has for each: what admission announced.
fn pending(changes: &[Difference]) -> Vec<PendingChange> {
    let pending = |change: &Difference| PendingChange {
        field: change.field.clone(),
        current: change.current.clone(),
        desired: change.desired.clone(),
        action: pending_action(Backend::Libvirt, &change.field, change.live.is_some())
            .as_str()
            .to_owned(),
    };
    changes.iter().map(pending).collect()
}
