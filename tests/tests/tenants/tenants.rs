//! The lab of both tenants, with everything that belongs to blue.

use std::{fs, path::PathBuf};

use common::quantity::Bytes;
use lab::{
    Binary, Lab, Options, ProgramUnderTest, Scenario, Simulator,
    image_server::ImageServer,
    libvirt::Libvirt,
    objects::{CLAIM, HOST, MACHINE, NETWORK, Objects, SECRET},
    wait,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{
    api::LAN,
    blue::{ARCHIVE, Blue, CANARY, LEDGER, MAC, NETWORK_NAME, PAYROLL, VAULT},
    red::Red,
};

/// The LibvirtHost that both tenants use.
pub(crate) const SHARED: &str = "shared";

/// Memory of the host for all Machines together.
const ROOM: &str = "4Gi";

/// The running programs, in the order in which they are stopped.
pub(crate) struct Tenants {
    pub(crate) red: Red,
    pub(crate) blue: Blue,
    pub(crate) server: ImageServer,
    /// Why there are no Machines on the libvirt host.
    pub(crate) missing: Option<String>,
    _simulator: Simulator,
    pub(crate) controller: Mutex<ProgramUnderTest>,
    /// Another replica of the controller, without the Lease.
    _standby: ProgramUnderTest,
    _webhook: ProgramUnderTest,
    pub(crate) lab: Lab,
    pub(crate) libvirt: Option<Libvirt>,
    /// Folders of the pools of images and of disks.
    pub(crate) pools: [PathBuf; 2],
}

impl Tenants {
    pub(crate) async fn new() -> Self {
        let libvirt = libvirt().await;
        let mut lab = Lab::with(Options::default()).await.unwrap();
        let mut pools = [PathBuf::new(), PathBuf::new()];
        if let Ok(libvirt) = &libvirt {
            lab.use_libvirt(libvirt);
            for (folder, name) in pools.iter_mut().zip(["images", "volumes"]) {
                *folder = libvirt.pool(name).await.unwrap();
            }
        }
        let webhook = lab.webhook(&[]).await.unwrap();
        let controller = lab.controller(&[]).await.unwrap();
        let standby = lab.controller(&[]).await.unwrap();
        let simulator = lab.simulator(Scenario::Happy).await.unwrap();
        let (libvirt, missing) = match libvirt {
            Ok(libvirt) => (Some(libvirt), None),
            Err(missing) => (None, Some(missing)),
        };
        let tenants = Self {
            red: Red::new(&lab).await,
            blue: Blue::new(libvirt.as_ref(), pools[1].clone()),
            server: ImageServer::start().unwrap(),
            missing,
            _simulator: simulator,
            controller: Mutex::new(controller),
            _standby: standby,
            _webhook: webhook,
            lab,
            libvirt,
            pools,
        };
        tenants.settle_blue().await;
        if tenants.libvirt.is_some() {
            tenants.register_host().await;
            tenants.settle_blue_on_the_host().await;
        }
        tenants
    }

    pub(crate) fn virsh(&self) -> &Libvirt {
        self.libvirt.as_ref().unwrap()
    }

    pub(crate) fn hosts(&self) -> Objects {
        self.lab.objects(HOST, "")
    }

    /// The Machines of a tenant, as the administrator sees them.
    pub(crate) fn machines(&self, tenant: &str) -> Objects {
        self.lab.objects(MACHINE, tenant)
    }

    /// Creates what blue has on KubeVirt: a protected Machine with a network, and a Secret.
    async fn settle_blue(&self) {
        let network = json!({
            "apiVersion": "vitistack.io/v1alpha1", "kind": "NetworkConfiguration",
            "metadata": {"name": NETWORK_NAME, "namespace": "blue"},
            "spec": {"bridge": "br0", "vlan": 77},
        });
        let mut of_red = network.clone();
        of_red["metadata"] = json!({"name": LAN, "namespace": "red"});
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": VAULT, "namespace": "blue"},
            "stringData": {"userdata": format!("#cloud-config\n# {CANARY}\n")},
        });
        let payroll = machine(
            "blue",
            PAYROLL,
            &json!({
                "template": "small",
                "deletionProtection": true,
                "networks": [{"name": "eth0", "networkName": NETWORK_NAME, "macAddress": MAC}],
            }),
        );
        for object in [&network, &of_red, &secret, &payroll] {
            self.lab.apply(object).await.unwrap();
        }
        let machines = self.machines("blue");
        let ready = machines.until_condition(PAYROLL, "Ready", "True", "Running");
        ready.await.unwrap();
        let claim = format!("{PAYROLL}-root");
        let is_protected = |claim: &Value| {
            claim["metadata"]["labels"]["vitistack.io/deletion-protection"] == "true"
        };
        let claims = self.lab.objects(CLAIM, "blue");
        let protected = claims.until(&claim, "to be protected", is_protected);
        protected.await.unwrap();
        let in_use = |network: &Value| network["metadata"]["finalizers"].is_array();
        let networks = self.lab.objects(NETWORK, "blue");
        let used = networks.until(NETWORK_NAME, "to be in use", in_use);
        used.await.unwrap();
        self.lab.objects(SECRET, "blue").get(VAULT).await.unwrap();
    }

    async fn register_host(&self) {
        let mut host = json!({
            "apiVersion": "vitistack.io/v1alpha1",
            "kind": "LibvirtHost",
            "metadata": {"name": SHARED},
            "spec": {
                "uri": Libvirt::URI,
                "virtType": "qemu",
                "overcommit": {"cpu": "16"},
                "imagePool": "images",
                "imageSources": [self.server.url("os/")],
                "storage": [{
                    "storageClass": "local", "pool": "volumes", "format": "raw", "provisioning": "copy",
                }],
                "networks": [{"name": "default", "type": "network", "source": "default"}],
            },
        });
        self.lab.apply(&host).await.unwrap();
        let hosts = self.hosts();
        let ready = hosts.until_condition(SHARED, "Ready", "True", "Ready");
        let capacity = &ready.await.unwrap()["status"]["capacity"]["memory"];
        let capacity: Bytes = capacity.as_str().unwrap().parse().unwrap();
        let room: Bytes = ROOM.parse().unwrap();
        let reserved = Bytes::new(capacity.get() - room.get());
        host["spec"]["reserved"] = json!({"memory": reserved});
        self.lab.apply(&host).await.unwrap();
        let is_limited = |host: &Value| host["status"]["allocatable"]["memory"] == ROOM;
        let what = format!("to have {ROOM} for Machines");
        hosts.until(SHARED, &what, is_limited).await.unwrap();
    }

    /// Creates what blue has on the host: a running Machine whose disk has content, and the kept volume of a deleted
    /// one.
    async fn settle_blue_on_the_host(&self) {
        let ledger = local("blue", LEDGER, "128Mi");
        self.lab.apply_when_admitted(&ledger).await.unwrap();
        let mut archive = local("blue", ARCHIVE, "128Mi");
        archive["spec"]["powerState"] = json!("Stopped");
        archive["spec"]["disks"][0]["name"] = json!("papers");
        archive["spec"]["disks"][0]["reclaimPolicy"] = json!("Retain");
        self.lab.apply_when_admitted(&archive).await.unwrap();
        let machines = self.machines("blue");
        for (name, reason) in [(LEDGER, "Running"), (ARCHIVE, "Stopped")] {
            let ready = machines.until_condition(name, "Ready", "True", reason);
            ready.await.unwrap();
        }
        for volume in self.blue.volumes() {
            let content = CANARY.repeat(100);
            let file = fs::OpenOptions::new().write(true).open(&volume).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, content.as_bytes(), 4096).unwrap();
        }
        machines.delete(ARCHIVE).await.unwrap();
        machines.until_gone(ARCHIVE).await.unwrap();
        let is_listed = |host: &Value| host["status"]["keptVolumes"][0]["disk"] == "papers";
        let listed = self
            .hosts()
            .until(SHARED, "to list the kept volume", is_listed)
            .await;
        listed.unwrap();
        assert_eq!(self.blue.volumes().len(), 2);
    }

    /// Deletes a Machine of a tenant on the host, or completes the deletion that the tenant has requested.
    pub(crate) async fn delete(&self, tenant: &str, name: &str) {
        let machines = self.machines(tenant);
        machines.delete(name).await.unwrap();
        let domain = format!("{tenant}-{name}-");
        wait::until(&format!("{name} to be gone"), async || {
            self.switch_off(&domain).await;
            let machine = machines.find(name).await?;
            Ok(machine.map_or(Ok(()), |machine| Err(machine["status"].to_string())))
        })
        .await
        .unwrap();
    }

    /// Switches off the guests whose domain's name begins so. They have no system that reacts to the power button, and
    /// the controller would wait a minute for each.
    pub(crate) async fn switch_off(&self, domain: &str) {
        let Some(libvirt) = &self.libvirt else {
            return;
        };
        let running = libvirt.virsh(&["list", "--name"]).await.unwrap();
        let running = running.ok().unwrap();
        for name in running.lines().filter(|name| name.starts_with(domain)) {
            // Fails if the controller was faster.
            libvirt.virsh(&["destroy", name]).await.unwrap();
        }
    }
}

/// A libvirtd, or why there is none.
async fn libvirt() -> Result<Libvirt, String> {
    if !Binary::has_libvirt().await.unwrap() {
        return Err("the controller is built without libvirt".to_owned());
    }
    let started = Libvirt::start().await.unwrap();
    started.map_err(|missing| missing.to_string())
}

/// A Machine of a tenant.
pub(crate) fn machine(tenant: &str, name: &str, spec: &Value) -> Value {
    let mut machine = lab::reviews::machine(name, spec);
    machine["metadata"]["namespace"] = json!(tenant);
    machine
}

/// A Machine on the libvirt host with this much memory and an empty disk.
pub(crate) fn local(tenant: &str, name: &str, memory: &str) -> Value {
    let spec = json!({
        "backend": "libvirt",
        "resources": {"cpu": {"cores": 1}, "memory": {"size": memory}},
        "disks": [{"name": "root", "size": "64Mi", "storageClass": "local"}],
    });
    machine(tenant, name, &spec)
}

/// A Machine on the libvirt host whose disk is made of an image.
pub(crate) fn from_image(tenant: &str, name: &str, image: &Value) -> Value {
    let mut machine = local(tenant, name, "128Mi");
    machine["spec"]["disks"][0]["image"] = image.clone();
    machine
}
