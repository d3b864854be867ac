//! Disks that KubeVirt plugs into the running guest and out of it.
//!
//! KubeVirt attaches such a disk a moment after the guest has started, also at later starts. So only a disk that is added to
//! a running Machine becomes one: the disks that a guest starts with are there from its first moment, and the Machines of
//! earlier releases stay as they are. It has no position in the boot order, because the number of another device would
//! change with it, which KubeVirt takes over at a restart only.
//!
//! Media are handled differently: KubeVirt puts those that a guest starts with into their drives before it starts the guest, and a drive
//! stays where it is, with its position in the boot order, while its medium changes. So every drive that a guest starts with
//! is one whose media change while it runs. KubeVirt adds no drive to a running guest, and would refuse every change of its
//! volumes while a medium waits for such a drive: one that is added to a running machine becomes one when the Machine is
//! changed while it is off, and so do the drives of earlier releases.

use std::collections::BTreeSet;

use crate::api::choice::{Backend, DiskBus};
use crate::api::normalized::Normalized;
use crate::normalize::{Merged, hotpluggable_in};
use crate::rules::machine::keeps_running;

/// Names of disks that KubeVirt may hot-plug, and of drives whose medium it may change live: those of the stored or
/// restored block, disks added to a running machine that is to keep running, and all drives of a new or stopped one.
pub(crate) fn hotpluggable(
    merged: &Merged<'_>,
    stored: Option<&Normalized>,
    restored: Option<&Normalized>,
) -> BTreeSet<String> {
    let mut names = hotpluggable_in(stored.or(restored));
    let runs = stored.filter(|stored| keeps_running(stored, merged));
    if runs.is_none() && (stored.is_some() || restored.is_none()) {
        let drives = merged.cdroms.iter().filter_map(|item| item.name().value);
        names.extend(drives.map(str::to_owned));
    }
    if let Some(stored) = runs {
        let known: BTreeSet<_> = stored.all_disks().iter().map(|disk| disk.name()).collect();
        let disks = merged.disks.iter().filter_map(|item| item.name().value);
        let added = disks.filter(|name| !known.contains(name));
        names.extend(added.map(str::to_owned));
    }
    names
}

/// Whether KubeVirt plugs a disk of these names in and out. The guest boots from the first disk, and only two buses take
/// disks while it runs.
pub(super) fn applies(
    merged: &Merged<'_>,
    name: &str,
    bus: DiskBus,
    backend: Backend,
    names: &BTreeSet<String>,
) -> bool {
    let first = merged.disks.first().and_then(|item| item.name().value);
    backend == Backend::Kubevirt
        && matches!(bus, DiskBus::Virtio | DiskBus::Scsi)
        && first != Some(name)
        && names.contains(name)
}
