//! Templates, storage classes and networks against the catalog: what an intent refers to, resolved
//! to pins.
//!
//! A reference that did not change since the old object keeps its pin without a look at the
//! catalog: what was deleted since stays editable.

use std::collections::BTreeMap;

use crate::api::choice::Backend;
use crate::api::machine::{Cdrom, Disk};
use crate::api::normalized::{Normalized, TemplatePin};
use crate::api::schema::TEXT_MAX;
use crate::catalog::{Catalog, TemplateRow, built_in, built_in_names};
use crate::code::Code;
use crate::names;
use crate::normalize::{ClassRequest, Intent, Item, Leaf, Merged, Place, TemplateChoice};
use crate::violation::{Findings, Kind, Reference, Violation};
use crate::words::{did_you_mean, name_list, nearest, quoted};

use super::networks::network_name;
use super::{boot, form, limits};

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
        findings.deny(Violation::new(Place::TEMPLATE, code, Kind::Invalid, detail).text(field));
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
    let Some((name, place)) = intent.template() else {
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
        findings.deny(template_not_found(name, place, catalog));
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

fn template_not_found(name: &str, place: Place, catalog: &dyn Catalog) -> Violation {
    let known: Vec<String> = built_in_names()
        .map(str::to_owned)
        .chain(catalog.template_names())
        .collect();
    let nearest = did_you_mean(name, known.iter().map(String::as_str));
    let detail = format!("{nearest}known templates: {}", name_list(known.clone()));
    Violation::new(place, Code::TemplateNotFound, Kind::NotFound, detail).text(name)
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

/// The classes of disks and CD-ROMs that ask for one as the old object did, by name: what its block
/// resolved them to.
pub(crate) fn kept_classes(
    merged: &Merged<'_>,
    backend: Backend,
    old: &Merged<'_>,
    old_block: &Normalized,
) -> BTreeMap<String, String> {
    let disks = old_block
        .disks
        .iter()
        .map(|disk| (disk.name.as_str(), disk.storage_class.as_str()));
    let cdroms = old_block
        .cdroms
        .iter()
        .filter_map(|cdrom| Some((cdrom.name.as_str(), cdrom.storage_class.as_deref()?)));
    let got: BTreeMap<&str, &str> = disks.chain(cdroms).collect();
    let asks = |merged, backend| {
        requests(merged, backend)
            .into_iter()
            .filter_map(|(name, leaf)| Some((name.value?, leaf.value)))
    };
    let asked: BTreeMap<&str, Option<&str>> = asks(old, old_block.backend).collect();
    asks(merged, backend)
        .filter(|(name, request)| asked.get(name) == Some(request))
        .filter_map(|(name, _)| Some((name.to_owned(), (*got.get(name)?).to_owned())))
        .collect()
}

/// Who needs a storage class: its name, and how it asks.
fn requests<'a>(merged: &Merged<'a>, backend: Backend) -> Vec<(Leaf<&'a str>, Leaf<&'a str>)> {
    let of_disk = |item: &Item<'a, Disk>| {
        (
            item.name(),
            item.pick("storageClass", |disk| disk.storage_class.as_deref()),
        )
    };
    let of_cdrom = |item: &Item<'a, Cdrom>| {
        (
            item.name(),
            item.pick("storageClass", |cdrom| cdrom.storage_class.as_deref()),
        )
    };
    let imported = |item: &&Item<'a, Cdrom>| boot::is_imported(item, backend);
    let disks = merged.disks.iter().map(of_disk);
    disks
        .chain(merged.cdroms.iter().filter(imported).map(of_cdrom))
        .collect()
}

/// The storage classes of disks and CD-ROMs by name, where the intent leaves the choice open; those
/// in `kept` are not looked up. Rules [`Code::StorageClassNotFound`] and
/// [`Code::NoDefaultStorageClass`].
pub(crate) fn storage_classes(
    merged: &Merged<'_>,
    backend: Backend,
    kept: &BTreeMap<String, String>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) -> BTreeMap<String, String> {
    let mut pins = kept.clone();
    for (name, leaf) in requests(merged, backend) {
        if name.value.is_some_and(|name| kept.contains_key(name)) {
            continue;
        }
        let class = match ClassRequest::of(leaf.value) {
            ClassRequest::NoClass => None,
            ClassRequest::Named(class) => {
                if catalog.storage_class(class).is_none() {
                    findings.deny(class_not_found(leaf, class, catalog));
                    findings.miss(Reference::StorageClass(class.to_owned()));
                }
                None
            }
            ClassRequest::ClusterDefault { prefer_named } => {
                let class = default_class(prefer_named, catalog);
                // A template that does not exist may have named one.
                if class.is_none() && (prefer_named || merged.is_complete()) {
                    findings.deny(no_default_class(leaf, catalog));
                }
                class
            }
        };
        if let (Some(name), Some(class)) = (name.value, class) {
            pins.insert(name.to_owned(), class);
        }
    }
    pins
}

fn default_class(prefer_named: bool, catalog: &dyn Catalog) -> Option<String> {
    let named = names::DEFAULT_STORAGE_CLASS;
    if prefer_named && catalog.storage_class(named).is_some() {
        Some(named.to_owned())
    } else {
        catalog.default_storage_class()
    }
}

fn class_not_found(leaf: Leaf<&str>, class: &str, catalog: &dyn Catalog) -> Violation {
    let known = catalog.storage_class_names();
    let nearest = did_you_mean(class, known.iter().map(String::as_str));
    let detail = format!(
        "{nearest}known storage classes: {}",
        name_list(known.clone())
    );
    Violation::new(
        leaf.place,
        Code::StorageClassNotFound,
        Kind::NotFound,
        detail,
    )
    .text(class)
}

fn no_default_class(leaf: Leaf<&str>, catalog: &dyn Catalog) -> Violation {
    let known = name_list(catalog.storage_class_names());
    let detail = format!(
        "the cluster has no default storage class; name one in storageClass. Known storage classes: {known}"
    );
    Violation::new(
        leaf.place,
        Code::NoDefaultStorageClass,
        Kind::Required,
        detail,
    )
}

/// Rule [`Code::TemplateStorageClassNotFound`]: in a template a warning, because its user may
/// override the class. A name that no class can have is refused.
pub(crate) fn template_storage_classes(
    merged: &Merged<'_>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) {
    for item in &merged.disks {
        let leaf = item.pick("storageClass", |disk| disk.storage_class.as_deref());
        let ClassRequest::Named(class) = ClassRequest::of(leaf.value) else {
            continue;
        };
        if !form::is_object_name(class) {
            findings.deny(form::invalid_object_name(leaf.place, class));
        } else if catalog.storage_class(class).is_none() {
            let known = catalog.storage_class_names();
            let nearest = nearest(class, known.iter().map(String::as_str));
            let fix = nearest.map_or_else(String::new, |name| format!("; did you mean '{name}'?"));
            let text = format!(
                "{}: storage class '{class}' does not exist{fix}",
                leaf.place
            );
            findings.warn(Code::TemplateStorageClassNotFound, &text);
            findings.miss(Reference::StorageClass(class.to_owned()));
        }
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
            || catalog.has_network(namespace, name)
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
                        leaf.place,
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
                    leaf.place
                );
                findings.warn(
                    Code::NetworkConfigurationNotFound,
                    text.trim_end_matches([' ', ',']),
                );
            }
        }
    }
}

/// The networks a block refers to.
pub(crate) fn networks_of(block: &Normalized) -> Vec<String> {
    block
        .networks
        .iter()
        .filter_map(|nic| nic.network_name.clone())
        .collect()
}
