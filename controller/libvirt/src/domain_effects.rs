//! The preconditions of effects on a Machine's domain.

use common::render::libvirt::{Domain, DomainMetadata, domain_uuid};
use controller_core::preconditions::{Effect, Precondition};
use uuid::Uuid;

use crate::access::{AccessError, Connection, Result, State};
use crate::guard::Guard;
use crate::observed::was_migrated_away;

/// Fails unless every precondition of an effect on the domain of a Machine holds now. `owner`: uid of the Machine;
/// `may_be_absent`: the effect makes the domain.
pub(crate) fn check_domain(
    host: &mut dyn Connection,
    guard: &Guard,
    effect: Effect,
    owner: &str,
    may_be_absent: bool,
) -> Result<()> {
    effect.check(|precondition| match precondition {
        Precondition::LeaseHeld => guard.check(),
        Precondition::NotBoundElsewhere => guard.check_binding(),
        Precondition::OnlyDefinition => {
            guard.check_only_definition()?;
            check_not_migrated(host, domain_uuid(owner))
        }
        // The first two are checked where disks and hardware are known, and the call that removes the definition names
        // what is kept.
        Precondition::ExistingDisksFree | Precondition::HardwareFree | Precondition::StateKept => {
            Ok(())
        }
        Precondition::Movable => match host.domain(domain_uuid(owner))? {
            Some(found) if found.state.state == State::ShutOff => Ok(()),
            _ => Err(AccessError::Refused("the domain is not shut off".into())),
        },
        // No effect on a domain has them: they are of volumes, of images, and of instances of KubeVirt.
        Precondition::Unchanged
        | Precondition::Deletable
        | Precondition::Unused
        | Precondition::NeverRan
        | Precondition::NotABackingFile
        | Precondition::Incomplete => Err(AccessError::Refused(format!(
            "{precondition:?} is no precondition of an effect on a domain"
        ))),
        Precondition::Owned => match host.domain(domain_uuid(owner))? {
            None if may_be_absent => Ok(()),
            None => Err(AccessError::Absent("the domain is gone".into())),
            Some(found) => {
                let metadata = found.state.metadata.as_deref();
                let metadata = metadata.and_then(DomainMetadata::parse);
                if metadata.is_some_and(|metadata| metadata.uid == owner) {
                    return Ok(());
                }
                Err(AccessError::Refused(
                    "a domain of the Machine's uuid does not carry its metadata".into(),
                ))
            }
        },
    })
}

/// Fails if another client has migrated the guest to another host.
fn check_not_migrated(host: &mut dyn Connection, uuid: Uuid) -> Result<()> {
    let Some(found) = host.domain(uuid)? else {
        return Ok(());
    };
    let metadata = found.state.metadata.as_deref();
    let metadata = metadata.and_then(DomainMetadata::parse);
    if was_migrated_away(found.state.state, found.state.reason, metadata.as_ref()) {
        return Err(AccessError::Changed(
            "another client has migrated the guest to another host; nothing was done".into(),
        ));
    }
    Ok(())
}

/// Fails if another domain has a device or a CPU of the host that the domain would have for itself. Each domain could be
/// started at any time, so one that is off has its hardware, too.
pub(crate) fn check_hardware(host: &mut dyn Connection, own: Uuid, domain: &Domain) -> Result<()> {
    let cpus = &domain.pinning.dedicated;
    if domain.host_devices.is_empty() && cpus.is_empty() {
        return Ok(());
    }
    let mut all = host.hardware_of_all()?;
    all.remove(&own);
    for device in &domain.host_devices {
        let source = device.source;
        if all.values().any(|other| other.devices.contains(&source)) {
            return Err(AccessError::Changed(format!(
                "device {source} of the host is one of another domain"
            )));
        }
    }
    let is_taken = |cpu: &&u32| all.values().any(|other| other.cpus.contains(cpu));
    match cpus.iter().find(is_taken) {
        None => Ok(()),
        Some(cpu) => Err(AccessError::Changed(format!(
            "another domain is pinned to CPU {cpu} of the host"
        ))),
    }
}

/// The definition of a domain; `None`: it is gone.
pub(crate) fn defined(host: &mut dyn Connection, uuid: Uuid) -> Result<Option<Domain>> {
    let found = host.domain(uuid)?;
    found.map(|found| parsed(&found.inactive)).transpose()
}

/// A domain that libvirt describes. One that cannot be read may have any disk or device.
pub(crate) fn parsed(text: &str) -> Result<Domain> {
    Domain::parse(text).map_err(|error| AccessError::Changed(format!("the domain: {error}")))
}
