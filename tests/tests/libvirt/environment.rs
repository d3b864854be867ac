//! A lab with a libvirtd of its own, which is registered as the LibvirtHost `here`.
//!
//! ```text
//! pool images    guest.raw                    the backing file of every root disk
//! pool volumes   <namespace>-<name>-<id>-…    the volumes that the controller creates
//! ```

use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use common::render::libvirt::domain_name;
use lab::{
    Binary, Lab, Options, ProgramUnderTest,
    libvirt::{Libvirt, Report, VolumeMonitor, image},
    objects::{HOST, MACHINE, Objects, condition},
    wait,
};
use serde_json::{Value, json};

/// How long a boot may take: QEMU emulates the guest's processor (TCG), beside other guests on two busy cores.
pub(crate) const BOOT_LIMIT: Duration = Duration::from_mins(10);

/// The running programs, in the order in which they are stopped.
pub(crate) struct Environment {
    pub(crate) controller: ProgramUnderTest,
    _webhook: ProgramUnderTest,
    pub(crate) lab: Lab,
    pub(crate) libvirt: Libvirt,
    pub(crate) volumes: PathBuf,
}

/// A libvirtd, or `None` after [`lab::skip`] if none can run.
pub(crate) async fn libvirt() -> Option<Libvirt> {
    match Libvirt::start().await.unwrap() {
        Ok(libvirt) => Some(libvirt),
        Err(missing) => {
            lab::skip(missing);
            None
        }
    }
}

impl Environment {
    pub(crate) async fn new() -> Option<Self> {
        Self::with(&[]).await
    }

    /// With these settings of the controller.
    pub(crate) async fn with(settings: &[(&str, &str)]) -> Option<Self> {
        if !Binary::has_libvirt().await.unwrap() {
            lab::skip("the controller is built without libvirt");
            return None;
        }
        let libvirt = libvirt().await?;
        let images = libvirt.pool("images").await.unwrap();
        let volumes = libvirt.pool("volumes").await.unwrap();
        let image = image().await.unwrap();
        libvirt.volume(&images, "guest.raw", &image).await.unwrap();
        let lab = Lab::with(Options::default()).await.unwrap();
        let env = Self::begin(lab, libvirt, volumes, settings).await;
        env.lab.apply(&host()).await.unwrap();
        let hosts = env.lab.objects(HOST, "");
        hosts
            .until_condition("here", "Ready", "True", "Ready")
            .await
            .unwrap();
        Some(env)
    }

    /// Starts the programs in a lab. `volumes`: the pool in which the controller creates volumes; `settings`: of the
    /// controller.
    pub(crate) async fn begin(
        mut lab: Lab,
        libvirt: Libvirt,
        volumes: PathBuf,
        settings: &[(&str, &str)],
    ) -> Self {
        lab.use_libvirt(&libvirt);
        let webhook = lab.webhook(&[]).await.unwrap();
        let controller = lab.controller(settings).await.unwrap();
        Self {
            controller,
            _webhook: webhook,
            lab,
            libvirt,
            volumes,
        }
    }

    pub(crate) fn machines(&self) -> Objects {
        self.lab.objects(MACHINE, "default")
    }

    /// Lets the host fetch images from the server of this URL, which has a private address.
    pub(crate) async fn allow(&self, url: &str) {
        let origin = &url[..=url.rfind('/').unwrap()];
        let patch = json!({"spec": {"imageSources": [origin]}});
        let hosts = self.lab.objects(HOST, "");
        hosts.merge("here", &patch).await.unwrap();
    }

    /// Creates or changes a Machine of the tiny guest.
    pub(crate) async fn apply(&self, name: &str, more: &Value) {
        let machine = machine(name, more);
        self.lab.apply_when_admitted(&machine).await.unwrap();
    }

    /// Asserts that the guest of the Machine `vm` is in the same boot as when it reported this, and that no other domain
    /// is there.
    pub(crate) async fn assert_same_run(&self, before: &Report) {
        let now = self.until_report("vm", "anything", |_| true).await;
        assert_eq!((&now.boot, now.boots), (&before.boot, before.boots));
        assert_eq!(self.domains().await.len(), 1);
    }

    /// Waits until a Machine satisfies `fits`, for as long as a boot may take.
    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        fits: impl Fn(&Value) -> bool,
    ) -> Value {
        let machines = self.machines();
        wait::until_within(BOOT_LIMIT, &format!("{name} {what}"), async || {
            let machine = machines.get(name).await?;
            Ok(if fits(&machine) {
                Ok(machine)
            } else {
                Err(machine["status"].to_string())
            })
        })
        .await
        .unwrap()
    }

    /// Waits until a Machine runs and its guest has an address by which others reach it: the link-local one is reported
    /// before. Returns the Machine.
    pub(crate) async fn until_reachable(&self, name: &str) -> Value {
        self.until(name, "to run with an address", |machine| {
            machine["status"]["phase"] == "Running"
                && machine["status"]["ipAddresses"][0]
                    .as_str()
                    .is_some_and(|address| !address.starts_with("fe80:"))
                && condition(machine, "Ready")["status"] == "True"
        })
        .await
    }

    /// Observes the guests from now on.
    pub(crate) fn monitor(&self) -> VolumeMonitor {
        VolumeMonitor::start(self.libvirt.path("pools"))
    }

    /// The name of a Machine's domain.
    pub(crate) async fn domain(&self, name: &str) -> String {
        let machine = self.machines().get(name).await.unwrap();
        domain_name(
            "default",
            name,
            machine["metadata"]["uid"].as_str().unwrap(),
        )
    }

    /// Waits for a report of a Machine's guest that satisfies `look`.
    pub(crate) async fn until_report(
        &self,
        name: &str,
        what: &str,
        look: impl FnMut(&Report) -> bool,
    ) -> Report {
        let domain = self.domain(name).await;
        self.libvirt
            .wait_for_report(&domain, what, look)
            .await
            .unwrap()
    }

    /// Waits until the guest of a domain is off while its Machine is deleted. The wait ends at once, before the deletion
    /// goes on for long.
    pub(crate) async fn until_off(&self, domain: &str) {
        wait::until_at_once("the guest to be off", async || {
            let state = self.libvirt.virsh(&["domstate", domain]).await?;
            // If the domain is undefined already, only its volumes are left.
            let is_off = state.code != 0 || state.stdout.trim() == "shut off";
            Ok(is_off.then_some(()).ok_or(state.stdout))
        })
        .await
        .unwrap();
    }

    /// Waits for the first boot of a Machine's guest, and until it is Running.
    pub(crate) async fn until_booted(&self, name: &str) {
        self.until_report(name, "its first boot", |it| it.boots == 1)
            .await;
        self.until(name, "to run", |it| it["status"]["phase"] == "Running")
            .await;
    }

    pub(crate) async fn virsh(&self, arguments: &[&str]) -> String {
        self.libvirt.virsh(arguments).await.unwrap().ok().unwrap()
    }

    /// The names of all domains.
    pub(crate) async fn domains(&self) -> BTreeSet<String> {
        let all = self.virsh(&["list", "--all", "--name"]).await;
        let names = all.lines().map(str::trim).filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    }

    /// The files in the pool in which the controller creates volumes.
    pub(crate) fn files(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.volumes).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    /// The files whose name contains this.
    pub(crate) fn files_of(&self, part: &str) -> Vec<String> {
        let files = self.files();
        files
            .into_iter()
            .filter(|name| name.contains(part))
            .collect()
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.machines().delete(name).await.unwrap();
        self.until_gone(name).await;
    }

    /// Waits until a deleted Machine is gone, for as long as a boot may take.
    pub(crate) async fn until_gone(&self, name: &str) {
        wait::until_within(BOOT_LIMIT, &format!("{name} to be gone"), async || {
            let machine = self.machines().find(name).await?;
            Ok(machine.map_or(Ok(()), |machine| Err(machine["status"].to_string())))
        })
        .await
        .unwrap();
    }
}

/// The LibvirtHost of the tests.
pub(crate) fn host() -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "LibvirtHost",
        "metadata": {"name": "here"},
        "spec": {
            "uri": Libvirt::URI,
            "virtType": "qemu",
            "overcommit": {"cpu": "8"},
            "imagePool": "images",
            "storage": [{"storageClass": "local", "pool": "volumes"}],
            "networks": [
                {"name": "default", "type": "network", "source": "default"},
                {"name": "br-second", "type": "network", "source": "second"},
            ],
        },
    })
}

/// The LibvirtHost `there`: libvirt's test driver, where QEMU is not needed.
pub(crate) fn test_driver_host() -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "LibvirtHost",
        "metadata": {"name": "there", "labels": {"at": "there"}},
        "spec": {
            "uri": "test:///default",
            "virtType": "qemu",
            // The test driver has 3Gi, and a domain of 8Gi.
            "overcommit": {"memory": "4"},
            "storage": [{"storageClass": "local", "pool": "default-pool"}],
            "networks": [{"name": "default", "type": "network", "source": "default"}],
        },
    })
}

/// A Machine of the tiny guest with one vCPU; fields of `more` have precedence.
pub(crate) fn machine(name: &str, more: &Value) -> Value {
    let mut spec = json!({
        "backend": "libvirt",
        "resources": {
            "cpu": {"cores": 1},
            "memory": {"size": "256Mi"},
        },
        "disks": [root()],
    });
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    lab::reviews::machine(name, &spec)
}

/// The disk that the tiny guest boots from.
pub(crate) fn root() -> Value {
    json!({"name": "root", "size": "1Gi", "storageClass": "local", "image": {"volume": "guest.raw"}})
}
