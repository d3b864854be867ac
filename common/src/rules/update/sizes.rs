//! Warnings of changes of vCPUs and memory, which are rules of
//! [`Code::RestartRequired`](crate::code::Code::RestartRequired).

use crate::api::choice::Backend;
use crate::api::normalized::Normalized;
use crate::normalize::Merged;
use crate::render::kubevirt::hotplug as kubevirt;
use crate::render::libvirt::hotplug as libvirt;
use crate::rules::sizing;

use super::announced::Warnings;
use super::effects::Field;

/// Warns of other vCPUs and memory.
pub(super) fn warn(
    merged: &Merged<'_>,
    old: &Normalized,
    new: &Normalized,
    warnings: &mut Warnings<'_>,
) {
    vcpus(merged, old, new, warnings);
    memory(merged, old, new, warnings);
}

fn vcpus(merged: &Merged<'_>, old: &Normalized, new: &Normalized, warnings: &mut Warnings<'_>) {
    let (was, is, runs) = (&old.cpu, &new.cpu, warnings.runs.cpu);
    let [cores, threads, sockets, most] = sizing::cpu_leaves(merged).map(|leaf| leaf.path);
    let grows = sizing::max_cores(merged).value.is_some();
    if grows && was.cores != is.cores {
        let what = format!(
            "makes each core a socket, so that {} become {}",
            sizing::layout(was),
            sizing::layout(is)
        );
        warnings.add(Field::MaxCores, most, false, &what);
        return;
    }
    warnings.field(Field::Cores, cores, (was.cores, is.cores), false);
    warnings.field(Field::Threads, threads, (was.threads, is.threads), false);
    let fits = match new.backend {
        Backend::Kubevirt => kubevirt::takes_sockets(runs, *is),
        Backend::Libvirt => libvirt::takes_vcpus(runs, *is, warnings.runs.features.acpi),
    };
    warnings.field(Field::Sockets, sockets, (was.sockets, is.sockets), fits);
    // Without `maxSockets` the bound equals the sockets, so its change is not reported separately.
    if was.max_sockets != was.sockets || is.max_sockets != is.sockets {
        let bounds = (was.max_sockets, is.max_sockets);
        let field = if grows {
            Field::MaxCores
        } else {
            Field::MaxSockets
        };
        warnings.field(field, most, bounds, false);
    }
}

fn memory(merged: &Merged<'_>, old: &Normalized, new: &Normalized, warnings: &mut Warnings<'_>) {
    let (was, is, runs) = (&old.memory, &new.memory, warnings.runs.memory);
    let [size, max_size] = sizing::memory_leaves(merged).map(|leaf| leaf.path);
    let fits = match new.backend {
        // What it was started with is not known here; it is not more.
        Backend::Kubevirt => kubevirt::takes_memory(runs.size, runs.max_size, is.size),
        Backend::Libvirt => libvirt::takes_memory(runs, *is),
    };
    warnings.field(Field::MemorySize, size, (was.size, is.size), fits);
    // Without `maxSize` the bound equals the size. On libvirt a smaller size is taken at once, the smaller bound is not.
    let own_bound = new.backend == Backend::Libvirt && fits;
    if was.max_size != was.size || is.max_size != is.size || own_bound {
        let bounds = (was.max_size, is.max_size);
        warnings.field(Field::MaxMemorySize, max_size, bounds, false);
    }
}
