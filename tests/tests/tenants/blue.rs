//! The victim: what blue has, and whether it is as before.

use std::{collections::BTreeMap, fs, path::PathBuf};

use lab::{
    Lab,
    libvirt::Libvirt,
    objects::{CLAIM, DATA_VOLUME, INSTANCE, MACHINE, NETWORK, SECRET, VM},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Its Machine on the libvirt host, which runs.
pub(crate) const LEDGER: &str = "ledger";
/// Its Machine on the libvirt host that was deleted. The volume of disk `papers` is kept.
pub(crate) const ARCHIVE: &str = "archive";
/// Its Machine on KubeVirt, which is protected from deletion.
pub(crate) const PAYROLL: &str = "payroll";
/// Its network.
pub(crate) const NETWORK_NAME: &str = "backbone";
/// Its Secret, which no Machine names.
pub(crate) const VAULT: &str = "vault";
/// The address of its Machine [`PAYROLL`].
pub(crate) const MAC: &str = "52:54:00:b1:0e:01";
/// The content of its Secret and of its volumes.
pub(crate) const CANARY: &str = "only-for-blue-eyes";

/// What no answer to red may contain, unless red has just sent it.
pub(crate) const WORDS: [&str; 9] = [
    "blue",
    LEDGER,
    ARCHIVE,
    "papers",
    PAYROLL,
    NETWORK_NAME,
    VAULT,
    MAC,
    CANARY,
];

/// Where blue's things are.
pub(crate) struct Blue {
    /// The command that runs virsh, if there is a libvirtd.
    virsh: Option<[String; 2]>,
    /// Folder of the pool of disks.
    pool: PathBuf,
}

/// Everything that is blue's, by name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct State(BTreeMap<String, String>);

impl Blue {
    pub(crate) fn new(libvirt: Option<&Libvirt>, pool: PathBuf) -> Self {
        let virsh = libvirt.map(Libvirt::mount_namespace_command);
        Self { virsh, pool }
    }

    /// The files of its volumes.
    pub(crate) fn volumes(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.pool).unwrap();
        let files = entries.map(|entry| entry.unwrap().path());
        let is_blue = |file: &PathBuf| {
            let name = file.file_name().unwrap().to_string_lossy();
            name.starts_with("blue-")
        };
        files.filter(is_blue).collect()
    }

    /// What blue has now: its objects without their status, its domains with the id of their run, and the content of
    /// its volumes.
    pub(crate) async fn state(&self, lab: &Lab) -> State {
        let mut state = BTreeMap::new();
        for (what, kind) in [
            ("Machine", MACHINE),
            ("VirtualMachine", VM),
            ("instance", INSTANCE),
            ("claim", CLAIM),
            ("DataVolume", DATA_VOLUME),
            ("Secret", SECRET),
            ("NetworkConfiguration", NETWORK),
        ] {
            for object in lab.objects(kind, "blue").list().await.unwrap() {
                let metadata = &object["metadata"];
                let fields = [
                    "uid",
                    "deletionTimestamp",
                    "labels",
                    "annotations",
                    "finalizers",
                ];
                let fields = fields.map(|field| &metadata[field]);
                let shown = json!([fields, object["spec"], object["data"]]).to_string();
                state.insert(format!("{what} {}", metadata["name"]), shown);
            }
        }
        for line in self.domains() {
            let name = line.split_whitespace().nth(1).unwrap();
            state.insert(format!("domain {name}"), line.clone());
        }
        if self.virsh.is_some() {
            for file in self.volumes() {
                let digest = Sha256::digest(fs::read(&file).unwrap());
                state.insert(file.display().to_string(), format!("{digest:?}"));
            }
        }
        State(state)
    }

    /// The lines of `virsh list` for its domains: id, name and state.
    fn domains(&self) -> Vec<String> {
        let Some([nsenter, mounts]) = &self.virsh else {
            return Vec::new();
        };
        let list = std::process::Command::new(nsenter)
            .args([mounts, "virsh", "-q", "-c", Libvirt::URI, "list", "--all"])
            .output()
            .unwrap();
        assert!(list.status.success(), "{list:?}");
        let lines = String::from_utf8(list.stdout).unwrap();
        let lines = lines.lines().filter(|line| line.contains(" blue-"));
        lines.map(str::to_owned).collect()
    }
}

impl State {
    /// What is different now.
    pub(crate) fn changes(&self, now: &Self) -> Vec<String> {
        let names = self.0.keys().chain(now.0.keys());
        let names: std::collections::BTreeSet<_> = names.collect();
        let changed = names
            .into_iter()
            .filter(|name| self.0.get(*name) != now.0.get(*name));
        changed
            .map(|name| {
                format!(
                    "{name}: {:?} became {:?}",
                    self.0.get(name),
                    now.0.get(name)
                )
            })
            .collect()
    }
}

/// The uid of a Machine of blue.
pub(crate) async fn uid(lab: &Lab, name: &str) -> Value {
    let machine = lab.objects(MACHINE, "blue").get(name).await.unwrap();
    machine["metadata"]["uid"].clone()
}
