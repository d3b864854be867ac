//! Cores and memory that grow while the guest runs: what `maxCores` excludes, and what keeps KubeVirt from giving them.
//!
//! KubeVirt gives a running guest more vCPUs and memory by a live migration. libvirt needs none.

use crate::api::choice::{AccessMode, Backend};
use crate::api::normalized::Normalized;
use crate::catalog::KubevirtRow;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::Merged;
use crate::violation::{Findings, Kind, Violation};

use super::disks::{self, existing};
use super::rule::{Check, Lookup, Parts, Subject, Update, rules};
use super::sizing::{cpu_leaf, cpu_leaves, max_cores, max_sockets};
use super::{guest_os, hardware};

rules! {
    "sizing" Check::Part(beside), on MACHINES_AND_TEMPLATES, Always {
        Refuse MaxCoresWithMaxSockets = "Both `maxCores` and `maxSockets` are given."
            because "Both say how far the vCPUs grow: by sockets of one core, or by sockets of several."
            fix "Leave one of them out."
            crd Some,
        Refuse MaxCoresWithSockets = "`maxCores` is given for a machine with more than one of `sockets`."
            because "Each core is a socket then, so that it can be added to the running guest."
            fix "Leave `sockets` out, or give `maxSockets` in place of `maxCores`."
            crd Some,
        Refuse MaxCoresWithDedicated = "`maxCores` is given for a machine with dedicated CPUs."
            because "These are taken from the node or host when the guest starts."
            fix "Leave `maxCores` or `dedicated` out."
            crd Some,
    }
    "machine" Check::Creation(many_sockets), on MACHINES, Create {
        Warn ManyWindowsSockets = "A Windows guest has more than two sockets, or can get them, because its cores are sockets."
            because "Windows 10 and 11 use two sockets; the other vCPUs would be idle. Windows Server uses all."
            fix "Write `sockets: 1` or `sockets: 2` for those, and the cores of each, without `maxCores`."
            crd Nothing,
    }
    "machine" Check::Effect(more_sockets), on MACHINES, Update, and [ManyWindowsSockets] {}
    "machine" Check::Creation(not_live), on MACHINES, Create {
        Warn GrowthNotLive = "KubeVirt will not give the running guest the cores up to `maxCores`."
            because "It gives them by a live migration, which this guest or this cluster does not allow."
            fix "Remove the obstacle that the message names, or restart the machine after its cores were raised."
            crd Nothing,
    }
    "machine" Check::Effect(no_longer_live), on MACHINES, Update, and [GrowthNotLive] {}
}

/// Rules [`Code::MaxCoresWithMaxSockets`], [`Code::MaxCoresWithSockets`] and [`Code::MaxCoresWithDedicated`].
fn beside(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    let max_at = max_cores(merged);
    if max_at.value.is_none() {
        return;
    }
    let most = max_sockets(merged);
    if most.value.is_some() {
        let why = "both say how far the vCPUs grow";
        let code = Code::MaxCoresWithMaxSockets;
        findings.deny(exclusive(max_at.path, (most.path, "maxSockets"), code, why));
    }
    let sockets = cpu_leaf(merged, "resources.cpu.sockets", |cpu| cpu.sockets);
    if sockets.value > Some(1) {
        let why = "each core is a socket, so that it can be added to the running guest";
        let code = Code::MaxCoresWithSockets;
        findings.deny(exclusive(max_at.path, (sockets.path, "sockets"), code, why));
    }
    let dedicated = hardware::dedicated(merged);
    if dedicated.value == Some(true) {
        let why = "dedicated CPUs are taken when the guest starts";
        let code = Code::MaxCoresWithDedicated;
        let other = (dedicated.path, "dedicated");
        findings.deny(exclusive(max_at.path, other, code, why));
    }
}

/// `maxCores` and another field, of which one is left out where the user can edit.
fn exclusive(
    max_at: FieldPath,
    (other_at, other): (FieldPath, &str),
    code: Code,
    why: &str,
) -> Violation {
    let path = max_at.or_user_path(other_at);
    let (kept_at, kept) = if path == max_at {
        (other_at, other)
    } else {
        (max_at, "maxCores")
    };
    let detail = if kept_at.is_from_user() {
        format!("cannot be given beside {kept}, because {why}; leave one of them out")
    } else {
        format!(
            "cannot be given beside {kept} of the template, because {why}; leave it out, or take another template"
        )
    };
    Violation::new(path, code, Kind::Forbidden, detail)
}

/// Rule [`Code::ManyWindowsSockets`] of a new Machine.
fn many_sockets(lookup: &Lookup<'_>, findings: &mut Findings) {
    windows_sockets(lookup.merged, findings);
}

/// Rule [`Code::ManyWindowsSockets`] of a Machine that can get more sockets than before.
fn more_sockets(update: &Update<'_>, new: &Normalized, findings: &mut Findings) {
    if new.cpu.max_sockets > update.old.cpu.max_sockets {
        windows_sockets(update.merged, findings);
    }
}

/// Sockets that Windows 10 and 11 use.
const CLIENT_SOCKETS: i64 = 2;

fn windows_sockets(merged: &Merged<'_>, findings: &mut Findings) {
    if !guest_os::is_windows(merged) {
        return;
    }
    let [cores, _, sockets, most] = cpu_leaves(merged);
    let count = sockets.value.unwrap_or(1);
    let (shown, text) = match max_cores(merged).value {
        Some(max) => {
            let text = format!(
                "{}: up to {max} cores are as many sockets of a Windows guest, and Windows 10 and 11 use two; for those leave it out and set sockets to 1",
                most.path
            );
            (max, text)
        }
        None if cores.value.is_none() => {
            let text = format!(
                "{}: {count} cores are {count} sockets of a Windows guest, and Windows 10 and 11 use two; set sockets to 1 for those",
                sockets.path
            );
            (count, text)
        }
        None => return,
    };
    if shown > CLIENT_SOCKETS {
        findings.warn(Code::ManyWindowsSockets, &text);
    }
}

/// Rule [`Code::GrowthNotLive`] of a new Machine.
fn not_live(lookup: &Lookup<'_>, findings: &mut Findings) {
    let kubevirt = lookup.catalog.kubevirt();
    let on_kubevirt = lookup.backend == Backend::Kubevirt;
    let obstacle = on_kubevirt
        .then(|| Obstacle::find(kubevirt.as_deref(), not_migratable(lookup.merged)))
        .flatten();
    warn_of(obstacle.as_ref(), lookup.merged, findings);
}

/// Rule [`Code::GrowthNotLive`] of a Machine whose cores can become more than before.
fn no_longer_live(update: &Update<'_>, new: &Normalized, findings: &mut Findings) {
    if new.cpu.max_sockets > update.old.cpu.max_sockets {
        warn_of(Obstacle::of(update).as_ref(), update.merged, findings);
    }
}

fn warn_of(obstacle: Option<&Obstacle>, merged: &Merged<'_>, findings: &mut Findings) {
    let [_, _, cores, most] = cpu_leaves(merged);
    let grows = max_cores(merged).value > Some(cores.value.unwrap_or(1));
    if let Some(obstacle) = obstacle.filter(|_| grows) {
        let segment = most.path.in_template();
        let segment = segment.map_or_else(String::new, |segment| format!("{segment}: "));
        let text = format!(
            "{}: {segment}more cores reach the running guest {}",
            most.path,
            obstacle.when()
        );
        findings.warn(Code::GrowthNotLive, &text);
    }
}

/// What keeps KubeVirt from giving a running guest more vCPUs or memory by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// KubeVirt applies no change to a running guest.
    Staged,
    /// The guest cannot be migrated, for this reason.
    Guest(String),
    /// KubeVirt migrates guests on request only.
    OnRequest,
}

impl Obstacle {
    /// The first obstacle that is known. `guest`: why the guest cannot be migrated, if it cannot.
    fn find(kubevirt: Option<&KubevirtRow>, guest: Option<String>) -> Option<Self> {
        if kubevirt.is_some_and(|kubevirt| kubevirt.stages) {
            Some(Self::Staged)
        } else if let Some(why) = guest {
            Some(Self::Guest(why))
        } else {
            let on_request = kubevirt.is_some_and(|kubevirt| !kubevirt.migrates);
            on_request.then_some(Self::OnRequest)
        }
    }

    /// The obstacle for the guest of a stored Machine. What the controller has reported of the guest takes
    /// precedence over what its specification implies.
    pub(super) fn of(update: &Update<'_>) -> Option<Self> {
        if update.backend != Backend::Kubevirt {
            return None;
        }
        let guest = match update.guest.migration {
            Some(Ok(())) => None,
            Some(Err(why)) => Some(why.to_owned()),
            None => not_migratable(update.merged),
        };
        Self::find(update.kubevirt, guest)
    }

    /// When the guest has more vCPUs or memory, and why not at once.
    pub(super) fn when(&self) -> String {
        match self {
            Self::Staged => {
                "at the next restart, because vmRolloutStrategy of KubeVirt is Stage".to_owned()
            }
            Self::Guest(why) => format!("at the next restart, because {why}"),
            Self::OnRequest => {
                "at the next live migration or restart, because workloadUpdateMethods of KubeVirt do not contain LiveMigrate".to_owned()
            }
        }
    }
}

/// Whether KubeVirt, of which no [`Obstacle`] is known, is known to give the running guest the vCPUs of `new` at once: the
/// guest can be migrated, and nothing else changes, because KubeVirt then applies none of the changes before a restart.
pub(super) fn is_certain(update: &Update<'_>, new: &Normalized) -> bool {
    let mut grown = update.old.clone();
    grown.cpu.sockets = new.cpu.sockets;
    grown.intent_hash.clone_from(&new.intent_hash);
    let is_ready = update.guest.migration == Some(Ok(())) && !update.guest.waits_for_restart;
    update.kubevirt.is_some() && is_ready && grown == *new
}

/// Why KubeVirt cannot migrate a guest of this specification: it has a device of a node
/// (`calculateLiveMigrationCondition` of virt-handler), or one of its disks is made for one node. Existing claims are not
/// looked at.
fn not_migratable(merged: &Merged<'_>) -> Option<String> {
    let why = node_device(merged).or_else(|| unshared_disk(merged))?;
    Some(format!("{why}, so KubeVirt cannot migrate the guest"))
}

fn node_device(merged: &Merged<'_>) -> Option<String> {
    let mut devices = hardware::devices(merged).value.unwrap_or_default().iter();
    let name = devices.find_map(|device| device.name.as_deref())?;
    Some(format!("device '{name}' belongs to the node"))
}

fn unshared_disk(merged: &Merged<'_>) -> Option<String> {
    let mut unshared = merged.disks.iter().filter(|item| {
        let is_own = existing::source(item, Backend::Kubevirt).value.is_none();
        let mode = disks::access_mode(item, &mut Findings::default());
        is_own && mode.is_some_and(|mode| mode != AccessMode::ReadWriteMany)
    });
    let name = unshared.next()?.name().value?;
    Some(format!("disk '{name}' is not ReadWriteMany"))
}
