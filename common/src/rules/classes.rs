//! Storage classes: checks named classes, and resolves to pins what the intent leaves open.
//!
//! ```text
//! kubevirt ── StorageClasses of the cluster; its default one
//! libvirt ─── what hosts offer; 'default', else the only one, else the cluster's default if offered
//! ```
//! A class that has not changed since the stored object keeps its pin without a lookup, so that a Machine
//! can be edited after its class was deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::choice::Backend;
use crate::api::machine::{Cdrom, Disk};
use crate::api::normalized::Normalized;
use crate::catalog::{Catalog, HostRow};
use crate::code::Code;
use crate::names;
use crate::normalize::{ClassRequest, Item, Leaf, Merged, pins_of};
use crate::violation::{Findings, Kind, Reference, Violation};
use crate::words::{did_you_mean, name_list, nearest, nearest_first};

use super::rule::{Check, Lookup, Settings, rules};
use super::{boot, disks, form};

rules! {
    "references" Check::Lookup(resolve), on MACHINES, Always {
        Refuse StorageClassNotFound = "The storage class does not exist; on libvirt, no LibvirtHost offers it."
            because "The claim would stay Pending for ever, and with it the machine. On libvirt the classes are those of `storage` of the LibvirtHosts; a StorageClass of Kubernetes is neither needed nor looked for."
            fix "Take one of the classes that the message lists."
            crd Nothing,
        Refuse NoDefaultStorageClass = "No storage class is named and there is no default one."
            because "The claim would wait for a default class, and no class is marked as one. On libvirt the default is the class `default` that a host offers, else the only class there is, else the cluster's default class if a host offers it."
            fix "Name a class at the disk, or mark one as default."
            crd Nothing,
    }
    "references" Check::Content(of_template), on TEMPLATES, Always, and [InvalidObjectName] {
        Warn TemplateStorageClassNotFound = "A MachineTemplate names a storage class that does not exist."
            because "Every Machine that takes the class over from the template would be refused."
            fix "Name a class that exists, or create it before the template is used."
            crd Nothing,
    }
    "references" Check::Value, on MACHINES_AND_TEMPLATES, Always {
        Refuse EmptyStorageClass = "The storage class is empty, and no volume to bind is named."
            because "With an empty class Kubernetes provisions no volume; without a volume to bind the claim waits for ever."
            fix "Leave the field out, name a class, or choose a volume with `volumeName` or `selector`."
            crd Some,
    }
}

/// Classes by name of disk or CD-ROM, from the stored block: of those that request a class as the stored
/// spec did, or that name the class they already have.
pub(crate) fn kept(
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
    let by_name = |merged, backend| {
        requests(merged, backend)
            .into_iter()
            .filter_map(|(name, leaf)| Some((name.value?, leaf.value)))
    };
    let former: BTreeMap<&str, Option<&str>> = by_name(old, old_block.backend).collect();
    let kept = |(name, request): (&str, Option<&str>)| {
        let class = *got.get(name)?;
        let same = former.get(name) == Some(&request) || request == Some(class);
        same.then(|| (name.to_owned(), class.to_owned()))
    };
    by_name(merged, backend).filter_map(kept).collect()
}

/// Classes by name of disk or CD-ROM, from the block that was sent with a new Machine: of those that leave the choice
/// open, and that exist. The restored Machine so gets the classes of the one that was saved, whatever class is the
/// default now.
pub(crate) fn restored(
    merged: &Merged<'_>,
    backend: Backend,
    block: &Normalized,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) -> BTreeMap<String, String> {
    let source = ClassSource::of(merged, backend, catalog);
    let pinned = pins_of(block).storage_classes;
    let mut classes = BTreeMap::new();
    for (name, leaf) in requests(merged, backend) {
        let is_open = ClassRequest::of(leaf.value).is_open();
        let pin = name.value.and_then(|name| pinned.get_key_value(name));
        let Some((name, class)) = pin.filter(|_| is_open) else {
            continue;
        };
        if source.has(class) {
            classes.insert(name.clone(), class.clone());
        } else {
            findings.miss(source.reference(class));
        }
    }
    classes
}

/// Disks and imported CD-ROMs, which need a storage class: name, and class as written.
pub(super) fn requests<'a>(
    merged: &Merged<'a>,
    backend: Backend,
) -> Vec<(Leaf<&'a str>, Leaf<&'a str>)> {
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
    let disks = disks::existing::own(merged, backend).map(of_disk);
    disks
        .chain(merged.cdroms.iter().filter(imported).map(of_cdrom))
        .collect()
}

/// The storage classes that disks on this backend can have.
pub(super) fn known(merged: &Merged<'_>, backend: Backend, catalog: &dyn Catalog) -> Vec<String> {
    ClassSource::of(merged, backend, catalog).names()
}

/// Where the storage classes of a backend come from.
enum ClassSource<'a> {
    /// The cluster.
    Cluster(&'a dyn Catalog),
    /// The LibvirtHosts.
    Hosts {
        /// All of them.
        all: Vec<Arc<HostRow>>,
        /// Those that the Machine selects, if any.
        selected: Vec<Arc<HostRow>>,
        cluster: &'a dyn Catalog,
    },
}

fn classes_of(hosts: &[Arc<HostRow>]) -> BTreeSet<&String> {
    hosts.iter().flat_map(|host| &host.classes).collect()
}

impl<'a> ClassSource<'a> {
    fn of(merged: &Merged<'_>, backend: Backend, catalog: &'a dyn Catalog) -> Self {
        if backend == Backend::Kubevirt {
            return Self::Cluster(catalog);
        }
        let all = catalog.hosts();
        let selector = merged.user().node_selector.as_ref();
        let selects = |host: &&Arc<HostRow>| selector.is_none_or(|labels| host.matches(labels));
        let mut selected: Vec<_> = all.iter().filter(selects).cloned().collect();
        if selected.is_empty() {
            selected.clone_from(&all);
        }
        Self::Hosts {
            all,
            selected,
            cluster: catalog,
        }
    }

    fn has(&self, class: &str) -> bool {
        match self {
            Self::Cluster(catalog) => catalog.storage_class(class).is_some(),
            Self::Hosts { all, .. } => all.iter().any(|host| host.classes.contains(class)),
        }
    }

    fn names(&self) -> Vec<String> {
        match self {
            Self::Cluster(catalog) => catalog.storage_class_names(),
            Self::Hosts { all, .. } => classes_of(all).into_iter().cloned().collect(),
        }
    }

    /// The class of a disk that names none.
    fn default(&self, prefer_named: bool) -> Option<String> {
        let named = names::DEFAULT_STORAGE_CLASS;
        match self {
            Self::Cluster(catalog) if prefer_named && catalog.storage_class(named).is_some() => {
                Some(named.to_owned())
            }
            Self::Cluster(catalog) => catalog.default_storage_class(),
            Self::Hosts {
                selected, cluster, ..
            } => {
                let offered = classes_of(selected);
                let by_name = |name: String| offered.contains(&name).then_some(name);
                by_name(named.to_owned())
                    .or_else(|| match offered.len() {
                        1 => offered.first().map(|only| (*only).clone()),
                        _ => None,
                    })
                    .or_else(|| by_name(cluster.default_storage_class()?))
            }
        }
    }

    /// The reference to report when the class was not found.
    fn reference(&self, class: &str) -> Reference {
        match self {
            Self::Cluster(_) => Reference::StorageClass(class.to_owned()),
            Self::Hosts { .. } => Reference::Hosts,
        }
    }

    /// Whether there is no LibvirtHost at all, which [`Code::NoLibvirtHost`] reports.
    fn has_no_host(&self) -> bool {
        matches!(self, Self::Hosts { all, .. } if all.is_empty())
    }

    /// Rule [`Code::StorageClassNotFound`].
    fn not_found(&self, leaf: Leaf<&str>, class: &str) -> Violation {
        let known = self.names();
        let nearest = did_you_mean(class, known.iter().map(String::as_str));
        let known = nearest_first(class, known.clone());
        let detail = match self {
            Self::Cluster(_) => format!("{nearest}known storage classes: {known}"),
            Self::Hosts { .. } => format!("{nearest}storage classes of LibvirtHosts: {known}"),
        };
        let code = Code::StorageClassNotFound;
        Violation::new(leaf.path, code, Kind::NotFound, detail).text(class)
    }

    /// Rule [`Code::NoDefaultStorageClass`].
    fn no_default(&self, leaf: Leaf<&str>) -> Violation {
        let known = name_list(self.names());
        let detail = match self {
            Self::Cluster(_) => format!(
                "the cluster has no default storage class; name one in storageClass. Known storage classes: {known}"
            ),
            Self::Hosts { .. } => format!(
                "no LibvirtHost offers a storage class 'default'; name one in storageClass. Storage classes of LibvirtHosts: {known}"
            ),
        };
        let code = Code::NoDefaultStorageClass;
        Violation::new(leaf.path, code, Kind::Required, detail)
    }
}

/// The storage classes of disks and CD-ROMs by name, where the intent leaves the choice open; those
/// in `kept` are not looked up. Rules [`Code::StorageClassNotFound`] and
/// [`Code::NoDefaultStorageClass`].
fn resolve(lookup: &Lookup<'_>, classes: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let Lookup {
        merged,
        backend,
        catalog,
        ..
    } = *lookup;
    let kept = classes.clone();
    let source = ClassSource::of(merged, backend, catalog);
    if source.has_no_host() {
        return;
    }
    for (name, leaf) in requests(merged, backend) {
        if name.value.is_some_and(|name| kept.contains_key(name)) {
            continue;
        }
        let class = match ClassRequest::of(leaf.value) {
            ClassRequest::NoClass => None,
            ClassRequest::Named(class) => {
                if !source.has(class) {
                    findings.deny(source.not_found(leaf, class));
                    findings.miss(source.reference(class));
                }
                None
            }
            ClassRequest::ClusterDefault { prefer_named } => {
                let class = source.default(prefer_named);
                // A template that was not found may name one.
                if class.is_none() && (prefer_named || merged.is_complete()) {
                    findings.deny(source.no_default(leaf));
                }
                class
            }
        };
        if let (Some(name), Some(class)) = (name.value, class) {
            classes.insert(name.to_owned(), class);
        }
    }
}

/// Rule [`Code::TemplateStorageClassNotFound`]: in a template a warning, because its user may
/// override the class. A class that a LibvirtHost offers is accepted too, because a template has no
/// backend. A name that no class can have is refused.
fn of_template(merged: &Merged<'_>, catalog: &dyn Catalog, _: &Settings, findings: &mut Findings) {
    for item in &merged.disks {
        let leaf = item.pick("storageClass", |disk| disk.storage_class.as_deref());
        let ClassRequest::Named(class) = ClassRequest::of(leaf.value) else {
            continue;
        };
        if !form::is_object_name(class) {
            findings.deny(form::invalid_object_name(leaf.path, class));
        } else if catalog.storage_class(class).is_none()
            && !classes_of(&catalog.hosts()).contains(&class.to_owned())
        {
            let known = catalog.storage_class_names();
            let nearest = nearest(class, known.iter().map(String::as_str));
            let fix = nearest.map_or_else(String::new, |name| format!("; did you mean '{name}'?"));
            let text = format!("{}: storage class '{class}' does not exist{fix}", leaf.path);
            findings.warn(Code::TemplateStorageClassNotFound, &text);
            findings.miss(Reference::StorageClass(class.to_owned()));
            findings.miss(Reference::Hosts);
        }
    }
}
