//! What libvirt can change in a running guest. Rendering decides by these functions, and admission
//! announces by them.

use crate::api::normalized::{NormalizedCpu, NormalizedMemory};

/// Whether a disk on this bus can be plugged in and out. AHCI and IDE cannot, and a guest without ACPI
/// is not notified of a virtio disk.
pub fn takes_disk(bus: &str, acpi: bool) -> bool {
    match bus {
        "virtio" => acpi,
        "scsi" => true,
        _ => false,
    }
}

/// Whether a disk on this bus is a PCI device of its own. On q35 it needs a free port then, as every network card does.
pub fn needs_port(bus: &str) -> bool {
    bus == "virtio"
}

/// Whether a network card of this model can be plugged in and out. On q35 the older models are behind
/// a PCI bridge that does not notify the guest.
pub fn takes_nic(model: &str, is_q35: bool, acpi: bool) -> bool {
    let is_express = matches!(model, "virtio" | "e1000e");
    acpi && (is_express || !is_q35)
}

/// Whether the guest can be given these vCPUs. Only ever more: taking one away is a request that a
/// guest may ignore.
pub fn takes_vcpus(was: NormalizedCpu, is: NormalizedCpu, acpi: bool) -> bool {
    let grows = was.sockets < is.sockets && is.sockets <= was.max_sockets;
    let is_same_socket = (was.cores, was.threads) == (is.cores, is.threads);
    grows && is_same_socket && acpi
}

/// Whether the guest can be given this amount of memory: the balloon reaches up to the maximum that
/// the guest was started with.
pub fn takes_memory(was: NormalizedMemory, is: NormalizedMemory) -> bool {
    is.size <= was.max_size
}
