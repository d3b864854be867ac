//! The networks of a Machine: its NetworkConfigurations and the NetworkAttachmentDefinition of each.

use std::collections::BTreeMap;

use common::api::normalized::Normalized;
use common::names;
use common::render::kubevirt::{attachment, attachment_name, is_attachment_current};

use super::action::Action;
use super::observed::Observed;
use crate::objects::Attachment;
use controller_core::addresses::address_conflict;
use controller_core::conditions::{Fault, Outcome};
use controller_core::machine::{Machine, named_networks};
use controller_core::objects::{Meta as _, Network};

/// Outcome of planning the networks.
#[derive(Debug, Default)]
pub(super) struct Networks {
    pub(super) actions: Vec<Action>,
    pub(super) outcome: Outcome,
    /// Name of the NetworkAttachmentDefinition by name of the NetworkConfiguration.
    pub(super) attachments: BTreeMap<String, String>,
}

pub(super) fn networks(machine: &Machine, block: &Normalized, observed: &Observed) -> Networks {
    let mut networks = Networks::default();
    let mut missing = Vec::new();
    for name in named_networks(block) {
        let Some(network) = observed.networks.get(name) else {
            missing.push(format!("'{name}'"));
            // An existing VirtualMachine keeps the attachment it has.
            let kept = attached(observed, block, name);
            networks
                .attachments
                .extend(kept.map(|kept| (name.to_owned(), kept)));
            continue;
        };
        let attachment = attachment_name(name, &network.spec).to_owned();
        match provide(machine, network, &attachment, observed) {
            Ok(action) => networks.actions.extend(action),
            Err(fault) => networks.outcome.record_first(fault),
        }
        networks.attachments.insert(name.to_owned(), attachment);
    }
    missing.sort();
    missing.dedup();
    if !missing.is_empty() {
        networks.outcome.record_first(Fault::new(
            "NetworkConfigurationNotFound",
            format!(
                "NetworkConfiguration {} not found in namespace {}: create it, or change spec.networks; the Machine continues automatically when it appears",
                missing.join(", "),
                machine.namespace()
            ),
        ));
    }
    if let Some(missing) = &machine.addresses.fault {
        networks.outcome.record_first(missing.fault.clone());
    }
    let conflict = address_conflict(machine, &observed.conflicts, observed.vm.is_some());
    networks.outcome.record_first(conflict);
    networks
}

/// The attachment the live VirtualMachine has on the network cards of this NetworkConfiguration.
fn attached(observed: &Observed, block: &Normalized, network: &str) -> Option<String> {
    let nic = block
        .networks
        .iter()
        .find(|nic| nic.network_name.as_deref() == Some(network))?;
    let vm = observed.vm.as_ref()?;
    let live = vm
        .spec
        .template
        .spec
        .networks
        .iter()
        .find(|live| live.name == nic.name)?;
    let (_, name) = live.multus.as_ref()?.network_name.split_once('/')?;
    Some(name.to_owned())
}

/// Creates or updates the attachment of a NetworkConfiguration.
fn provide(
    machine: &Machine,
    network: &Network,
    name: &str,
    observed: &Observed,
) -> Result<Option<Action>, Fault> {
    let fault = |message| Err(Fault::new("NetworkFailed", message));
    if !observed.multus {
        return fault(
            "Multus is not installed: the API server does not serve NetworkAttachmentDefinitions; install Multus, or use the pod network only".to_owned(),
        );
    }
    let live = observed.attachments.get(name);
    if network.spec.network_attachment_definition.is_some() {
        return match live {
            Some(_) => Ok(None),
            None => fault(format!(
                "NetworkAttachmentDefinition '{name}', which NetworkConfiguration '{}' names, not found in namespace {}: create it",
                network.name(),
                machine.namespace()
            )),
        };
    }
    let desired = attachment(
        network.namespace(),
        network.name(),
        network.uid(),
        &network.spec,
    );
    match (desired, live) {
        (None, _) => fault(format!(
            "NetworkConfiguration '{}' has neither a bridge nor a networkAttachmentDefinition: set one of them",
            network.name()
        )),
        (Some(desired), None) => Ok(Some(Action::CreateAttachment(desired))),
        (Some(_), Some(live)) if !is_ours(live, network) => fault(format!(
            "NetworkAttachmentDefinition '{name}' exists and is not ours: name it in spec.networkAttachmentDefinition of NetworkConfiguration '{}' to use it, or delete it",
            network.name()
        )),
        (Some(_), Some(live))
            if is_attachment_current(&live.spec.config, network.name(), &network.spec) =>
        {
            Ok(None)
        }
        (Some(mut desired), Some(live)) => {
            desired.metadata.uid = Some(live.uid().to_owned());
            Ok(Some(Action::UpdateAttachment(desired)))
        }
    }
}

fn is_ours(live: &Attachment, network: &Network) -> bool {
    let owners = live.metadata.owner_references.iter().flatten();
    live.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY)
        && owners.into_iter().any(|owner| owner.uid == network.uid())
}
