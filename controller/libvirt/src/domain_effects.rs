//! The preconditions of effects on a Machine's domain.

use common::render::libvirt::{DomainMetadata, domain_uuid};
use controller_core::preconditions::{Effect, Precondition};

use crate::access::{AccessError, Connection, Result, State};
use crate::guard::Guard;

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
        // The first is checked where the disks are known, and the call that removes the definition names what is kept.
        Precondition::ExistingDisksFree | Precondition::StateKept => Ok(()),
        Precondition::Movable => match host.domain(domain_uuid(owner))? {
            Some(found) if found.state.state == State::ShutOff => Ok(()),
            _ => Err(AccessError::Refused("the domain is not shut off".into())),
        },
        // The only other one of these effects: the domain is the Machine's.
        _ => match host.domain(domain_uuid(owner))? {
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
