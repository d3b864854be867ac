//! One Machine from creation to deletion, as its guest reports it, beside unrelated domains and volumes with similar
//! names, which are never changed.

use std::{collections::BTreeSet, fs};

use common::render::libvirt::{domain_name, short_id};
use lab::{
    libvirt::Report,
    objects::{HOST, NETWORK, condition},
    wait,
};
use serde_json::{Value, json};

use crate::environment::{Environment, root};

const NONCE: &str = "marker-5f1d0c";

const GI: u64 = 1 << 30;

/// The Machine's spec at each step.
struct Desired {
    data: &'static str,
    more: bool,
    power: &'static str,
}

impl Desired {
    fn spec(&self) -> Value {
        let data = json!({
            "name": "data", "size": self.data, "storageClass": "local", "reclaimPolicy": "Retain",
        });
        let mut disks = vec![root(), data];
        let mut networks = vec![json!({"name": "eth0"})];
        if self.more {
            disks.push(json!({"name": "more", "size": "64Mi", "storageClass": "local"}));
            networks.push(json!({"name": "eth1", "networkName": "second"}));
        }
        json!({
            "disks": disks,
            "networks": networks,
            "powerState": self.power,
            "cloudInit": {"userData": format!("#cloud-config\n# {NONCE}\n")},
        })
    }
}

#[tokio::test]
async fn a_machine_is_created_changed_and_deleted_on_a_libvirt_host() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let network = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"name": "second", "namespace": "default"},
        "spec": {"bridge": "br-second"},
    });
    env.lab.apply(&network).await.unwrap();
    env.lab
        .objects(NETWORK, "default")
        .get("second")
        .await
        .unwrap();

    let mut desired = Desired {
        data: "1Gi",
        more: false,
        power: "Running",
    };
    env.apply("life", &desired.spec()).await;
    let machine = env.until_reachable("life").await;
    let uid = machine["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(machine["status"]["host"], "here");
    assert_eq!(
        machine["status"]["vmName"],
        domain_name("default", "life", &uid)
    );
    let first = env
        .until_report("life", "its address", |it| addresses(it).len() == 1)
        .await;
    assert!(first.user_data.contains(NONCE), "{first:?}");
    assert!(
        first.meta_data.contains(r#""local-hostname":"life""#),
        "{first:?}"
    );
    assert_eq!(json!(addresses(&first)), machine["status"]["ipAddresses"]);
    assert_eq!(sizes(&first), [GI, GI]);
    assert_eq!((first.boots, first.firmware.as_str()), (1, "bios"));
    assert_eq!(serials(&first), ["data", "root"]);
    // The agent of the guest is the one of every distribution.
    let system = env
        .until("life", "to report its operating system", |machine| {
            machine["status"]["guestOS"]["kernel"].is_string()
        })
        .await;
    let agent = condition(&system, "AgentConnected");
    assert_eq!(agent["status"], "True", "{system}");
    let alike = look_alikes(&env, &uid).await;

    // A disk and a network card are added and a disk is expanded while the guest runs.
    desired.more = true;
    desired.data = "2Gi";
    env.apply("life", &desired.spec()).await;
    let grown = env
        .until_report("life", "what was added", |it| {
            sizes(it) == [64 << 20, GI, 2 * GI] && addresses(it).len() == 2
        })
        .await;
    assert_eq!(grown.boot, first.boot, "the guest was restarted");
    assert_eq!(serials(&grown), ["data", "more", "root"]);
    let reported = env
        .until("life", "to report both cards", |machine| {
            machine["status"]["ipAddresses"]
                .as_array()
                .is_some_and(|it| it.len() == 2)
        })
        .await;
    // All of it is hot-plugged: nothing waits for a restart.
    let pending = &reported["status"]["pendingChanges"];
    assert!(pending.is_null(), "{pending}");
    let cards: BTreeSet<String> = reported["status"]["networkInterfaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| card["macAddress"].as_str().unwrap().to_owned())
        .collect();
    let seen = grown.nics.values().map(|nic| nic.mac.clone()).collect();
    assert_eq!(cards, seen);

    off_and_on(&env, &mut desired, &grown).await;

    let before = env.files_of(&short_id(&uid));
    let domain = env.domain("life").await;
    env.delete("life").await;
    assert!(!env.domains().await.contains(&domain));
    let kept: Vec<_> = before
        .into_iter()
        .filter(|name| name.contains(".data."))
        .collect();
    assert_eq!(kept.len(), 1);
    let left = env.files_of(&short_id(&uid));
    let left: Vec<_> = left
        .into_iter()
        .filter(|name| !alike.contains(name))
        .collect();
    assert_eq!(left, kept);
    untouched(&env, &alike).await;
}

/// After a stop and a start the guest has the same disks, and the same names for its network cards.
async fn off_and_on(env: &Environment, desired: &mut Desired, before: &Report) {
    desired.power = "Stopped";
    env.apply("life", &desired.spec()).await;
    env.until("life", "to be off", |it| it["status"]["phase"] == "Stopped")
        .await;
    let domain = env.domain("life").await;
    assert_eq!(env.virsh(&["domstate", &domain]).await.trim(), "shut off");

    desired.power = "Running";
    env.apply("life", &desired.spec()).await;
    let second = env
        .until_report("life", "its addresses", |it| addresses(it).len() == 2)
        .await;
    assert_ne!(second.boot, before.boot);
    assert_eq!(second.boots, 2, "another root disk");
    let names = |report: &Report| -> Vec<(String, String)> {
        let nics = report.nics.iter();
        nics.map(|(name, nic)| (name.clone(), nic.mac.clone()))
            .collect()
    };
    assert_eq!(
        names(&second),
        names(before),
        "the guest's names of its cards"
    );
}

/// Creates domains and volumes whose names resemble those of the Machine, and returns the names.
async fn look_alikes(env: &Environment, uid: &str) -> BTreeSet<String> {
    let id = short_id(uid);
    let domain = env.domain("life").await;
    let metadata = ["metadata", &domain, "https://vitistack.io/machine/v1"];
    let metadata = env.virsh(&metadata).await;
    let mut names = BTreeSet::new();
    // One with a longer name, and one with the metadata of the Machine and another uuid.
    for (name, metadata) in [
        (format!("{domain}-old"), String::new()),
        (
            format!("copy-of-{domain}"),
            format!("<metadata>{metadata}</metadata>"),
        ),
    ] {
        let xml = format!(
            "<domain type='qemu'><name>{name}</name>{metadata}<memory unit='MiB'>64</memory>\
             <os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
        );
        let file = env.libvirt.path("alike.xml");
        fs::write(&file, xml).unwrap();
        env.virsh(&["define", &file.display().to_string()]).await;
        names.insert(name);
    }
    for volume in [
        format!("default-life-{id}0.root.qcow2"),
        format!("default-life-root.{id}.qcow2"),
        format!("{id}.qcow2"),
    ] {
        assert!(
            !common::render::libvirt::is_volume_of(&volume, uid),
            "{volume}"
        );
        fs::write(env.volumes.join(&volume), &volume).unwrap();
        names.insert(volume);
    }
    env.virsh(&["pool-refresh", "volumes"]).await;
    names
}

async fn untouched(env: &Environment, alike: &BTreeSet<String>) {
    let mut there = env.domains().await;
    there.extend(env.files());
    let gone: Vec<_> = alike.difference(&there).collect();
    assert!(gone.is_empty(), "{gone:?}");
    for volume in env.files().intersection(alike) {
        let content = fs::read_to_string(env.volumes.join(volume)).unwrap();
        assert_eq!(content, *volume);
    }
    wait::until("the host to report the foreign domains", async || {
        let host = env.lab.objects(HOST, "").get("here").await?;
        let domains = host["status"]["domains"].clone();
        let right = domains["ours"] == 0 && domains["foreign"] == 2 && domains["orphaned"] == 0;
        Ok(right.then_some(()).ok_or(domains.to_string()))
    })
    .await
    .unwrap();
}

fn addresses(report: &Report) -> Vec<String> {
    let nics = report.nics.values().map(|nic| nic.address.clone());
    nics.filter(|address| !address.is_empty()).collect()
}

fn sizes(report: &Report) -> Vec<u64> {
    let mut sizes: Vec<_> = report.disks.values().copied().collect();
    sizes.sort_unstable();
    sizes
}

/// The serial numbers that the guest sees, by which it names its disks.
fn serials(report: &Report) -> Vec<&str> {
    let mut serials: Vec<_> = report.serials.values().map(String::as_str).collect();
    serials.sort_unstable();
    serials
}
