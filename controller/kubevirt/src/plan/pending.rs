//! What of a change the running guest does not have yet, by field of the block.
//!
//! KubeVirt says that a restart is needed and not what for.

use std::collections::BTreeMap;
use std::fmt::Display;

use common::api::status::PendingChange;
use common::names;
use common::render::SecretRevision;
use common::render::kubevirt::types::{
    Disk, Domain, InstanceSpec, Interface, Memory, Network, Template, Volume,
};

use crate::objects::{Instance, told};
use controller_core::objects::Meta as _;

/// What brings a change into effect: the guest is started anew.
pub(super) const RESTART: &str = "Restart";
/// The guest goes on, on another node or the same: KubeVirt plugs in what it was told to by migrating.
const MIGRATION: &str = "LiveMigration";

/// What each mark of a guest is about.
const MARKS: [(&str, &str); 2] = [
    (names::ANNOTATION_USER_DATA, "cloudInit.secretRef"),
    (
        names::ANNOTATION_NETWORK_DATA,
        "cloudInit.networkDataSecretRef",
    ),
];

/// Everything that is wished and that the guest does not have. `restart`: KubeVirt says that it takes
/// one.
pub(super) fn pending(runs: &Instance, wish: &Template, restart: bool) -> Vec<PendingChange> {
    let mut all = Vec::new();
    if restart {
        all = changes(&runs.spec, &wish.spec);
    }
    for more in plugged(runs, &wish.spec)
        .into_iter()
        .chain(secrets(runs, wish))
    {
        if all.iter().all(|change| change.field != more.field) {
            all.push(more);
        }
    }
    all
}

/// Secrets that hold something else now than what the guest was started with. KubeVirt does not look.
fn secrets(runs: &Instance, wish: &Template) -> Vec<PendingChange> {
    let mut changes = Changes::by(RESTART);
    for (mark, field) in MARKS {
        let runs = runs.annotation(mark).and_then(SecretRevision::parse);
        let wish = wish.metadata.annotations.get(mark);
        let both = runs.zip(wish.and_then(|mark| SecretRevision::parse(mark)));
        if let Some((runs, wish)) = both.filter(|(runs, wish)| runs.digest != wish.digest) {
            let version = |mark: SecretRevision| format!("resourceVersion {}", mark.version);
            changes.field(field, version(runs), version(wish));
        }
    }
    changes.list
}

/// What KubeVirt is plugging into the guest. Its instance has it already, the guest does not.
fn plugged(runs: &Instance, wish: &InstanceSpec) -> Vec<PendingChange> {
    let status = &runs.status;
    let is_told = |kind: &str, value: &str| told(&status.conditions, kind, value).is_some();
    let mut changes = Changes::by(if is_told("LiveMigratable", "False") {
        RESTART
    } else {
        MIGRATION
    });
    let sockets = status.cpu.sockets;
    if let Some(sockets) = sockets.filter(|_| is_told("HotVCPUChange", "True")) {
        changes.field("cpu.sockets", sockets, wish.domain.cpu.sockets);
    }
    let memory = status.memory.guest_current.as_ref();
    if let Some(memory) = memory.filter(|_| is_told("HotMemoryChange", "True")) {
        changes.field("memory.size", memory, &wish.domain.memory.guest);
    }
    changes.list
}

/// The changes between the guest that runs and the one that is wished, in the order of the block.
fn changes(runs: &InstanceSpec, wish: &InstanceSpec) -> Vec<PendingChange> {
    let mut changes = Changes::by(RESTART);
    hardware(&mut changes, &runs.domain, &wish.domain);
    changes.items(
        "disks",
        (&disks(runs), &disks(wish)),
        |disk| &disk.name,
        disk,
    );
    media(&mut changes, runs, wish);
    changes.items(
        "networks",
        (
            &runs.domain.devices.interfaces,
            &wish.domain.devices.interfaces,
        ),
        |interface| &interface.name,
        interface,
    );
    for wished in &wish.networks {
        let same = |network: &&Network| network.name == wished.name;
        if let Some(runs) = runs.networks.iter().find(same) {
            let field = format!("networks[{}].networkName", wished.name);
            changes.field(&field, attachment(runs), attachment(wished));
        }
    }
    changes.field(
        "nodeSelector",
        labels(&runs.node_selector),
        labels(&wish.node_selector),
    );
    // What is in it is nobody's business.
    let cloud_init = |spec: &InstanceSpec| {
        let volumes = spec.volumes.iter();
        let mut volumes = volumes.filter(|volume| volume.persistent_volume_claim.is_none());
        volumes.next().cloned()
    };
    if cloud_init(runs) != cloud_init(wish) {
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

/// What is in a drive is told by its claim.
fn media(changes: &mut Changes, runs: &InstanceSpec, wish: &InstanceSpec) {
    let claim = |volume: &Volume| {
        let source = volume.persistent_volume_claim.as_ref()?;
        Some(source.claim_name.clone())
    };
    for wished in &wish.volumes {
        let same = |volume: &&Volume| volume.name == wished.name;
        let runs = runs.volumes.iter().find(same).and_then(claim);
        if let Some((runs, wishes)) = runs.zip(claim(wished)) {
            changes.field(&format!("cdroms[{}].image", wished.name), runs, wishes);
        }
    }
}

fn hardware(changes: &mut Changes, runs: &Domain, wish: &Domain) {
    let most = |domain: &Domain| domain.cpu.max_sockets.unwrap_or(domain.cpu.sockets);
    changes.field("cpu.sockets", runs.cpu.sockets, wish.cpu.sockets);
    changes.field("cpu.maxSockets", most(runs), most(wish));
    changes.field("cpu.cores", runs.cpu.cores, wish.cpu.cores);
    changes.field("cpu.threads", runs.cpu.threads, wish.cpu.threads);
    let most = |domain: &Domain| {
        let Memory { guest, max_guest } = &domain.memory;
        max_guest.as_ref().unwrap_or(guest).clone()
    };
    changes.field("memory.size", &runs.memory.guest, &wish.memory.guest);
    changes.field("memory.maxSize", most(runs), most(wish));
    changes.field("machineType", &runs.machine.r#type, &wish.machine.r#type);
    let firmware = |domain: &Domain| match &domain.firmware.bootloader.efi {
        None => "bios",
        Some(efi) if efi.secure_boot == Some(true) => "efi with secureBoot",
        Some(_) => "efi",
    };
    changes.field("firmware", firmware(runs), firmware(wish));
    let acpi = |domain: &Domain| {
        let acpi = domain.features.acpi.as_ref();
        acpi.and_then(|acpi| acpi.enabled).unwrap_or(true)
    };
    changes.field("features.acpi", acpi(runs), acpi(wish));
    let apic = |domain: &Domain| {
        let apic = domain.features.apic.as_ref();
        apic.and_then(|apic| apic.enabled).unwrap_or(true)
    };
    changes.field("features.apic", apic(runs), apic(wish));
    let hyperv = |domain: &Domain| domain.features.hyperv.is_some();
    changes.field("features.hyperv", hyperv(runs), hyperv(wish));
}

fn disk(changes: &mut Changes, path: &str, runs: &Disk, wish: &Disk) {
    let bus = |disk: &Disk| {
        let target = disk.disk.as_ref().or(disk.cdrom.as_ref());
        target.map_or_else(String::new, |target| target.bus.clone())
    };
    changes.field(&format!("{path}.bus"), bus(runs), bus(wish));
    changes.field(
        &format!("{path}.bootOrder"),
        order(runs.boot_order),
        order(wish.boot_order),
    );
}

fn interface(changes: &mut Changes, path: &str, runs: &Interface, wish: &Interface) {
    changes.field(&format!("{path}.model"), &runs.model, &wish.model);
    changes.field(
        &format!("{path}.macAddress"),
        &runs.mac_address,
        &wish.mac_address,
    );
    changes.field(
        &format!("{path}.bootOrder"),
        order(runs.boot_order),
        order(wish.boot_order),
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
    action: &'static str,
    list: Vec<PendingChange>,
}

impl Changes {
    fn by(action: &'static str) -> Self {
        let list = Vec::new();
        Self { action, list }
    }

    fn field(&mut self, field: &str, current: impl Display, desired: impl Display) {
        let (current, desired) = (current.to_string(), desired.to_string());
        if current != desired {
            self.list.push(PendingChange {
                field: field.to_owned(),
                current,
                desired,
                action: self.action.to_owned(),
            });
        }
    }

    /// Items of a list with names: what is new, what goes, what changes.
    fn items<T>(
        &mut self,
        list: &str,
        (runs, wish): (&[T], &[T]),
        name: impl Fn(&T) -> &str,
        compare: impl Fn(&mut Self, &str, &T, &T),
    ) {
        for item in runs {
            if !wish.iter().any(|wished| name(wished) == name(item)) {
                self.field(&format!("{list}[{}]", name(item)), "present", "absent");
            }
        }
        for item in wish {
            let path = format!("{list}[{}]", name(item));
            match runs.iter().find(|running| name(running) == name(item)) {
                Some(running) => compare(self, &path, running, item),
                None => self.field(&path, "absent", "present"),
            }
        }
    }
}
