//! Features, clock and firmware of a domain.

use super::types::{
    Bootloader, Clock, Efi, Features, Firmware, Hyperv, Presence, Present, Spinlocks, Switch,
    SynicTimer, TickPolicy, Timer,
};
use crate::api::choice::FirmwareType;
use crate::api::normalized::Normalized;
use crate::render::identity::Identity;

/// Attempts to take a spin lock before a Windows guest tells the hypervisor: Microsoft's own
/// recommendation, and what QEMU and KubeVirt use.
const SPINLOCK_RETRIES: u32 = 8191;

const fn switch(enabled: bool) -> Switch {
    Switch {
        enabled: Some(enabled),
    }
}

const ON: Switch = switch(true);

pub(super) fn features(block: &Normalized) -> Features {
    Features {
        acpi: Some(switch(block.features.acpi)),
        apic: Some(switch(block.features.apic)),
        // Secure boot keeps its variables behind system management mode.
        smm: (block.firmware.secure_boot == Some(true)).then_some(ON),
        hyperv: block.features.hyperv.then(hyperv),
    }
}

/// The enlightenments depend on each other, and KubeVirt tells only when the guest starts: this
/// set is closed.
fn hyperv() -> Hyperv {
    Hyperv {
        relaxed: ON,
        vapic: ON,
        spinlocks: Spinlocks {
            enabled: Some(true),
            spinlocks: Some(SPINLOCK_RETRIES),
        },
        vpindex: ON,
        runtime: ON,
        synic: ON,
        synictimer: SynicTimer {
            enabled: Some(true),
            direct: ON,
        },
        reset: ON,
        frequencies: ON,
        reenlightenment: ON,
        tlbflush: ON,
        ipi: ON,
    }
}

/// The clock a Windows guest needs for its enlightenments; other guests get KubeVirt's own.
pub(super) fn clock(block: &Normalized) -> Option<Clock> {
    let tick = |policy: &str| {
        Some(TickPolicy {
            tick_policy: policy.to_owned(),
        })
    };
    block.features.hyperv.then(|| Clock {
        utc: Some(Present {}),
        timer: Timer {
            hpet: Some(Presence {
                present: Some(false),
            }),
            hyperv: Some(Presence {
                present: Some(true),
            }),
            pit: tick("delay"),
            rtc: tick("catchup"),
        },
    })
}

pub(super) fn firmware(machine: &Identity<'_>, block: &Normalized) -> Firmware {
    let bootloader = match block.firmware.kind {
        FirmwareType::Bios => Bootloader {
            bios: Some(Present {}),
            efi: None,
        },
        // Absent means true to KubeVirt.
        FirmwareType::Efi => Bootloader {
            bios: None,
            efi: Some(Efi {
                secure_boot: Some(block.firmware.secure_boot.unwrap_or(false)),
            }),
        },
    };
    Firmware {
        uuid: machine.firmware_uuid().to_string(),
        serial: machine.firmware_serial().to_string(),
        bootloader,
    }
}
