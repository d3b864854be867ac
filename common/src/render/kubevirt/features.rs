//! Features, clock and firmware of a domain.

use super::types::{
    Bootloader, Clock, Efi, Features, Firmware, Hyperv, Presence, Present, Spinlocks, Switch,
    SynicTimer, TickPolicy, Timer,
};
use crate::api::choice::FirmwareType;
use crate::api::normalized::Normalized;
use crate::render::SPINLOCK_RETRIES;
use crate::render::identity::Identity;

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
        // Secure Boot needs system management mode to protect the firmware's variables.
        smm: (block.firmware.secure_boot == Some(true)).then_some(ON),
        hyperv: block.features.hyperv.then(hyperv),
    }
}

/// Some enlightenments require others, and KubeVirt reports a missing one only when the guest starts.
/// This set contains every enlightenment that one of its members requires.
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

/// The clock that the Windows enlightenments need, and the time zone; other guests get KubeVirt's default clock, which
/// shows UTC.
pub(super) fn clock(block: &Normalized) -> Option<Clock> {
    let tick = |policy: &str| {
        Some(TickPolicy {
            tick_policy: policy.to_owned(),
        })
    };
    let timer = block.features.hyperv.then(|| Timer {
        hpet: Some(Presence {
            present: Some(false),
        }),
        hyperv: Some(Presence {
            present: Some(true),
        }),
        pit: tick("delay"),
        rtc: tick("catchup"),
    });
    (timer.is_some() || block.timezone.is_some()).then(|| Clock {
        utc: block.timezone.is_none().then_some(Present {}),
        timezone: block.timezone.clone(),
        timer: timer.unwrap_or_default(),
    })
}

pub(super) fn firmware(machine: &Identity<'_>, block: &Normalized) -> Firmware {
    let bootloader = match block.firmware.kind {
        FirmwareType::Bios => Bootloader {
            bios: Some(Present {}),
            efi: None,
        },
        // Always set: KubeVirt's default is true.
        FirmwareType::Efi => Bootloader {
            bios: None,
            efi: Some(Efi {
                persistent: block.firmware.persistent,
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
