//! Templates and networks against the catalog: what an intent refers to.
//!
//! A reference that did not change since the old object keeps its pin without a look at the
//! catalog: what was deleted since stays editable.

use crate::api::choice::Backend;
use crate::api::machine::Image;
use crate::api::normalized::{Normalized, NormalizedDisk, TemplatePin};
use crate::bounds::TEXT_MAX;
use crate::catalog::{Catalog, MachineName, TemplateRow, built_in, built_in_names};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::names;
use crate::normalize::{Intent, Leaf, Merged, TemplateChoice};
use crate::violation::{Findings, Kind, Reference, Violation};
use crate::words::{did_you_mean, name_list, quoted};

use super::networks::network_name;
use super::{form, limits};

/// Where the text of the refresh annotation stands.
const REFRESH: &str = "metadata.annotations[machine.vitistack.io/refresh-template]";

/// Whether a missing `NetworkConfiguration` is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingNetworks {
    /// Accepted with a warning; the controller waits for it.
    #[default]
    Warn,
    /// Refused.
    Deny,
}

/// Where a kept template comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kept<'a> {
    /// Nothing is kept.
    Nothing,
    /// The old object's pin.
    Old(&'a TemplatePin),
    /// The pin of a block that came with a new object: a restored Machine.
    Restored(&'a TemplatePin),
}

/// Rule [`Code::TemplateLabelConflict`], if the field names a template that exists: an unknown one
/// is a fault of its own, and what the label says may well be the fix.
pub(crate) fn template_label(
    intent: &Intent<'_>,
    template: &TemplateChoice,
    findings: &mut Findings,
) {
    if let (Some(field), Some(label)) = (intent.spec.template.as_deref(), intent.template_label)
        && field != label
        && *template != TemplateChoice::Unknown
    {
        let detail = format!(
            "the label {} says {}; make both the same, or remove one",
            names::LABEL_TEMPLATE,
            quoted(label)
        );
        let code = Code::TemplateLabelConflict;
        findings.deny(Violation::new(FieldPath::TEMPLATE, code, Kind::Invalid, detail).text(field));
    }
}

/// The template of an intent: rules [`Code::TemplateNotFound`], [`Code::TemplateDeprecated`],
/// [`Code::RestoredTemplate`]. `refresh` is the text of the refresh annotation.
pub(crate) fn template(
    intent: &Intent<'_>,
    refresh: Option<&str>,
    kept: Kept<'_>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) -> TemplateChoice {
    let Some((name, path)) = intent.template() else {
        return TemplateChoice::None;
    };
    let asked_again = |pin: &TemplatePin| refresh.is_some() && refresh != pin.refresh.as_deref();
    match kept {
        Kept::Old(pin) if pin.name == name && !asked_again(pin) => {
            return TemplateChoice::Pinned(Box::new(pin.clone()));
        }
        Kept::Restored(pin) if pin.name == name && !asked_again(pin) => {
            restored(pin, catalog, findings);
            return TemplateChoice::Pinned(Box::new(pin.clone()));
        }
        Kept::Nothing | Kept::Old(_) | Kept::Restored(_) => {}
    }
    // The text is kept in the block.
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
    let nearest = did_you_mean(name, known.iter().map(String::as_str));
    let detail = format!("{nearest}known templates: {}", name_list(known.clone()));
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
            &format!("template '{name}' has changed since; the restored Machine keeps what it had"),
        ),
        None => findings.warn(
            Code::RestoredTemplate,
            &format!("template '{name}' is gone; the restored Machine keeps what it had"),
        ),
    }
}

/// Rule [`Code::NetworkConfigurationNotFound`], for references that `old` does not have.
pub(crate) fn networks(
    merged: &Merged<'_>,
    old: &[String],
    namespace: &str,
    missing: MissingNetworks,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) {
    for item in &merged.networks {
        let leaf = network_name(item);
        let Some(name) = leaf.value else {
            continue;
        };
        if old.iter().any(|known| known == name)
            || catalog.network(namespace, name).is_some()
            || !form::is_label(name)
        {
            continue;
        }
        let known = catalog.network_names(namespace);
        let nearest = did_you_mean(name, known.iter().map(String::as_str));
        findings.miss(Reference::Network(name.to_owned()));
        match missing {
            MissingNetworks::Deny => {
                let detail = format!(
                    "{nearest}known NetworkConfigurations: {}",
                    name_list(known.clone())
                );
                findings.deny(
                    Violation::new(
                        leaf.path,
                        Code::NetworkConfigurationNotFound,
                        Kind::NotFound,
                        detail,
                    )
                    .text(name),
                );
            }
            MissingNetworks::Warn => {
                let text = format!(
                    "{}: no NetworkConfiguration '{name}' yet, {nearest}",
                    leaf.path
                );
                findings.warn(
                    Code::NetworkConfigurationNotFound,
                    text.trim_end_matches([' ', ',']),
                );
            }
        }
    }
}

/// Rules [`Code::SourceClaimNotFound`] and [`Code::CopyOfItself`], for copies that `old` does not have.
pub(crate) fn source_claims(
    merged: &Merged<'_>,
    backend: Backend,
    old: Option<&Normalized>,
    machine: MachineName<'_>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) {
    if backend != Backend::Kubevirt {
        return;
    }
    let field = "image.persistentVolumeClaim";
    for item in &merged.disks {
        let source = item.pick(field, |disk| source_of(disk.image.as_ref()));
        if !own_copy(item.name(), source, old, machine, findings) {
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

/// Rule [`Code::CopyOfItself`]; whether it is one. The Machine may have no name yet.
fn own_copy(
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
        findings.deny(fault.text(claim).given(disk.path));
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
        let text = format!("{}: no PersistentVolumeClaim '{claim}' yet", source.path);
        findings.warn(Code::SourceClaimNotFound, &text);
    }
}

fn is_source(block: &Normalized, claim: &str) -> bool {
    let disks = block.disks.iter().map(|disk| &disk.image);
    let cdroms = block.cdroms.iter().map(|cdrom| &cdrom.image);
    let mut images = disks.chain(cdroms);
    images.any(|image| source_of(image.as_ref()) == Some(claim))
}

/// The networks a block refers to.
pub(crate) fn networks_of(block: &Normalized) -> Vec<String> {
    block
        .networks
        .iter()
        .filter_map(|nic| nic.network_name.clone())
        .collect()
}
