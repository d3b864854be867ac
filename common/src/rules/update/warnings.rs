//! Warnings of changes that are accepted and do not take effect at once, from the table of effects.

use crate::api::choice::{Backend, Choice as _, DisplayType, MachineType, VideoModel};
use crate::api::machine::{CloudInit, Network};
use crate::api::normalized::{Normalized, NormalizedCdrom, NormalizedNetwork};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::Merged;
use crate::render::libvirt::hotplug;
use crate::rules::nic_addresses::written;
use crate::rules::rule::{Check, Update, rules};
use crate::rules::{display, networks};
use crate::violation::Findings;

use super::announced::{Fit, Warnings};
use super::effects::{Effect, Field};
use super::volumes::{self, find_disk};
use super::{hardware, sizes};

rules! {
    "update" Check::Effect(at_restart), on MACHINES, Update {
        Warn RestartRequired = "A running machine has the change after its next restart."
            because "The change is accepted; until the restart it is listed in `status.pendingChanges`."
            fix "Restart the machine when it suits."
            crd Nothing scope Change,
    }
    "update" Check::Effect(on_new_instance), on MACHINES, Update {
        Warn NewInstanceRequired = "Cloud-init reads the change on a new instance only."
            because "cloud-init acts on most of its data once per instance, and the Machine stays the same instance."
            fix "Recreate the Machine, or run `cloud-init clean` in the guest and restart it."
            crd Nothing scope Change,
    }
}

/// Rule [`Code::RestartRequired`]: changes in `new` that a running machine gets only after a restart. Notes name what has
/// no effect before a move, also of a machine that is off.
fn at_restart(update: &Update<'_>, new: &Normalized, findings: &mut Findings) {
    if !update.runs && !update.is_bound {
        return;
    }
    let (old, merged) = (update.old, update.merged);
    let mut warnings = Warnings::of(update, new, findings);
    sizes::warn(merged, old, new, &mut warnings);
    display(merged, old, new, &mut warnings);
    hardware::warn(merged, old, new, &mut warnings);
    volumes::warn(merged, old, new, &mut warnings);
    nics(merged, old, new, &mut warnings);
    boot_order(merged, old, new, &mut warnings);
    for (field, _) in cloud_init(update)
        .into_iter()
        .filter(|(_, changed)| *changed)
    {
        if field.effect(update.backend) == Effect::Restart {
            let path = FieldPath::field(field.path());
            warnings.add(field, path, false, "changes; cloud-init acts on it");
        }
    }
}

fn display(merged: &Merged<'_>, old: &Normalized, new: &Normalized, warnings: &mut Warnings<'_>) {
    let kinds = (old.display_type(), new.display_type());
    let path = display::kind(merged).path;
    warnings.field(Field::DisplayType, path, kinds, false);
    let model = |block: &Normalized| match (block.video(), block.backend) {
        (Some(model), _) => model.as_str(),
        (None, Backend::Libvirt) => VideoModel::Vga.as_str(),
        (None, Backend::Kubevirt) => "the default",
    };
    if kinds == (DisplayType::Vnc, DisplayType::Vnc) {
        let path = display::video(merged).path;
        warnings.field(Field::DisplayVideo, path, (model(old), model(new)), false);
    }
    let log = |block: &Normalized| match (block.console_log(), block.backend) {
        (Some(log), _) => log.to_string(),
        (None, Backend::Libvirt) => false.to_string(),
        (None, Backend::Kubevirt) => "the default".to_owned(),
    };
    let path = display::log(merged).path;
    warnings.field(Field::ConsoleLog, path, (log(old), log(new)), false);
}

/// The network cards of a block, each with whether it can be plugged into the guest of `running`, or out of it if
/// `leaves`.
fn pluggable_nics<'b>(
    block: &'b Normalized,
    running: &Normalized,
    leaves: bool,
) -> Vec<(&'b str, Fit)> {
    let is_q35 = running.machine_type == MachineType::Q35;
    let fits = |nic: &NormalizedNetwork| match block.backend {
        // KubeVirt plugs in bridged cards only, and none out that leaves the VirtualMachine.
        Backend::Kubevirt => Fit::new(!leaves && nic.network_name.is_some(), false),
        Backend::Libvirt => {
            let fits = hotplug::takes_nic(nic.model.as_str(), is_q35, running.features.acpi);
            Fit::new(fits, is_q35)
        }
    };
    let nics = block.networks.iter();
    nics.map(|nic| (nic.name.as_str(), fits(nic))).collect()
}

fn nics(merged: &Merged<'_>, old: &Normalized, new: &Normalized, warnings: &mut Warnings<'_>) {
    let was = pluggable_nics(old, &warnings.runs, true);
    let is = pluggable_nics(new, &warnings.runs, false);
    warnings.items(Field::Nic, "networks", &merged.networks, &was, &is);
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
        warnings.field(
            Field::NicNetwork,
            networks::network_name(item).path,
            (network(was), network(is)),
            // Another binding than the bridge is another card.
            was.network_name.is_some() && is.network_name.is_some(),
        );
        warnings.field(
            Field::NicModel,
            path("model", |nic| nic.model.as_ref()),
            (was.model, is.model),
            false,
        );
        warnings.field(
            Field::NicMac,
            path("macAddress", |nic| nic.mac_address.as_ref()),
            (mac(was), mac(is)),
            false,
        );
    }
}

/// The devices that both blocks have, in the boot order of `block`. A CD-ROM drive counts only if it has an
/// image in both or in neither, because an empty drive has no boot order.
fn boot_sequence<'a>(block: &'a Normalized, other: &Normalized) -> Vec<&'a str> {
    let disks = block.all_disks().into_iter().filter_map(|disk| {
        let both = find_disk(other, disk.name()).is_some();
        both.then_some((disk.boot_order()?, disk.name()))
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

fn boot_order(
    merged: &Merged<'_>,
    old: &Normalized,
    new: &Normalized,
    warnings: &mut Warnings<'_>,
) {
    if boot_sequence(old, new) != boot_sequence(new, old) {
        let leaf = merged.pick(
            "bootOrder",
            |spec| spec.boot_order.as_ref(),
            |template| template.boot_order.as_ref(),
        );
        let what = "the order of the devices changes";
        warnings.add(Field::BootOrder, leaf.path, false, what);
    }
}

/// The fields of cloud-init's data, each with whether it changes. Contents are not repeated.
fn cloud_init(update: &Update<'_>) -> [(Field, bool); 8] {
    let template = update.old.template.as_ref();
    let template = template.and_then(|pin| pin.content.cloud_init.as_ref());
    let old = CloudInit::merged(update.old_spec.cloud_init.as_ref(), template).unwrap_or_default();
    let new = update.merged.cloud_init().unwrap_or_default();
    [
        (Field::CloudConfig, old.cloud_config != new.cloud_config),
        (
            Field::NetworkConfig,
            old.network_config != new.network_config,
        ),
        (Field::UserData, old.user_data != new.user_data),
        (Field::NetworkData, old.network_data != new.network_data),
        (Field::MetaData, old.meta_data != new.meta_data),
        (Field::UserDataSecret, old.secret_ref != new.secret_ref),
        (
            Field::NetworkDataSecret,
            old.network_data_secret_ref != new.network_data_secret_ref,
        ),
        (Field::Sysprep, old.sysprep != new.sysprep),
    ]
}

/// Rule [`Code::NewInstanceRequired`].
fn on_new_instance(update: &Update<'_>, new: &Normalized, findings: &mut Findings) {
    let cloud_init = cloud_init(update).into_iter();
    let cloud_init = cloud_init.filter(|(_, changed)| *changed);
    let cloud_init = cloud_init.map(|(field, _)| (field, FieldPath::field(field.path())));
    let addresses = update.merged.networks.iter().filter(|item| {
        let card = |block: &Normalized| {
            let mut nics = block.networks.iter();
            let nic = nics.find(|nic| item.name().value == Some(nic.name.as_str()))?;
            Some(nic.ip_addresses.clone())
        };
        card(update.old)
            .zip(card(new))
            .is_some_and(|(was, is)| was != is)
    });
    let addresses = addresses.map(|item| (Field::NicAddresses, written(item).path));
    for (field, path) in cloud_init.chain(addresses) {
        if field.effect(update.backend) == Effect::NewInstance && field == Field::Sysprep {
            let text = format!(
                "{path}: Windows Setup reads the change on a new instance only: recreate the Machine"
            );
            findings.warn(Code::NewInstanceRequired, &text);
        } else if field.effect(update.backend) == Effect::NewInstance {
            let text = format!(
                "{path}: cloud-init acts on the change on a new instance only: recreate the Machine, or run 'cloud-init clean' in the guest"
            );
            findings.warn(Code::NewInstanceRequired, &text);
        }
    }
}
