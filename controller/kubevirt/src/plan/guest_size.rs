//! The size of a disk in the guest, which does not follow that of its volume where KubeVirt lacks the feature gate
//! ExpandDisks:
//!
//! | volume | a running guest | the next start |
//! |---|---|---|
//! | block device | keeps the size that it was started with | has the size of the volume |
//! | with a file system, on which the disk is a file | keeps it | keeps it, until the gate is enabled |
//!
//! No object of KubeVirt has this size: an instance reports that of the claim. So the patch that grows a claim records on it
//! the size before, with the uid of the instance that keeps it.

use common::api::normalized::Normalized;
use common::api::status::PendingChange;
use common::catalog::EXPAND_DISKS;
use common::names;
use common::quantity::Bytes;
use controller_core::objects::Meta as _;

use super::changes::Changes;
use super::observed::Observed;
use crate::objects::Claim;

/// The record of a claim that grows from this size; `None`: the guest gets the new size, or there is one already.
pub(super) fn record(claim: &Claim, size: Bytes, observed: &Observed) -> Option<String> {
    let instance = instance(observed);
    let keeps_size = lacks_expansion(observed) && (!is_block(claim) || !instance.is_empty());
    if !keeps_size || recorded(claim, observed).is_some() {
        return None;
    }
    let text = format!("{size} {instance}");
    Some(text.trim_end().to_owned())
}

/// Whether a claim has a record that is of no use any more, because KubeVirt gives the guest the size of the volume.
pub(super) fn is_outdated(claim: &Claim, observed: &Observed) -> bool {
    claim.annotation(names::ANNOTATION_SIZE_IN_GUEST).is_some() && offers(observed) == Some(true)
}

/// The disks of which the running guest has a smaller size. KubeVirt applies it at a restart.
pub(super) fn pending(
    machine: &str,
    block: &Normalized,
    observed: &Observed,
) -> Vec<PendingChange> {
    let mut changes = Changes::default();
    if !lacks_expansion(observed) {
        return changes.list;
    }
    for disk in &block.disks {
        let claim = observed.claims.get(&names::claim(machine, &disk.name));
        let size = claim.and_then(|claim| Some((claim, recorded(claim, observed)?)));
        if let Some((claim, size)) = size {
            let gate = EXPAND_DISKS.gate;
            let desired = if is_block(claim) {
                disk.size.to_string()
            } else {
                format!("{}, with KubeVirt's feature gate {gate}", disk.size)
            };
            changes.field(&format!("disks[{}].size", disk.name), size, desired);
        }
    }
    changes.list
}

/// The recorded size, if the disk still has it in the guest.
fn recorded<'a>(claim: &'a Claim, observed: &Observed) -> Option<&'a str> {
    let record = claim.annotation(names::ANNOTATION_SIZE_IN_GUEST)?;
    let (size, of) = record.split_once(' ').unwrap_or((record, ""));
    (!is_block(claim) || of == instance(observed)).then_some(size)
}

/// Uid of the instance that has a guest; empty: there is none.
fn instance(observed: &Observed) -> &str {
    let instance = observed.instance.as_deref();
    let instance = instance.filter(|instance| !instance.has_ended() && !instance.is_deleting());
    instance.map_or("", |instance| instance.uid())
}

fn is_block(claim: &Claim) -> bool {
    claim.spec.volume_mode.as_deref() == Some("Block")
}

/// Whether KubeVirt leaves the size of a disk in the guest as it is.
fn lacks_expansion(observed: &Observed) -> bool {
    offers(observed) == Some(false)
}

fn offers(observed: &Observed) -> Option<bool> {
    observed.settings.as_ref()?.offers(&EXPAND_DISKS)
}
