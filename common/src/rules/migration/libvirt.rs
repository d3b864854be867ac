//! Whether a stopped Machine can be moved to another libvirt host.
//!
//! ```text
//! Machine ─ stopped, nothing of it in files of its host alone ─▶ hosts ─ share its disks, offer the rest, room ─▶ one
//! ```
//! What depends on the Machine and on the specs of two hosts is one rule for admission and the controller. Admission
//! knows the room of hosts as it was last reported; the controller looks again before anything is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::choice::{FirmwareType, PowerState};
use crate::api::libvirt_host::SharedStorage;
use crate::api::normalized::Normalized;
use crate::catalog::{Catalog, HostRow, Policy};
use crate::names;
use crate::rules::hosts::needs_of;
use crate::rules::policies::settings::policies_of;
use crate::rules::rule::MigrationRequest;
use crate::violation::{Findings, Reference};
use crate::words::name_list;

/// Most hosts that a message lists with why the Machine cannot be moved to them.
const HOSTS_SHOWN_MAX: usize = 3;

/// Storage classes whose pools other hosts have as well.
type Shared = BTreeMap<String, SharedStorage>;

/// Why a Machine cannot be moved off its host, as far as its block and the storage of the host say; `None`: it can.
/// `kept`: names of disks that left its spec and whose volumes are kept.
pub fn obstacle<'k>(
    block: &Normalized,
    here: &Shared,
    kept: impl IntoIterator<Item = &'k str>,
) -> Option<String> {
    if block.power_state != PowerState::Stopped {
        return Some(
            "the guest runs, and on libvirt a Machine is moved while it is stopped: set spec.powerState to Stopped, and request the move when it is off"
                .to_owned(),
        );
    }
    if block.keeps_tpm() {
        return Some(
            "the content of its TPM is in a file of its host, and would be lost: only a Machine without a TPM that persists is moved"
                .to_owned(),
        );
    }
    let firmware = &block.firmware;
    if firmware.kind == FirmwareType::Efi && firmware.persistent != Some(false) {
        return Some(
            "its EFI variables are in a file of its host, and would be lost: set domain.firmware.bootloader.persistent to false first, if the guest boots without them"
                .to_owned(),
        );
    }
    if let Some(disk) = block.existing_disks.first() {
        let name = &disk.name;
        return Some(format!(
            "disk '{name}' is on a volume that existed before the Machine, in a pool of its host alone: such a disk, and its Machine, stay there"
        ));
    }
    if let Some(disk) = kept.into_iter().next() {
        let annotation = names::ANNOTATION_RELEASE_VOLUME;
        return Some(format!(
            "the volume of disk '{disk}', which left the spec, is kept, and only the definition on its host records it: delete it with the annotation {annotation}, or add the disk to the spec again"
        ));
    }
    block.disks.iter().find_map(|disk| {
        let (name, class) = (&disk.name, &disk.storage_class);
        match here.get(class) {
            None => Some(format!(
                "disk '{name}' is in a pool of its host alone: no other host has its volume, unless spec.storage of the LibvirtHosts gives storage class '{class}' the same sharedAs"
            )),
            Some(shared) if disk.image.is_some() && !shared.copies => Some(format!(
                "disk '{name}' is an overlay of an image in the imagePool of its host: only copies (provisioning: copy) are moved"
            )),
            Some(_) => None,
        }
    })
}

/// Fails with what a host lacks that does not share the storage of every disk.
pub fn check_shared_storage(
    block: &Normalized,
    here: &Shared,
    there: &Shared,
) -> Result<(), String> {
    let mut classes = block.disks.iter().map(|disk| &disk.storage_class);
    match classes.find(|class| here.get(*class) != there.get(*class)) {
        None => Ok(()),
        Some(class) => Err(format!(
            "does not share the storage of class '{class}' (sharedAs, format and provisioning of both hosts have to be the same)"
        )),
    }
}

/// Fails with the label that a MachinePolicy asks of the hosts of a namespace and that a host lacks. The node selector of a
/// Machine from before the policy need not have it.
pub fn check_labels_of_policies(
    policies: &[Arc<Policy>],
    labels: &BTreeMap<String, String>,
) -> Result<(), String> {
    for policy in policies {
        let mut asked = policy.host_labels.iter();
        if let Some((key, value)) = asked.find(|(key, value)| labels.get(*key) != Some(*value)) {
            let policy = &policy.name;
            return Err(format!(
                "does not have the label {key}={value} that policy '{policy}' asks of hosts"
            ));
        }
    }
    Ok(())
}

/// Why the Machine of a request cannot be moved, as far as is known; `None`: it can, or the controller has to find out.
pub(super) fn obstacle_of(
    request: &MigrationRequest<'_>,
    findings: &mut Findings,
) -> Option<String> {
    let (block, host) = (request.block?, request.host?);
    let block = &Normalized {
        power_state: request.power_state.unwrap_or(block.power_state),
        ..block.clone()
    };
    let hosts = request.catalog.hosts();
    let here = hosts.iter().find(|row| row.name == host)?;
    let kept = request.kept_disks.iter().map(String::as_str);
    if let Some(obstacle) = obstacle(block, &here.shared_storage, kept) {
        findings.miss(Reference::Hosts);
        return Some(obstacle);
    }
    let target = names::ANNOTATION_MIGRATE_TO;
    if request.target == Some(host) {
        return Some(format!(
            "the Machine is on LibvirtHost '{host}' already: name another one in the annotation {target}, or drop that"
        ));
    }
    let policies = policies_of(request.namespace, request.catalog, findings);
    let others = hosts.iter().filter(|row| row.name != host);
    let others = others.filter(|row| request.target.is_none_or(|target| row.name == target));
    let mut lacks = Vec::new();
    for other in others {
        let allowed = check_labels_of_policies(&policies, &other.labels);
        match allowed
            .and_then(|()| check_target(request.namespace, block, here, other, request.catalog))
        {
            Ok(()) => return None,
            Err(why) => lacks.push(format!("{} {why}", other.name)),
        }
    }
    findings.miss(Reference::Hosts);
    Some(match request.target {
        Some(target) if lacks.is_empty() => {
            let known = hosts.iter().map(|row| row.name.clone()).collect();
            format!(
                "there is no LibvirtHost '{target}'; LibvirtHosts: {}",
                name_list(known)
            )
        }
        None if lacks.is_empty() => "there is no other LibvirtHost".to_owned(),
        _ => {
            let more = lacks.len().saturating_sub(HOSTS_SHOWN_MAX);
            lacks.truncate(HOSTS_SHOWN_MAX);
            let more = if more > 0 {
                format!("; {more} more cannot have it either")
            } else {
                String::new()
            };
            format!(
                "no other host can have the Machine: {}{more}; change what a LibvirtHost lacks, or drop the annotation",
                lacks.join("; ")
            )
        }
    })
}

/// Fails with why a host cannot have a Machine, as far as is known of it.
fn check_target(
    namespace: &str,
    block: &Normalized,
    here: &HostRow,
    other: &HostRow,
    catalog: &dyn Catalog,
) -> Result<(), String> {
    if !other.takes_machines {
        return Err("takes no Machines (schedulable, maintenance)".to_owned());
    }
    if !other.matches(&block.node_selector) {
        return Err("does not have the labels of spec.nodeSelector".to_owned());
    }
    check_shared_storage(block, &here.shared_storage, &other.shared_storage)?;
    let needs = needs_of(block, namespace, catalog);
    if let Some(need) = needs.iter().find(|need| !other.offers(need)) {
        return Err(format!("does not offer {need}"));
    }
    let Some((all, used)) = other.allocatable.zip(other.allocated) else {
        return Ok(());
    };
    let left = other.left(used, block.has_dedicated_cpus()).unwrap_or(all);
    if block.counted_vcpus() > left.cpu {
        return Err(format!("has {} of {} vCPUs left", left.cpu, all.cpu));
    }
    if block.memory.max_size > left.memory {
        return Err(format!("has {} of {} memory left", left.memory, all.memory));
    }
    Ok(())
}
