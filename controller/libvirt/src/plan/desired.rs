//! The domain that a Machine is to have on its host.

use std::collections::BTreeMap;

use common::api::choice::VirtType as DeclaredVirtType;
use common::api::libvirt_host::LibvirtHostSpec;
use common::api::normalized::Normalized;
use common::host_uri::{Driver, HostUri};
use common::render::libvirt::{
    CpuMode, Domain, DomainInput as Desired, DomainMetadata, NicAttachment, PoolVolume, SeedRecord,
    VirtType, VolumeFormat, domain,
};
use controller_core::conditions::{Fault, Outcome};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::hardware::Hardware;
use super::release::kept_records;
use super::volumes::Volumes;
use crate::capacity::{fits, size_of};
use crate::observed::{Guest, HostView, Observed};
use crate::offers::attach;
use crate::switches::guest_limits;

/// What the domain is connected to.
pub(super) struct Attachments<'a> {
    pub(super) volumes: &'a Volumes,
    pub(super) networks: &'a BTreeMap<String, NicAttachment>,
    pub(super) hardware: &'a Hardware,
    pub(super) seed: Option<&'a SeedRecord>,
    /// Whether the next step starts the guest.
    pub(super) starts: bool,
}

/// How each card is attached.
pub(super) fn networks(
    block: &Normalized,
    observed: &Observed,
    view: &HostView,
) -> (BTreeMap<String, NicAttachment>, Outcome) {
    let (mut attached, mut outcome) = (BTreeMap::new(), Outcome::default());
    for nic in &block.networks {
        let name = nic.network_name.as_ref();
        let network = name.and_then(|name| observed.networks.get(name));
        if let Some(name) = name.filter(|_| network.is_none()) {
            outcome.record_first(Fault::new(
                "NetworkConfigurationNotFound",
                format!(
                    "NetworkConfiguration '{name}' of network card '{}' not found: create it, or change spec.networks; the Machine continues automatically when it appears",
                    nic.name
                ),
            ));
            continue;
        }
        match attach(&view.spec, &view.switches, network.map(|it| &it.spec)) {
            Ok(wire) => {
                attached.insert(nic.name.clone(), wire);
            }
            Err(lacks) => outcome.record_first(Fault::new(
                "NetworkFailed",
                format!(
                    "network card '{}' cannot be attached: LibvirtHost '{}' {lacks}: add it to spec.networks of the host",
                    nic.name, view.host
                ),
            )),
        }
    }
    (attached, outcome)
}

fn virt_type(spec: &LibvirtHostSpec) -> VirtType {
    let uri = spec.uri.parse::<HostUri>();
    if uri.is_ok_and(|uri| uri.driver() == Driver::Test) {
        return VirtType::Test;
    }
    match spec.virt_type {
        DeclaredVirtType::Kvm => VirtType::Kvm,
        DeclaredVirtType::Qemu => VirtType::Qemu,
    }
}

/// The declared CPU mode; absent: the host's own processor with KVM, everything that QEMU emulates without.
fn cpu_mode(spec: &LibvirtHostSpec) -> CpuMode {
    spec.cpu_mode.unwrap_or(match spec.virt_type {
        DeclaredVirtType::Kvm => CpuMode::HostPassthrough,
        DeclaredVirtType::Qemu => CpuMode::Maximum,
    })
}

/// The desired domain. What libvirt or this program chose for the current one is kept: addresses, machine type,
/// recorded intent, and until the next start the limits of the host.
pub(super) fn render(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    view: &HostView,
    attachments: &Attachments<'_>,
) -> Domain {
    let Attachments {
        volumes,
        networks,
        hardware,
        seed,
        starts,
    } = *attachments;
    let seed_at = seed.map(|seed| PoolVolume {
        pool: seed.pool.clone(),
        volume: seed.volume.clone(),
        format: VolumeFormat::Raw,
    });
    let mut desired = domain(&Desired {
        machine: machine.identity(&observed.cluster),
        block,
        virt_type: virt_type(&view.spec),
        cpu_mode: cpu_mode(&view.spec),
        volumes: &volumes.placed,
        networks,
        devices: &hardware.devices,
        pinning: &hardware.pinning,
        seed: seed_at.as_ref(),
        console_logs: view.console_logs.as_deref(),
        limits: guest_limits(&view.spec),
    });
    let guest = view.guest.as_ref();
    if let Some(current) = guest.and_then(|guest| guest.defined.as_ref()) {
        desired = desired.preserving(current);
        if !starts {
            desired = desired.with_limits_of(current).with_screen_of(current);
        }
    }
    let old = guest.and_then(|guest| guest.metadata.as_ref());
    let kept = kept_records(machine, block, old, &volumes.kept, view);
    // Secure boot takes effect with new firmware settings only.
    let is_other = |domain: &Domain| domain.firmware != desired.firmware;
    let reset_nvram = if let Some(running) = guest.and_then(|guest| guest.running.as_ref()) {
        is_other(running)
    } else {
        let defined = guest.and_then(|guest| guest.defined.as_ref());
        old.is_some_and(|old| old.reset_nvram) || defined.is_some_and(is_other)
    };
    desired.metadata = Some(DomainMetadata {
        namespace: machine.namespace().to_owned(),
        name: machine.name().to_owned(),
        uid: machine.uid().to_owned(),
        volumes: kept,
        seed: seed.cloned(),
        intent: old.and_then(|old| old.intent.clone()),
        grown: guest
            .and_then(|guest| guest.running.as_ref())
            .filter(|running| !fits(size_of(&desired), size_of(running)))
            .map(|_| size_of(&desired)),
        reset_nvram,
        kept_off: old.is_some_and(|old| old.kept_off)
            && guest.is_some_and(|guest| !guest.state.active()),
        migrated_away: guest.is_some_and(Guest::was_migrated_away),
        dhcp: vec![],
    });
    desired
}
