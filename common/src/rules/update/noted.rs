//! Changes that are accepted and do not take effect at once.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::api::choice::Backend;
use crate::api::machine::{Cdrom, CloudInit, Network};
use crate::api::normalized::{Normalized, NormalizedCdrom, NormalizedDisk, NormalizedNetwork};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Item, Merged, Named};
use crate::rules::{firmware, networks, sizing};
use crate::violation::Findings;
use crate::words::{quoted, shortened};

use super::{Field, Policy, Update};

const AT_RESTART: &str = "at the next restart";
/// Where the backend can add to a running machine what it was told to leave room for.
const PERHAPS_SOONER: &str = "at once if the backend can, else at the next restart";

/// Rules [`Code::RestartRequired`] and [`Code::NewInstanceRequired`]: what `new` changes and does not
/// have at once.
pub(crate) fn noted(update: &Update<'_>, new: &Normalized, findings: &mut Findings) {
    if update.runs() {
        let (old, merged) = (update.old, update.merged);
        let mut notes = Notes(findings);
        sizes(merged, old, new, &mut notes);
        features(merged, old, new, &mut notes);
        disks(merged, old, new, &mut notes);
        nics(merged, old, new, &mut notes);
        boot_order(merged, old, new, &mut notes);
    }
    instance(update, findings);
}

/// Takes the warnings of [`Code::RestartRequired`].
struct Notes<'f>(&'f mut Findings);

impl Notes<'_> {
    fn say(&mut self, field: Field, path: FieldPath, what: &str) {
        debug_assert_eq!(field.policy(), Policy::Restart);
        let segment = path.in_template();
        let segment = segment.map_or_else(String::new, |segment| format!("{segment} "));
        self.0
            .warn(Code::RestartRequired, &format!("{path}: {segment}{what}"));
    }

    fn field<T: PartialEq + Display>(
        &mut self,
        field: Field,
        path: FieldPath,
        (from, to): (T, T),
        when: &str,
    ) {
        if from != to {
            let what = format!("changes from {from} to {to} {when}");
            self.say(field, path, &what);
        }
    }

    /// Items of a list that come and go.
    fn items<T: Named>(
        &mut self,
        field: Field,
        list: &'static str,
        merged: &[Item<'_, T>],
        old: &[&str],
        new: &[&str],
    ) {
        for name in new.iter().filter(|name| !old.contains(name)) {
            let item = merged.iter().find(|item| item.name().value == Some(name));
            let path = item.map_or(FieldPath::field(list), |item| item.name().path);
            self.say(field, path, &format!("'{name}' is attached {AT_RESTART}"));
        }
        for name in old.iter().filter(|name| !new.contains(name)) {
            let what = format!("'{name}' is detached {AT_RESTART}");
            self.say(field, FieldPath::field(list), &what);
        }
    }
}

fn sizes(merged: &Merged<'_>, old: &Normalized, new: &Normalized, notes: &mut Notes<'_>) {
    let (was, is) = (&old.cpu, &new.cpu);
    let [cores, threads, sockets, max_sockets] = sizing::cpu_leaves(merged).map(|leaf| leaf.path);
    notes.field(Field::Cores, cores, (was.cores, is.cores), AT_RESTART);
    notes.field(
        Field::Threads,
        threads,
        (was.threads, is.threads),
        AT_RESTART,
    );
    let has_room = (was.sockets..=was.max_sockets).contains(&is.sockets);
    let when = if has_room { PERHAPS_SOONER } else { AT_RESTART };
    notes.field(Field::Sockets, sockets, (was.sockets, is.sockets), when);
    // Where none is written, the bound follows the sockets: no change of its own.
    if was.max_sockets != was.sockets || is.max_sockets != is.sockets {
        let bounds = (was.max_sockets, is.max_sockets);
        notes.field(Field::MaxSockets, max_sockets, bounds, AT_RESTART);
    }

    let (was, is) = (&old.memory, &new.memory);
    let [size, max_size] = sizing::memory_leaves(merged).map(|leaf| leaf.path);
    let has_room = (was.size..=was.max_size).contains(&is.size);
    let when = if has_room { PERHAPS_SOONER } else { AT_RESTART };
    notes.field(Field::MemorySize, size, (was.size, is.size), when);
    if was.max_size != was.size || is.max_size != is.size {
        let bounds = (was.max_size, is.max_size);
        notes.field(Field::MaxMemorySize, max_size, bounds, AT_RESTART);
    }
}

fn features(merged: &Merged<'_>, old: &Normalized, new: &Normalized, notes: &mut Notes<'_>) {
    let (was, is) = (&old.features, &new.features);
    for (field, leaf, change) in [
        (Field::Acpi, firmware::acpi(merged), (was.acpi, is.acpi)),
        (Field::Apic, firmware::apic(merged), (was.apic, is.apic)),
        (
            Field::Hyperv,
            firmware::hyperv(merged),
            (was.hyperv, is.hyperv),
        ),
    ] {
        notes.field(field, leaf.path, change, AT_RESTART);
    }
    let labels = |labels: &BTreeMap<String, String>| {
        let labels = labels.iter().map(|(key, value)| format!("{key}={value}"));
        let labels = labels.collect::<Vec<_>>().join(",");
        if labels.is_empty() {
            "none".to_owned()
        } else {
            labels
        }
    };
    let (was, is) = (&old.node_selector, &new.node_selector);
    if was != is {
        let what = format!(
            "changes from {} to {} {AT_RESTART}",
            shortened(&labels(was)),
            shortened(&labels(is))
        );
        notes.say(Field::NodeSelector, FieldPath::field("nodeSelector"), &what);
    }
}

fn names<T>(items: &[T], name: impl Fn(&T) -> &str) -> Vec<&str> {
    items.iter().map(name).collect()
}

fn disks(merged: &Merged<'_>, old: &Normalized, new: &Normalized, notes: &mut Notes<'_>) {
    let [was, is] = [old, new].map(|block| names(&block.disks, |disk| &disk.name));
    notes.items(Field::Disk, "disks", &merged.disks, &was, &is);
    for item in &merged.disks {
        let same = |disk: &&NormalizedDisk| item.name().value == Some(disk.name.as_str());
        let both = old.disks.iter().find(same).zip(new.disks.iter().find(same));
        if let Some((was, is)) = both {
            let bus = item.pick("bus", |disk| disk.bus.as_deref());
            notes.field(Field::DiskBus, bus.path, (was.bus, is.bus), AT_RESTART);
        }
    }
    let [was, is] = [old, new].map(|block| names(&block.cdroms, |cdrom| &cdrom.name));
    notes.items(Field::Cdrom, "cdroms", &merged.cdroms, &was, &is);
    for item in &merged.cdroms {
        let same = |cdrom: &&NormalizedCdrom| item.name().value == Some(cdrom.name.as_str());
        let both = old
            .cdroms
            .iter()
            .find(same)
            .zip(new.cdroms.iter().find(same));
        // On KubeVirt another medium is another claim; a libvirt host changes it in the drive.
        if let Some((was, is)) = both.filter(|_| new.backend == Backend::Kubevirt) {
            medium(item, was, is, notes);
        }
    }
}

fn medium(
    item: &Item<'_, Cdrom>,
    was: &NormalizedCdrom,
    is: &NormalizedCdrom,
    notes: &mut Notes<'_>,
) {
    if was.image != is.image {
        let image = item.pick("image", |cdrom| cdrom.image.as_ref());
        let what = format!("the medium in '{}' changes {AT_RESTART}", is.name);
        notes.say(Field::CdromImage, image.path, &what);
    }
    if let Some(sizes) = was.size.zip(is.size) {
        let size = item.pick("size", |cdrom| cdrom.size.as_ref());
        notes.field(Field::CdromSize, size.path, sizes, AT_RESTART);
    }
    let classes = was
        .storage_class
        .as_deref()
        .zip(is.storage_class.as_deref());
    if let Some((was, is)) = classes {
        let class = item.pick("storageClass", |cdrom| cdrom.storage_class.as_ref());
        let classes = (quoted(was), quoted(is));
        notes.field(Field::CdromStorageClass, class.path, classes, AT_RESTART);
    }
}

fn nics(merged: &Merged<'_>, old: &Normalized, new: &Normalized, notes: &mut Notes<'_>) {
    let [was, is] = [old, new].map(|block| names(&block.networks, |nic| &nic.name));
    notes.items(Field::Nic, "networks", &merged.networks, &was, &is);
    let network = |nic: &NormalizedNetwork| {
        let name = nic.network_name.as_deref();
        name.unwrap_or("the default network").to_owned()
    };
    let mac = |nic: &NormalizedNetwork| {
        let mac = nic.mac_address.map(|mac| mac.to_string());
        mac.unwrap_or_else(|| "the derived one".to_owned())
    };
    for item in &merged.networks {
        let same = |nic: &&NormalizedNetwork| item.name().value == Some(nic.name.as_str());
        let nics = old.networks.iter().find(same);
        let Some((was, is)) = nics.zip(new.networks.iter().find(same)) else {
            continue;
        };
        let path = |field, get: fn(&Network) -> Option<&String>| item.pick(field, get).path;
        notes.field(
            Field::NicNetwork,
            networks::network_name(item).path,
            (network(was), network(is)),
            AT_RESTART,
        );
        notes.field(
            Field::NicModel,
            path("model", |nic| nic.model.as_ref()),
            (was.model, is.model),
            AT_RESTART,
        );
        notes.field(
            Field::NicMac,
            path("macAddress", |nic| nic.mac_address.as_ref()),
            (mac(was), mac(is)),
            AT_RESTART,
        );
    }
}

/// The devices that both blocks have, in the order in which the first one boots from them. A drive
/// that was filled or emptied comes and goes with its image.
fn boot_sequence<'a>(block: &'a Normalized, other: &Normalized) -> Vec<&'a str> {
    let disks = block.disks.iter().filter_map(|disk| {
        let both = other.disks.iter().any(|it| it.name == disk.name);
        both.then_some((disk.boot_order?, disk.name.as_str()))
    });
    let cdroms = block.cdroms.iter().filter_map(|cdrom| {
        let both = other.cdroms.iter().any(|it| same_filling(it, cdrom));
        both.then_some((cdrom.boot_order?, cdrom.name.as_str()))
    });
    let nics = block.networks.iter().filter_map(|nic| {
        let both = other.networks.iter().any(|it| it.name == nic.name);
        both.then_some((nic.boot_order?, nic.name.as_str()))
    });
    let mut sequence: Vec<_> = disks.chain(cdroms).chain(nics).collect();
    sequence.sort_unstable();
    sequence.into_iter().map(|(_, name)| name).collect()
}

fn same_filling(one: &NormalizedCdrom, other: &NormalizedCdrom) -> bool {
    one.name == other.name && one.image.is_some() == other.image.is_some()
}

fn boot_order(merged: &Merged<'_>, old: &Normalized, new: &Normalized, notes: &mut Notes<'_>) {
    if boot_sequence(old, new) != boot_sequence(new, old) {
        let leaf = merged.pick(
            "bootOrder",
            |spec| spec.boot_order.as_ref(),
            |template| template.boot_order.as_ref(),
        );
        let what = format!("the order of the devices changes {AT_RESTART}");
        notes.say(Field::BootOrder, leaf.path, &what);
    }
}

/// Rule [`Code::NewInstanceRequired`]. What the documents say is not repeated.
fn instance(update: &Update<'_>, findings: &mut Findings) {
    let nothing = CloudInit::default();
    let old = update.old_spec.cloud_init.as_ref().unwrap_or(&nothing);
    let new = update.merged.user().cloud_init.as_ref();
    let new = new.unwrap_or(&nothing);
    for (field, changed) in [
        (Field::UserData, old.user_data != new.user_data),
        (Field::NetworkData, old.network_data != new.network_data),
        (Field::MetaData, old.meta_data != new.meta_data),
        (Field::UserDataSecret, old.secret_ref != new.secret_ref),
        (
            Field::NetworkDataSecret,
            old.network_data_secret_ref != new.network_data_secret_ref,
        ),
    ] {
        debug_assert_eq!(field.policy(), Policy::NewInstance);
        if changed {
            let text = format!(
                "spec.{}: cloud-init acts on the change on a new instance only: create the Machine anew, or run 'cloud-init clean' in the guest",
                field.path()
            );
            findings.warn(Code::NewInstanceRequired, &text);
        }
    }
}
