//! Templates, networks and source claims that a Machine refers to, checked against the catalog.
//!
//! A reference that has not changed since the stored object is not looked up, so that a Machine can be
//! edited after what it refers to was deleted.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use crate::api::choice::Backend;
use crate::api::machine::Image;
use crate::api::normalized::{Normalized, NormalizedDisk, TemplatePin};
use crate::bounds::TEXT_MAX;
use crate::catalog::{Catalog, MachineName, TemplateRow, built_in, built_in_names};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::names;
use crate::normalize::{Leaf, TemplateChoice};
use crate::violation::{Findings, Kind, Reference, Violation};
use crate::words::{did_you_mean, nearest_first, quoted};

use super::networks::network_name;
use super::rule::{Check, KnownTemplate, Lookup, MissingNetworks, TemplateRequest, rules};
use super::{form, limits};

rules! {
    "references" Check::Template(template), on MACHINES, Always {
        Refuse TemplateNotFound = "The template does not exist."
            because "Without it the machine has no definition, and a controller would report that only minutes later."
            fix "Take one of the names that the message lists, or apply the MachineTemplate first."
            crd Some,
        Warn TemplateDeprecated = "The template should no longer be used."
            because "The template's owner recommends another one to all users; the template still works."
            fix "Follow the owner's text in the message."
            crd Nothing,
        Warn RestoredTemplate = "A restored Machine keeps a template content that the catalog no longer has."
            because "A backup holds the template as it was, and a restored machine shall be the machine that was saved."
            fix "Nothing, or set the refresh annotation to take the template's present values."
            crd Nothing,
    }
    "references" Check::Template(template_label), on MACHINES, Always {
        Refuse TemplateLabelConflict = "The template label and spec.template name different templates."
            because "The Machine has one template; which of the two is meant cannot be known."
            fix "Make label and field the same, or remove one of them."
            crd Nothing,
    }
    "references" Check::Lookup(networks), on MACHINES, Always {
        Setting NetworkConfigurationNotFound = "The NetworkConfiguration does not exist in the Machine's namespace."
            because "The machine waits until the network exists. Sets of objects are often checked before the network of the same set is there, so this is a warning unless an administrator decides otherwise."
            fix "Correct the name, or apply the NetworkConfiguration."
            crd Nothing,
    }
    "references" Check::Lookup(source_claims), on MACHINES, Always, and [CopyOfItself] {
        Warn SourceClaimNotFound = "The claim that a disk is to be a copy of does not exist in the Machine's namespace."
            because "The copy waits until the claim exists, and the Machine with it."
            fix "Correct the name, or create the claim."
            crd Nothing,
    }
    "disks" Check::Value, on MACHINES, Always {
        Refuse CopyOfItself = "A disk is to be a copy of the claim that it itself gets."
            because "The copy would wait for its own source for ever, and the Machine with it."
            fix "Name another claim, or rename the disk."
            crd Nothing,
    }
}

/// Path of the refresh annotation.
const REFRESH: &str = "metadata.annotations[machine.vitistack.io/refresh-template]";

/// Rule [`Code::TemplateLabelConflict`], if the field names a template that exists. An unknown
/// template is a violation of its own, and the label may name the right one.
fn template_label(
    request: &TemplateRequest<'_>,
    template: &mut TemplateChoice,
    findings: &mut Findings,
) {
    let intent = request.intent;
    if let (Some(field), Some(label)) = (intent.spec.template.as_deref(), intent.template_label)
        && field != label
        && *template != TemplateChoice::Unknown
    {
        let detail = format!(
            "the label {} says {}; make both equal, or remove one",
            names::LABEL_TEMPLATE,
            quoted(label)
        );
        let code = Code::TemplateLabelConflict;
        findings.deny(Violation::new(FieldPath::TEMPLATE, code, Kind::Invalid, detail).text(field));
    }
}

/// The template of an intent: rules [`Code::TemplateNotFound`], [`Code::TemplateDeprecated`],
/// [`Code::RestoredTemplate`]. `refresh` is the text of the refresh annotation.
fn template(request: &TemplateRequest<'_>, template: &mut TemplateChoice, findings: &mut Findings) {
    *template = choose(request, findings);
}

fn choose(request: &TemplateRequest<'_>, findings: &mut Findings) -> TemplateChoice {
    let TemplateRequest {
        intent,
        refresh,
        known,
        catalog,
    } = *request;
    let Some((name, path)) = intent.template() else {
        return TemplateChoice::None;
    };
    let asked_again = |pin: &TemplatePin| refresh.is_some() && refresh != pin.refresh.as_deref();
    match known {
        KnownTemplate::Stored(pin) if pin.name == name && !asked_again(pin) => {
            return TemplateChoice::Pinned(Box::new(pin.clone()));
        }
        KnownTemplate::Restored(pin) if pin.name == name && !asked_again(pin) => {
            restored(pin, catalog, findings);
            return TemplateChoice::Pinned(Box::new(pin.clone()));
        }
        KnownTemplate::Nothing | KnownTemplate::Stored(_) | KnownTemplate::Restored(_) => {}
    }
    // The text is stored in the block, so it is bounded.
    limits::length(REFRESH, refresh, TEXT_MAX, findings);
    let Some(row) = find_template(catalog, name) else {
        findings.deny(template_not_found(name, path, catalog));
        findings.miss(Reference::Template(name.to_owned()));
        return TemplateChoice::Unknown;
    };
    if let Some(text) = &row.deprecated {
        findings.warn(
            Code::TemplateDeprecated,
            &format!("template '{name}' is deprecated: {text}"),
        );
    }
    TemplateChoice::Pinned(Box::new(TemplatePin {
        name: name.to_owned(),
        source: row.source,
        refresh: refresh.map(str::to_owned),
        content: row.content.clone(),
    }))
}

fn template_not_found(name: &str, path: FieldPath, catalog: &dyn Catalog) -> Violation {
    let known: Vec<String> = built_in_names()
        .map(str::to_owned)
        .chain(catalog.template_names())
        .collect();
    // Other kinds are referred to as `namespace/name`; templates have no namespace.
    let plain = name.rsplit_once('/').map_or(name, |(_, plain)| plain);
    let nearest = did_you_mean(plain, known.iter().map(String::as_str));
    let known = nearest_first(plain, known.clone());
    let detail = format!("{nearest}known templates: {known}");
    Violation::new(path, Code::TemplateNotFound, Kind::NotFound, detail).text(name)
}

fn find_template(catalog: &dyn Catalog, name: &str) -> Option<std::sync::Arc<TemplateRow>> {
    built_in(name).or_else(|| catalog.template(name))
}

/// Rule [`Code::RestoredTemplate`].
fn restored(pin: &TemplatePin, catalog: &dyn Catalog, findings: &mut Findings) {
    let name = &pin.name;
    match find_template(catalog, name) {
        Some(row) if row.content == pin.content => {}
        Some(_) => findings.warn(
            Code::RestoredTemplate,
            &format!(
                "template '{name}' has changed since; the restored Machine keeps its old content"
            ),
        ),
        None => findings.warn(
            Code::RestoredTemplate,
            &format!(
                "template '{name}' does not exist any more; the restored Machine keeps its content"
            ),
        ),
    }
}

/// Rule [`Code::NetworkConfigurationNotFound`], for references that `old` does not have. A namespace may have thousands of
/// NetworkConfigurations: they are read once, and compared once with each name.
fn networks(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let (namespace, catalog) = (lookup.machine.namespace, lookup.catalog);
    let is_stored = |name: &str| lookup.stored.is_some_and(|block| is_on(block, name));
    let known = LazyCell::new(|| catalog.network_names(namespace));
    let mut hints = BTreeMap::new();
    for item in &lookup.merged.networks {
        let leaf = network_name(item);
        let Some(name) = leaf.value else {
            continue;
        };
        let is_known = is_stored(name) || catalog.network(namespace, name).is_some();
        if is_known || !form::is_object_name(name) {
            continue;
        }
        findings.miss(Reference::Network(name.to_owned()));
        let code = Code::NetworkConfigurationNotFound;
        let hint = hints
            .entry(name)
            .or_insert_with(|| network_hint(name, lookup, &known));
        match lookup.settings.missing_networks {
            MissingNetworks::Deny => {
                let fault = Violation::new(leaf.path, code, Kind::NotFound, &**hint);
                findings.deny(fault.text(name));
            }
            MissingNetworks::Warn => {
                let text = format!(
                    "{}: NetworkConfiguration '{name}' does not exist yet; {hint}",
                    leaf.path
                );
                findings.warn(code, text.trim_end_matches([' ', ';']));
            }
        }
    }
}

/// What to do about a NetworkConfiguration that does not exist.
fn network_hint(name: &str, lookup: &Lookup<'_>, known: &[String]) -> String {
    let nearest = default_network(name, lookup.backend)
        .unwrap_or_else(|| did_you_mean(name, known.iter().map(String::as_str)));
    match lookup.settings.missing_networks {
        MissingNetworks::Deny => {
            let known = nearest_first(name, known.to_vec());
            format!("{nearest}known NetworkConfigurations: {known}")
        }
        MissingNetworks::Warn => nearest,
    }
}

/// What to do about a name by which other APIs call the network of a card that names none.
fn default_network(name: &str, backend: Backend) -> Option<String> {
    const NAMES: [&str; 4] = ["default", "pod", "pod-network", "podnetwork"];
    let network = match backend {
        Backend::Kubevirt => "the pod network",
        Backend::Libvirt => "the default network of the host",
    };
    let fix = || format!("leave networkName out for {network}; ");
    NAMES.contains(&name).then(fix)
}

/// Rules [`Code::SourceClaimNotFound`] and [`Code::CopyOfItself`], for copies that `old` does not have.
fn source_claims(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let Lookup {
        merged,
        machine,
        catalog,
        stored: old,
        ..
    } = *lookup;
    if lookup.backend != Backend::Kubevirt {
        return;
    }
    let field = "image.persistentVolumeClaim";
    for item in &merged.disks {
        let source = item.pick(field, |disk| source_of(disk.image.as_ref()));
        if !check_copy_of_itself(item.name(), source, old, machine, findings) {
            source_claim(source, old, machine.namespace, catalog, findings);
        }
    }
    // The claim of a CD-ROM carries a digest in its name.
    for item in &merged.cdroms {
        let source = item.pick(field, |cdrom| source_of(cdrom.image.as_ref()));
        source_claim(source, old, machine.namespace, catalog, findings);
    }
}

fn source_of(image: Option<&Image>) -> Option<&str> {
    image?.persistent_volume_claim.as_deref()
}

/// Rule [`Code::CopyOfItself`]. Returns whether the source is the claim of the disk itself. The Machine
/// may have no name yet.
fn check_copy_of_itself(
    disk: Leaf<&str>,
    source: Leaf<&str>,
    old: Option<&Normalized>,
    machine: MachineName<'_>,
    findings: &mut Findings,
) -> bool {
    let (Some(name), Some(claim)) = (disk.value, source.value) else {
        return false;
    };
    let is_own = !machine.name.is_empty() && claim == names::claim(machine.name, name);
    let is_it_already =
        |disk: &NormalizedDisk| disk.name == name && source_of(disk.image.as_ref()) == Some(claim);
    let is_new = !old.is_some_and(|old| old.disks.iter().any(is_it_already));
    if is_own && is_new && form::is_object_name(claim) {
        let detail =
            "is the claim that this disk itself gets; name another one, or rename the disk";
        let fault = Violation::new(source.path, Code::CopyOfItself, Kind::Invalid, detail);
        findings.deny(fault.text(claim).unless_faulty(disk.path));
    }
    is_own
}

/// Rule [`Code::SourceClaimNotFound`].
fn source_claim(
    source: Leaf<&str>,
    old: Option<&Normalized>,
    namespace: &str,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) {
    if let Some(claim) = source.value
        && form::is_object_name(claim)
        && !old.is_some_and(|old| is_source(old, claim))
        && !catalog.has_claim(namespace, claim)
    {
        let text = format!(
            "{}: PersistentVolumeClaim '{claim}' does not exist yet",
            source.path
        );
        findings.warn(Code::SourceClaimNotFound, &text);
    }
}

fn is_source(block: &Normalized, claim: &str) -> bool {
    let disks = block.disks.iter().map(|disk| &disk.image);
    let cdroms = block.cdroms.iter().map(|cdrom| &cdrom.image);
    let mut images = disks.chain(cdroms);
    images.any(|image| source_of(image.as_ref()) == Some(claim))
}

/// Whether a card of the block is on this network.
fn is_on(block: &Normalized, network: &str) -> bool {
    let mut networks = block.networks.iter();
    networks.any(|nic| nic.network_name.as_deref() == Some(network))
}
