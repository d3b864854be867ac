//! Changes that the running guest does not have yet, by field of the block.
//!
//! KubeVirt reports that a restart is needed, but not for which fields.

use std::collections::BTreeMap;
use std::fmt::Display;

use common::api::choice::{Backend, Choice as _};
use common::api::status::PendingChange;
use common::names;
use common::render::SecretRevision;
use common::render::kubevirt::types::{
    Disk, Domain, InstanceSpec, Interface, Memory, Network, Template, Volume,
};
use common::rules::update::pending_action;

use crate::objects::{Instance, find_condition};
use controller_core::objects::Meta as _;

/// Field of the spec for each annotation that records a Secret's revision.
const ANNOTATIONS: [(&str, &str); 2] = [
    (names::ANNOTATION_USER_DATA, "cloudInit.secretRef"),
    (
        names::ANNOTATION_NETWORK_DATA,
        "cloudInit.networkDataSecretRef",
    ),
];

/// Every desired change that the guest does not have. `restart`: KubeVirt reports that a restart is required.
pub(super) fn pending(runs: &Instance, desired: &Template, restart: bool) -> Vec<PendingChange> {
    let mut all = Vec::new();
    if restart {
        all = changes(&runs.spec, &desired.spec);
    }
    for more in plugged(runs, &desired.spec)
        .into_iter()
        .chain(secrets(runs, desired))
    {
        if all.iter().all(|change| change.field != more.field) {
            all.push(more);
        }
    }
    all
}

/// Secrets whose content differs from what the guest was started with. KubeVirt does not compare them.
fn secrets(runs: &Instance, desired: &Template) -> Vec<PendingChange> {
    let mut changes = Changes::new(false);
    for (key, field) in ANNOTATIONS {
        let runs = runs.annotation(key).and_then(SecretRevision::parse);
        let desired = desired.metadata.annotations.get(key);
        let both = runs.zip(desired.and_then(|it| SecretRevision::parse(it)));
        if let Some((runs, desired)) = both.filter(|(runs, desired)| runs.digest != desired.digest)
        {
            let version = |it: SecretRevision| format!("resourceVersion {}", it.version);
            changes.field(field, version(runs), version(desired));
        }
    }
    changes.list
}

/// Resources that KubeVirt is plugging in: its instance already has them, the guest does not.
fn plugged(runs: &Instance, desired: &InstanceSpec) -> Vec<PendingChange> {
    let status = &runs.status;
    let has_condition =
        |kind: &str, value: &str| find_condition(&status.conditions, kind, value).is_some();
    // KubeVirt plugs in by migrating the guest. One that cannot migrate needs a restart.
    let mut changes = Changes::new(!has_condition("LiveMigratable", "False"));
    let sockets = status.cpu.sockets;
    if let Some(sockets) = sockets.filter(|_| has_condition("HotVCPUChange", "True")) {
        changes.field("cpu.sockets", sockets, desired.domain.cpu.sockets);
    }
    let memory = status.memory.guest_current.as_ref();
    if let Some(memory) = memory.filter(|_| has_condition("HotMemoryChange", "True")) {
        changes.field("memory.size", memory, &desired.domain.memory.guest);
    }
    changes.list
}

/// The differences between the running and the desired guest, in the order of the block.
fn changes(runs: &InstanceSpec, desired: &InstanceSpec) -> Vec<PendingChange> {
    let mut changes = Changes::new(false);
    hardware(&mut changes, &runs.domain, &desired.domain);
    changes.items(
        "disks",
        (&disks(runs), &disks(desired)),
        |disk| &disk.name,
        disk,
    );
    media(&mut changes, runs, desired);
    changes.items(
        "networks",
        (
            &runs.domain.devices.interfaces,
            &desired.domain.devices.interfaces,
        ),
        |interface| &interface.name,
        interface,
    );
    for wanted in &desired.networks {
        let same = |network: &&Network| network.name == wanted.name;
        if let Some(runs) = runs.networks.iter().find(same) {
            let field = format!("networks[{}].networkName", wanted.name);
            changes.field(&field, attachment(runs), attachment(wanted));
        }
    }
    changes.field(
        "nodeSelector",
        labels(&runs.node_selector),
        labels(&desired.node_selector),
    );
    // Cloud-init data may hold passwords, so the status shows neither value.
    let cloud_init = |spec: &InstanceSpec| {
        let volumes = spec.volumes.iter();
        let mut volumes = volumes.filter(|volume| volume.persistent_volume_claim.is_none());
        volumes.next().cloned()
    };
    if cloud_init(runs) != cloud_init(desired) {
        changes.field("cloudInit", "as it was", "as it is now");
    }
    changes.list
}

/// The disks of the block.
fn disks(spec: &InstanceSpec) -> Vec<Disk> {
    let disks = spec.domain.devices.disks.iter();
    let ours = disks.filter(|disk| disk.name != names::CLOUD_INIT_DISK);
    ours.cloned().collect()
}

/// The medium in a drive is identified by its claim.
fn media(changes: &mut Changes, runs: &InstanceSpec, desired: &InstanceSpec) {
    let claim = |volume: &Volume| {
        let source = volume.persistent_volume_claim.as_ref()?;
        Some(source.claim_name.clone())
    };
    for wanted in &desired.volumes {
        let same = |volume: &&Volume| volume.name == wanted.name;
        let runs = runs.volumes.iter().find(same).and_then(claim);
        if let Some((runs, wanted_now)) = runs.zip(claim(wanted)) {
            changes.field(&format!("cdroms[{}].image", wanted.name), runs, wanted_now);
        }
    }
}

fn hardware(changes: &mut Changes, runs: &Domain, desired: &Domain) {
    let most = |domain: &Domain| domain.cpu.max_sockets.unwrap_or(domain.cpu.sockets);
    changes.field("cpu.sockets", runs.cpu.sockets, desired.cpu.sockets);
    changes.field("cpu.maxSockets", most(runs), most(desired));
    changes.field("cpu.cores", runs.cpu.cores, desired.cpu.cores);
    changes.field("cpu.threads", runs.cpu.threads, desired.cpu.threads);
    let most = |domain: &Domain| {
        let Memory { guest, max_guest } = &domain.memory;
        max_guest.as_ref().unwrap_or(guest).clone()
    };
    changes.field("memory.size", &runs.memory.guest, &desired.memory.guest);
    changes.field("memory.maxSize", most(runs), most(desired));
    changes.field("machineType", &runs.machine.r#type, &desired.machine.r#type);
    let firmware = |domain: &Domain| match &domain.firmware.bootloader.efi {
        None => "bios",
        Some(efi) if efi.secure_boot == Some(true) => "efi with secureBoot",
        Some(_) => "efi",
    };
    changes.field("firmware", firmware(runs), firmware(desired));
    let acpi = |domain: &Domain| {
        let acpi = domain.features.acpi.as_ref();
        acpi.and_then(|acpi| acpi.enabled).unwrap_or(true)
    };
    changes.field("features.acpi", acpi(runs), acpi(desired));
    let apic = |domain: &Domain| {
        let apic = domain.features.apic.as_ref();
        apic.and_then(|apic| apic.enabled).unwrap_or(true)
    };
    changes.field("features.apic", apic(runs), apic(desired));
    let hyperv = |domain: &Domain| domain.features.hyperv.is_some();
    changes.field("features.hyperv", hyperv(runs), hyperv(desired));
}

fn disk(changes: &mut Changes, path: &str, runs: &Disk, desired: &Disk) {
    let bus = |disk: &Disk| {
        let target = disk.disk.as_ref().or(disk.cdrom.as_ref());
        target.map_or_else(String::new, |target| target.bus.clone())
    };
    changes.field(&format!("{path}.bus"), bus(runs), bus(desired));
    changes.field(
        &format!("{path}.bootOrder"),
        order(runs.boot_order),
        order(desired.boot_order),
    );
}

fn interface(changes: &mut Changes, path: &str, runs: &Interface, desired: &Interface) {
    changes.field(&format!("{path}.model"), &runs.model, &desired.model);
    changes.field(
        &format!("{path}.macAddress"),
        &runs.mac_address,
        &desired.mac_address,
    );
    changes.field(
        &format!("{path}.bootOrder"),
        order(runs.boot_order),
        order(desired.boot_order),
    );
}

fn order(order: Option<u32>) -> String {
    order.map_or_else(|| "none".to_owned(), |order| order.to_string())
}

fn attachment(network: &Network) -> &str {
    let multus = network.multus.as_ref();
    multus.map_or("pod", |multus| &multus.network_name)
}

fn labels(labels: &BTreeMap<String, String>) -> String {
    let labels: Vec<_> = labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    labels.join(",")
}

#[derive(Debug)]
struct Changes {
    /// Whether KubeVirt can apply these changes to the running guest.
    in_progress: bool,
    list: Vec<PendingChange>,
}

impl Changes {
    fn new(in_progress: bool) -> Self {
        let list = Vec::new();
        Self { in_progress, list }
    }

    fn field(&mut self, field: &str, current: impl Display, desired: impl Display) {
        let (current, desired) = (current.to_string(), desired.to_string());
        if current != desired {
            let action = pending_action(Backend::Kubevirt, field, self.in_progress);
            self.list.push(PendingChange {
                field: field.to_owned(),
                current,
                desired,
                action: action.as_str().to_owned(),
            });
        }
    }

    /// Compares lists of named items: added, removed and changed ones.
    fn items<T>(
        &mut self,
        list: &str,
        (runs, desired): (&[T], &[T]),
        name: impl Fn(&T) -> &str,
        compare: impl Fn(&mut Self, &str, &T, &T),
    ) {
        for item in runs {
            if !desired.iter().any(|wanted| name(wanted) == name(item)) {
                self.field(&format!("{list}[{}]", name(item)), "present", "absent");
            }
        }
        for item in desired {
            let path = format!("{list}[{}]", name(item));
            match runs.iter().find(|running| name(running) == name(item)) {
                Some(running) => compare(self, &path, running, item),
                None => self.field(&path, "absent", "present"),
            }
        }
    }
}
