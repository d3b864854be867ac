//! A Machine whose guest may run on another host, too: another host shows its domain, or another client has migrated the
//! guest away. Two guests on the same disks destroy them, so nothing is defined, started, moved or deleted. A guest that
//! runs is left alone, and is still stopped if that is desired.

use common::api::choice::PowerState;
use common::api::normalized::Normalized;
use common::render::libvirt::DomainMetadata;
use controller_core::backend::Act as _;
use controller_core::conditions::Fault;
use controller_core::machine::Machine;

use super::action::Action;
use super::power::POWER_RETRY;
use super::steps::Steps;
use crate::names::domain_of;
use crate::observed::{Guest, HostView, Observed};

/// Two LibvirtHosts for one daemon show each of its domains twice, and a command on either of them would end the only guest.
const ONE_DAEMON: &str =
    "if both lead to the same libvirtd, delete one of the two LibvirtHosts; else ";

/// Reason of the conditions of such a Machine.
const ON_ANOTHER_HOST: &str = "DomainOnAnotherHost";

/// Why the guest may run on another host, and what to do; `None`: it cannot, as far as the hosts show.
pub(super) fn conflict(machine: &Machine, observed: &Observed, view: &HostView) -> Option<Fault> {
    let name = domain_of(machine);
    let guest = view
        .guest
        .as_ref()
        .filter(|guest| guest.belongs_to(machine));
    let message = if !observed.other_domains.is_empty() {
        several(&name, observed, view, guest)
    } else if guest.is_some_and(Guest::was_migrated_away) {
        migrated_away(&name, &view.host)
    } else {
        return None;
    };
    Some(Fault::new(ON_ANOTHER_HOST, message))
}

/// More than one host shows the domain.
fn several(name: &str, observed: &Observed, view: &HostView, guest: Option<&Guest>) -> String {
    let others = || observed.other_domains.iter();
    let is_active = guest.is_some_and(|guest| guest.state.active());
    let here = [(&view.host, is_active)].into_iter();
    let all = here.chain(others().map(|it| (&it.host, it.is_active)));
    let (on, off): (Vec<_>, Vec<_>) = all.partition(|(_, is_active)| *is_active);
    let names = |of: &[(&String, bool)]| {
        let names: Vec<_> = of.iter().map(|(host, _)| format!("'{host}'")).collect();
        names.join(" and ")
    };
    let undefine = format!(
        "`virsh undefine --keep-nvram --keep-tpm {name}`, without --remove-all-storage: the hosts may share the disks"
    );
    let mut message = match &on[..] {
        [] => format!(
            "LibvirtHosts {} have a definition of the domain each, and it is off: {ONE_DAEMON}find out which host it was on last, and remove the definition on the other ({undefine})",
            names(&off)
        ),
        [_] => format!(
            "the guest is on LibvirtHost {}, and {} still has a definition of its domain, which is off there: remove that one ({undefine})",
            names(&on),
            names(&off)
        ),
        _ => format!(
            "the guest runs on LibvirtHosts {} at the same time: {ONE_DAEMON}unless a live migration is under way, end it on one of them at once (`virsh destroy {name}`), and remove the definition there ({undefine})",
            names(&on)
        ),
    };
    if let Some(silent) = others().find(|it| !it.answers) {
        message = format!(
            "{message}; LibvirtHost '{}' does not answer, and this is what it showed last: if it is gone for good, delete the LibvirtHost",
            silent.host
        );
    }
    message + "; until then nothing of the Machine is defined, started, moved or deleted"
}

/// Another client migrated the guest, and no host shows it.
fn migrated_away(name: &str, host: &str) -> String {
    format!(
        "another client has migrated the guest from LibvirtHost '{host}' to a host where it is not seen, so nothing of the Machine is started or deleted: if it runs nowhere any more, start it on '{host}' (`virsh start {name}`)"
    )
}

impl Steps {
    /// Removes all actions but those permitted on the host of such a Machine: a stop that is desired, and the record
    /// that the guest was migrated away, which libvirt itself has only until its daemon starts again.
    pub(super) fn keep_permitted(&mut self, block: &Normalized, guest: Option<&Guest>) {
        let stops = block.power_state == PowerState::Stopped;
        let actions = &mut self.actions;
        actions.retain(|action| stops && action.stops_or_resets() && *action != Action::Reset);
        let mut records = actions.iter();
        if !records.any(|action| matches!(action, Action::SetMetadata(_))) {
            actions.extend(guest.and_then(record_of_migration));
        }
        // Whatever changes on a host triggers a pass.
        self.requeue_after = self
            .requeue_after
            .filter(|_| !actions.is_empty())
            .map(|pause| pause.max(POWER_RETRY));
    }
}

/// Records that the guest was migrated away, unless that is recorded.
fn record_of_migration(guest: &Guest) -> Option<Action> {
    let metadata = guest.metadata.as_ref()?;
    let is_new = guest.was_migrated_away() && !metadata.migrated_away;
    is_new.then(|| {
        Action::SetMetadata(Box::new(DomainMetadata {
            migrated_away: true,
            ..metadata.clone()
        }))
    })
}
