//! A change of each field of a stored Machine has the effect that the table of update effects states, and
//! the backend applies it in that way.
//!
//! The file is long because it has one change for each row of the table.

use std::collections::BTreeMap;

use common::admission::{ObjectKind, Verdict};
use common::api::choice::{Backend, PendingAction};
use common::api::machine::CloudInit;
use common::api::normalized::Normalized;
use common::render::kubevirt::{VirtualMachineInput, virtual_machine};
use common::render::libvirt::{
    CpuMode, Domain, DomainInput, GuestLimits, NicAttachment, NicPolicy, NicSource, Pinning,
    PoolVolume, VirtType, VolumeFormat, domain,
};
use common::render::{CloudInitPlan, Identity};
use common::rules::update::{Effect, Field, pending_action};
use serde_json::{Value, json};

use crate::harness::{Admitted, ReviewContext, machine, merge_patch};

/// A spec in which every field can be changed.
fn before() -> Value {
    json!({
        "template": "small",
        "resources": {"cpu": {"cores": 2}, "memory": {"size": "4Gi"}},
        "disks": [
            {"name": "data", "size": "10Gi"},
            {"name": "bound", "size": "1Gi", "volumeName": "pv-1"},
            {"name": "chosen", "size": "1Gi", "selector": {"matchLabels": {"tier": "a"}}},
            {"name": "filled", "size": "1Gi", "image": {"url": "https://images.example.com/a"}},
            {"name": "old", "claimName": "common"},
        ],
        "networks": [{"name": "eth0"}, {"name": "eth1", "networkName": "prod-network"}],
        "cdroms": [{"name": "iso", "size": "1Gi", "image": {"persistentVolumeClaim": "iso"}}],
        "cloudInit": {"userData": "#cloud-config\n"},
    })
}

/// A field that says where the guest runs.
fn placed(field: Field) -> Value {
    match field {
        Field::Group => json!({"placement": {"antiAffinityGroup": {"name": "db"}}}),
        Field::EvictionStrategy => json!({"evictionStrategy": "LiveMigrate"}),
        Field::Tolerations => {
            json!({"placement": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}})
        }
        Field::Affinity => json!({"placement": {"affinity": {"podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}, "topologyKey": "rack"}],
        }}}}),
        Field::TopologySpread => json!({"placement": {"topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {},
        }]}}),
        Field::PriorityClass => json!({"placement": {"priorityClassName": "high"}}),
        _ => json!({"nodeSelector": {"zone": "a"}}),
    }
}

/// A field of what the machine has of its node or host for itself, or of how a guest that no longer works is noticed.
fn of_node(field: Field) -> Value {
    match field {
        Field::CpuModel => json!({"resources": {"cpu": {"model": "Skylake-Server"}}}),
        Field::DedicatedCpu => json!({"resources": {"cpu": {"dedicated": true}}}),
        Field::Hugepages => json!({"resources": {"memory": {"hugepages": "2Mi"}}}),
        Field::Watchdog => json!({"watchdog": {"action": "PowerOff"}}),
        Field::Readiness => json!({"probes": {"readiness": {"guestAgentPing": {}}}}),
        Field::Liveness => json!({"probes": {"liveness": {"guestAgentPing": {}}}}),
        _ => json!({"devices": [{"name": "gpu", "deviceName": "nvidia.com/A100"}]}),
    }
}

/// A field of the VirtualMachine.
fn overridden() -> Value {
    let domain = json!({"ioThreadsPolicy": "auto"});
    json!({"backendOverrides": {"kubevirt": {"spec": {"template": {"spec": {"domain": domain}}}}}})
}

/// A field of the screen.
fn screen(field: Field) -> Value {
    let display = match field {
        Field::DisplayType => json!({"type": "none"}),
        Field::DisplayVideo => json!({"video": "virtio"}),
        _ => json!({"passwordSecretRef": {"name": "x"}}),
    };
    json!({ "display": display })
}

/// A field of the boot loader.
fn bootloader(field: Field) -> Value {
    let bootloader = match field {
        Field::PersistentEfi => json!({"efi": true, "persistent": true}),
        Field::SecureBoot => json!({"efi": true, "persistent": false, "secureBoot": true}),
        _ => json!({"efi": true}),
    };
    json!({"domain": {"firmware": {"bootloader": bootloader}}})
}

/// A list of the spec with an item of it changed.
fn item(list: &str, index: usize, patch: &Value) -> Value {
    let mut items = before()[list].clone();
    merge_patch(&mut items[index], patch);
    json!({ list: items })
}

fn without_first(list: &str) -> Value {
    json!({list: before()[list].as_array().unwrap()[1..]})
}

/// The disks with a field of one changed, or without one.
fn disk(field: Field) -> Value {
    match field {
        Field::DiskReclaimPolicy => item("disks", 0, &json!({"reclaimPolicy": "Retain"})),
        Field::DiskSize => item("disks", 0, &json!({"size": "20Gi"})),
        Field::Disk => without_first("disks"),
        Field::DiskRemove => item(
            "disks",
            0,
            &json!({"name": "root", "remove": true, "size": null}),
        ),
        Field::DiskBus => item("disks", 0, &json!({"bus": "sata"})),
        Field::DiskSerial => item("disks", 0, &json!({"serial": "other"})),
        Field::DiskStorageClass => item("disks", 0, &json!({"storageClass": "fast-ssd"})),
        Field::DiskAccessMode => item(
            "disks",
            0,
            &json!({"accessMode": "ReadWriteMany", "volumeMode": "Block"}),
        ),
        Field::DiskVolumeMode => item("disks", 0, &json!({"volumeMode": "Block"})),
        Field::DiskImage => item("disks", 3, &json!({"image": null})),
        Field::DiskSelector => item(
            "disks",
            2,
            &json!({"selector": {"matchLabels": {"tier": "b"}}}),
        ),
        Field::DiskClaimName => item("disks", 4, &json!({"claimName": "iso"})),
        Field::DiskShareable => item("disks", 4, &json!({"shareable": true})),
        _ => item("disks", 1, &json!({"volumeName": "pv-2"})),
    }
}

/// The spec with a field of it changed. A list is changed by index.
fn changed(field: Field) -> Value {
    let cpu = |patch: Value| json!({"resources": {"cpu": patch}});
    let memory = |patch: Value| json!({"resources": {"memory": patch}});
    let cloud_init = |patch: Value| json!({ "cloudInit": patch });
    let patch = match field {
        // The same values without the template.
        Field::Template => {
            json!({"template": null, "disks": with_root(), "resources": {"cpu": {"threads": 1}}})
        }
        Field::PowerState => json!({"powerState": "Stopped"}),
        Field::GuestShutdownStops => json!({"guestShutdownStops": true}),
        Field::DeletionProtection => json!({"deletionProtection": true}),
        Field::CdromImage => item(
            "cdroms",
            0,
            &json!({"image": {"persistentVolumeClaim": "golden"}}),
        ),
        Field::DiskReclaimPolicy
        | Field::DiskSize
        | Field::Disk
        | Field::DiskRemove
        | Field::DiskBus
        | Field::DiskSerial
        | Field::DiskStorageClass
        | Field::DiskAccessMode
        | Field::DiskVolumeMode
        | Field::DiskImage
        | Field::DiskSelector
        | Field::DiskClaimName
        | Field::DiskShareable
        | Field::DiskVolumeName => disk(field),
        Field::Cores => cpu(json!({"cores": 4})),
        Field::Threads => cpu(json!({"threads": 2})),
        Field::Sockets => cpu(json!({"sockets": 2})),
        Field::MaxSockets => cpu(json!({"maxSockets": 2})),
        Field::MaxCores => cpu(json!({"maxCores": 4})),
        Field::MemorySize => memory(json!({"size": "8Gi"})),
        Field::MaxMemorySize => memory(json!({"maxSize": "8Gi"})),
        Field::Nic => without_first("networks"),
        Field::NicNetwork => item("networks", 1, &json!({"networkName": "storage-network"})),
        Field::NicModel => item("networks", 0, &json!({"model": "e1000"})),
        Field::NicMac => item("networks", 0, &json!({"macAddress": "52:54:00:00:00:01"})),
        Field::NicAddresses => item("networks", 1, &json!({"ipAddresses": ["10.0.0.6"]})),
        Field::BootOrder => json!({"bootOrder": ["network", "disk"]}),
        Field::Cdrom => json!({"cdroms": []}),
        Field::Acpi => json!({"domain": {"features": {"acpi": false}}}),
        Field::Apic => json!({"domain": {"features": {"apic": false}}}),
        Field::Hyperv => json!({"domain": {"features": {"hyperv": true}}}),
        Field::UserData => cloud_init(json!({"userData": "#cloud-config\nhostname: x\n"})),
        Field::NetworkData => cloud_init(json!({"networkData": "version: 2\n"})),
        Field::CloudConfig => {
            cloud_init(json!({"userData": null, "cloudConfig": {"hostname": "x"}}))
        }
        Field::NetworkConfig => cloud_init(json!({"networkConfig": {"version": 2}})),
        Field::MetaData => cloud_init(json!({"metaData": {"a": "b"}})),
        Field::UserDataSecret => cloud_init(json!({"userData": null, "secretRef": {"name": "x"}})),
        Field::NetworkDataSecret => cloud_init(json!({"networkDataSecretRef": {"name": "x"}})),
        Field::Sysprep => cloud_init(json!({
            "userData": null, "sysprep": {"secretRef": {"name": "x"}},
        })),
        Field::Os => json!({"os": "windows"}),
        Field::Drivers => json!({"drivers": "virtio"}),
        Field::DisplayType | Field::DisplayVideo | Field::DisplayPassword => screen(field),
        Field::ConsoleLog => json!({"console": {"log": true}}),
        Field::MachineType => json!({"domain": {"machine": {"type": "pc"}}}),
        Field::Efi | Field::PersistentEfi | Field::SecureBoot => bootloader(field),
        Field::NodeSelector
        | Field::Group
        | Field::EvictionStrategy
        | Field::Tolerations
        | Field::Affinity
        | Field::TopologySpread
        | Field::PriorityClass => placed(field),
        Field::CpuModel
        | Field::DedicatedCpu
        | Field::Hugepages
        | Field::Devices
        | Field::Watchdog
        | Field::Readiness
        | Field::Liveness => of_node(field),
        Field::BackendOverrides => overridden(),
        Field::Labels | Field::Annotations => json!({}),
        Field::Clock => json!({"domain": {"clock": {"timezone": "Europe/Oslo"}}}),
        Field::GracePeriod => json!({"terminationGracePeriodSeconds": 600}),
        Field::Tpm => json!({"domain": {"devices": {"tpm": {}}}}),
        Field::Backend => json!({"backend": "libvirt"}),
        Field::CdromSize => item("cdroms", 0, &json!({"size": "2Gi"})),
        Field::CdromStorageClass => item("cdroms", 0, &json!({"storageClass": "fast-ssd"})),
    };
    let mut spec = before();
    merge_patch(&mut spec, &patch);
    spec
}

fn with_root() -> Value {
    let mut disks = vec![json!({"name": "root", "size": "20Gi"})];
    disks.extend(before()["disks"].as_array().unwrap().iter().cloned());
    disks.into()
}

/// The parts of a spec that libvirt supports: no bound volumes, images by URL.
fn on_libvirt(spec: &mut Value) {
    let is_bound = |disk: &Value| {
        ["volumeName", "selector", "claimName"]
            .iter()
            .any(|it| disk.get(*it).is_some())
    };
    let disks = spec["disks"].as_array().unwrap().iter();
    let disks: Vec<_> = disks.filter(|disk| !is_bound(disk)).collect();
    let mut cdroms = spec["cdroms"].clone();
    for cdrom in cdroms.as_array_mut().unwrap() {
        let claim = cdrom["image"]["persistentVolumeClaim"].as_str().unwrap();
        cdrom["image"] = json!({"url": format!("https://images.example.com/{claim}")});
    }
    merge_patch(spec, &json!({"disks": disks, "cdroms": cdroms}));
}

/// Whether a spec can have the field on this backend.
fn exists(field: Field, backend: Backend) -> bool {
    let is_of_kubevirt = matches!(
        field,
        Field::DiskSelector
            | Field::DiskVolumeName
            | Field::DiskClaimName
            | Field::DiskShareable
            | Field::EvictionStrategy
            | Field::Tolerations
            | Field::PriorityClass
            | Field::Affinity
            | Field::TopologySpread
            | Field::Liveness
            | Field::BackendOverrides
    );
    // KubeVirt has one machine type, and its screens take no password.
    let is_of_libvirt = matches!(field, Field::MachineType | Field::DisplayPassword);
    backend == Backend::Kubevirt && !is_of_libvirt || backend == Backend::Libvirt && !is_of_kubevirt
}

/// The answer to a change of one field of a stored Machine.
struct Changed {
    old: Value,
    answer: Result<Admitted, Verdict>,
}

/// Changes a field of a Machine without changing its power state.
fn change(field: Field, backend: Backend, power_state: &str) -> Changed {
    let (mut old, mut new) = (before(), changed(field));
    if field == Field::SecureBoot {
        old["domain"] = json!({"firmware": {"bootloader": {"efi": true, "persistent": false}}});
    }
    if matches!(field, Field::Drivers | Field::Sysprep) {
        old["os"] = json!("windows");
        new["os"] = json!("windows");
    }
    if field == Field::PersistentEfi {
        old["domain"] = json!({"firmware": {"bootloader": {"efi": true, "persistent": false}}});
    }
    if backend == Backend::Libvirt {
        on_libvirt(&mut old);
        on_libvirt(&mut new);
    }
    old["backend"] = json!(backend);
    new["backend"] = match (field, backend) {
        (Field::Backend, Backend::Kubevirt) => json!(Backend::Libvirt),
        (Field::Backend, Backend::Libvirt) => json!(Backend::Kubevirt),
        _ => json!(backend),
    };
    if field != Field::PowerState {
        for spec in [&mut old, &mut new] {
            spec["powerState"] = json!(power_state);
        }
    }
    let stored = ReviewContext::of(ObjectKind::Machine, None).admit(&machine(&old));
    let old = stored
        .unwrap_or_else(|verdict| panic!("{field:?}: {verdict:?}"))
        .stored;
    let answer = ReviewContext::of(ObjectKind::Machine, Some(&old)).admit(&machine(&new));
    Changed { old, answer }
}

fn has_code(lines: &[String], code: &str) -> bool {
    let end = format!("[{code}]");
    lines.iter().any(|line| line.ends_with(&end))
}

/// Whether the change takes a disk out of the spec.
fn takes_disk_out(field: Field) -> bool {
    matches!(field, Field::Disk | Field::DiskRemove)
}

/// The number of refusals, all of which must be about the change.
fn refusals(answer: Result<Admitted, Verdict>) -> usize {
    let violations = answer.err().map(|verdict| verdict.findings.violations);
    let violations = violations.unwrap_or_default();
    for violation in &violations {
        assert_eq!(violation.code.family(), "update", "{violations:?}");
    }
    violations.len()
}

/// Every field of the spec. Labels and annotations are none: no review announces what they do.
fn every_field() -> impl Iterator<Item = (Field, Backend)> {
    let backends = [Backend::Kubevirt, Backend::Libvirt];
    let fields = Field::ALL.iter().copied();
    let fields = fields.filter(|field| !matches!(field, Field::Labels | Field::Annotations));
    let all = fields.flat_map(move |field| backends.map(|backend| (field, backend)));
    all.filter(|(field, backend)| exists(*field, *backend))
}

#[test]
fn every_field_has_the_effect_that_the_table_names_on_each_backend() {
    for (field, backend) in every_field() {
        let what = format!("{field:?} on {backend}");
        let answer = |power_state| change(field, backend, power_state).answer;
        let accepted = |power_state| {
            let mut admitted = answer(power_state).unwrap_or_else(|it| panic!("{what}: {it:?}"));
            let (kept, others): (Vec<_>, _) = admitted
                .warnings
                .into_iter()
                .partition(|line| line.ends_with("[DiskKept]"));
            assert_eq!(!kept.is_empty(), takes_disk_out(field), "{what}: {kept:?}");
            admitted.warnings = others;
            // These are about the host, which has no pool for logs, and about changes to come.
            let others = ["[ConsoleLogUnavailable]", "[GrowthNotLive]"];
            let is_other = |line: &String| others.iter().any(|code| line.ends_with(code));
            admitted.warnings.retain(|line| !is_other(line));
            admitted
        };
        match field.effect(backend) {
            Effect::Live | Effect::Grow | Effect::Resolved | Effect::NextMove | Effect::Nothing => {
                assert_eq!(accepted("Running").warnings, [""; 0], "{what}");
            }
            Effect::HotPlugOrRestart | Effect::LiveMigrationOrRestart => {
                let warnings = accepted("Running").warnings;
                let is_restart = has_code(&warnings, "RestartRequired");
                assert!(warnings.is_empty() || is_restart, "{what}: {warnings:?}");
                assert_eq!(accepted("Stopped").warnings, [""; 0], "{what}");
            }
            Effect::Restart | Effect::NextMigrationOrRestart => {
                let warnings = accepted("Running").warnings;
                assert!(has_code(&warnings, "RestartRequired"), "{what}");
                assert!(
                    warnings.iter().all(|line| line.contains("restart")),
                    "{what}"
                );
                assert_eq!(accepted("Stopped").warnings, [""; 0], "{what}");
            }
            Effect::NewInstance => {
                for power_state in ["Running", "Stopped"] {
                    let warnings = accepted(power_state).warnings;
                    assert!(has_code(&warnings, "NewInstanceRequired"), "{what}");
                    assert!(
                        warnings.iter().any(|line| line.contains("new instance")),
                        "{what}"
                    );
                }
            }
            Effect::RefusedWhileRunning => {
                assert_eq!(refusals(answer("Running")), 1, "{what}");
                assert_eq!(refusals(answer("Stopped")), 0, "{what}");
            }
            Effect::Refused => {
                for power_state in ["Running", "Stopped"] {
                    assert!(refusals(answer(power_state)) > 0, "{what}");
                }
            }
        }
    }
}

const IDENTITY: Identity<'static> = Identity {
    cluster: "cluster",
    namespace: "default",
    name: "web",
    uid: "uid",
};

/// The libvirt domain of a stored Machine.
fn domain_of(stored: &Value) -> Domain {
    let block: Normalized = serde_json::from_value(stored["spec"]["normalized"].clone()).unwrap();
    let pool_volume = |volume: String| PoolVolume {
        pool: "pool".into(),
        volume,
        format: VolumeFormat::Qcow2,
    };
    let disks = block
        .disks
        .iter()
        .map(|disk| (disk.name.clone(), disk.name.clone()));
    let media = block.cdroms.iter().filter_map(|cdrom| {
        let url = cdrom.image.as_ref()?.url.clone()?;
        Some((cdrom.name.clone(), url))
    });
    let volumes = disks
        .chain(media)
        .map(|(name, volume)| (name, pool_volume(volume)));
    let networks = block.networks.iter().map(|nic| {
        let attached = NicAttachment {
            source: NicSource::Bridge(nic.network_name.clone().unwrap_or_default()),
            vlan: None,
            mtu: None,
            policy: NicPolicy::default(),
        };
        (nic.name.clone(), attached)
    });
    let address = "0000:3b:00.0".parse().unwrap();
    let devices = block.devices().iter();
    let devices = devices.map(|device| (device.name.clone(), address));
    let pinning = Pinning {
        dedicated: (0..block.dedicated_cpus().unwrap_or(0)).collect(),
        shared: None,
    };
    // The name of the seed's volume is a digest of its content.
    let seed = pool_volume(stored["spec"]["cloudInit"].to_string());
    domain(&DomainInput {
        machine: IDENTITY,
        block: &block,
        virt_type: VirtType::Kvm,
        cpu_mode: CpuMode::HostPassthrough,
        volumes: &volumes.collect(),
        networks: &networks.collect(),
        devices: &devices.collect(),
        pinning: &pinning,
        seed: Some(&seed),
        console_logs: Some("/srv/logs"),
        limits: GuestLimits::default(),
    })
}

#[test]
fn libvirt_restarts_a_guest_for_exactly_what_admission_announces() {
    for (field, backend) in every_field().filter(|(_, backend)| *backend == Backend::Libvirt) {
        let Changed { old, answer } = change(field, backend, "Running");
        let Ok(admitted) = answer else { continue };
        let changes = domain_of(&admitted.stored).differences_from(&domain_of(&old));
        let actions = changes.iter().map(|change| {
            let action = pending_action(backend, &change.field, change.live.is_some());
            let is_live = action == PendingAction::HotPlug;
            assert_eq!(is_live, change.live.is_some(), "{field:?}: {change:?}");
            action
        });
        let restarts = actions
            .filter(|action| *action == PendingAction::Restart)
            .count();
        let announced = has_code(&admitted.warnings, "RestartRequired");
        assert_eq!(
            restarts > 0,
            announced,
            "{field:?}: {changes:?} {:?}",
            admitted.warnings
        );
    }
}

/// A Machine with this many cores of four, as it is stored.
fn with_cores(backend: Backend, cores: u32, old: Option<&Value>) -> Admitted {
    let mut spec = before();
    spec["resources"]["cpu"] = json!({"cores": cores, "maxCores": 4});
    spec["backend"] = json!(backend);
    if backend == Backend::Libvirt {
        on_libvirt(&mut spec);
    }
    let admitted = ReviewContext::of(ObjectKind::Machine, old).admit(&machine(&spec));
    admitted.unwrap_or_else(|verdict| panic!("{verdict:?}"))
}

#[test]
fn cores_that_grow_are_sockets_and_change_nothing_else_of_what_is_rendered() {
    let [was, is] = [2, 4].map(|cores| with_cores(Backend::Kubevirt, cores, None).stored);
    let [mut was, is] = [was, is].map(|stored| template_of(&stored));
    let cpu = json!({"sockets": 2, "cores": 1, "threads": 1, "maxSockets": 4});
    assert_eq!(was["spec"]["domain"]["cpu"], cpu);
    was["spec"]["domain"]["cpu"]["sockets"] = json!(4);
    assert_eq!(was, is);

    let was = with_cores(Backend::Libvirt, 2, None).stored;
    let is = with_cores(Backend::Libvirt, 4, Some(&was));
    assert!(
        !has_code(&is.warnings, "RestartRequired"),
        "{:?}",
        is.warnings
    );
    let (was, is) = (domain_of(&was), domain_of(&is.stored));
    let xml = was.xml();
    for part in [
        "<vcpu current='2'>4</vcpu>",
        "<topology sockets='4' cores='1' threads='1'/>",
    ] {
        assert!(xml.contains(part), "{part}: {xml}");
    }
    let changes = is.differences_from(&was);
    let fields = changes.iter().map(|it| (&*it.field, it.live.is_some()));
    let fields: Vec<_> = fields.collect();
    assert_eq!(fields, [("cpu.sockets", true)]);
}

/// `spec.template` of the VirtualMachine of a stored Machine. KubeVirt compares it with the running guest.
fn template_of(stored: &Value) -> Value {
    let part = |pointer| stored.pointer(pointer).cloned().unwrap_or_default();
    let block: Normalized = serde_json::from_value(part("/spec/normalized")).unwrap();
    let cloud_init: CloudInit = serde_json::from_value(part("/spec/cloudInit")).unwrap();
    let machine = virtual_machine(&VirtualMachineInput {
        machine: IDENTITY,
        block: &block,
        cloud_init: &CloudInitPlan::from(&cloud_init),
        labels: &BTreeMap::new(),
        annotations: &BTreeMap::new(),
        attachments: &BTreeMap::new(),
        secret_revisions: &BTreeMap::new(),
    });
    serde_json::to_value(machine.spec.template).unwrap()
}

#[test]
fn kubevirt_gets_another_template_for_exactly_the_changes_that_concern_the_guest() {
    for (field, backend) in every_field().filter(|(_, backend)| *backend == Backend::Kubevirt) {
        let Changed { old, answer } = change(field, backend, "Running");
        let Ok(admitted) = answer else { continue };
        let is_changed = template_of(&old) != template_of(&admitted.stored);
        let warnings = &admitted.warnings;
        let is_announced = has_code(warnings, "RestartRequired");
        let expected = match field.effect(backend) {
            Effect::Live | Effect::Grow | Effect::Resolved | Effect::NextMove | Effect::Nothing => {
                false
            }
            Effect::HotPlugOrRestart
            | Effect::LiveMigrationOrRestart
            | Effect::NextMigrationOrRestart
            | Effect::Restart => true,
            // Inline data is in a Secret of the controller, and the template has only its name.
            Effect::NewInstance => is_changed,
            Effect::RefusedWhileRunning | Effect::Refused => panic!("{field:?} was accepted"),
        };
        assert_eq!(is_changed, expected, "{field:?}: {warnings:?}");
        assert!(is_changed || !is_announced, "{field:?}: {warnings:?}");
    }
}
