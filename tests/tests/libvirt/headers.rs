//! A guest writes the header of a qcow2 image into its raw disk, and libvirt reports what the header says.

use std::{
    fs::{self, OpenOptions},
    io::{Read as _, Write as _},
    path::Path,
    process::Command,
};

use lab::{
    libvirt::Report,
    objects::{condition, condition_message},
};
use serde_json::{Value, json};

use crate::environment::{Environment, host, root};

/// The first cluster of a qcow2, which has all that libvirt reads.
const HEADER: usize = 64 << 10;

/// A Machine with a raw disk of this size beside its root disk.
fn with_raw(size: &str, power: &str) -> Value {
    let raw =
        json!({"name": "raw", "size": size, "storageClass": "raw", "reclaimPolicy": "Delete"});
    json!({"disks": [root(), raw], "powerState": power})
}

/// What the guest writes: the header of an overlay with a disk of 1 TiB.
fn header(draft: &Path, backing: &Path) -> Vec<u8> {
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"])
        .args([backing, draft])
        .arg("1T")
        .status()
        .unwrap();
    assert!(made.success());
    let mut file = fs::read(draft).unwrap();
    file.truncate(HEADER);
    file
}

fn first_bytes(file: &Path) -> Vec<u8> {
    let mut head = vec![0; HEADER];
    fs::File::open(file).unwrap().read_exact(&mut head).unwrap();
    head
}

fn has_disk(mebibytes: u64) -> impl Fn(&Report) -> bool {
    move |report| report.disks.values().any(|size| *size == mebibytes << 20)
}

#[tokio::test]
async fn a_header_in_a_raw_disk_changes_nothing_for_its_machine_and_keeps_nobody_elses_volume() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let mut host = host();
    host["spec"]["storage"] = json!([
        {"storageClass": "local", "pool": "volumes"},
        {"storageClass": "raw", "pool": "volumes", "format": "raw", "provisioning": "copy"},
    ]);
    env.lab.apply(&host).await.unwrap();
    env.apply("victim", &json!({"powerState": "Stopped"})).await;
    env.apply("forger", &with_raw("64Mi", "Running")).await;
    let before = env
        .until_report("forger", "its raw disk", has_disk(64))
        .await;
    env.until_reachable("forger").await;
    env.until("victim", "to be off", |it| {
        it["status"]["phase"] == "Stopped"
    })
    .await;
    let victim = env.volumes.join(&env.files_of("victim")[0]);
    let raw = env.files_of(".raw.raw");
    let file = env.volumes.join(&raw[0]);
    let forged = header(&env.libvirt.path("draft.qcow2"), &victim);
    let mut disk = OpenOptions::new().write(true).open(&file).unwrap();
    disk.write_all(&forged).unwrap();
    env.virsh(&["pool-refresh", "volumes"]).await;
    let reported = env
        .virsh(&["vol-dumpxml", "--pool", "volumes", &raw[0]])
        .await;
    for part in [
        "<format type='qcow2'/>",
        "<capacity unit='bytes'>1099511627776</capacity>",
        &format!("<path>{}</path>", victim.display()),
    ] {
        assert!(reported.contains(part), "{part}: {reported}");
    }

    // The volume that the header names is deleted with its Machine.
    env.delete("victim").await;
    assert!(!victim.exists());

    // The disk grows while the guest runs, which is not restarted.
    env.apply("forger", &with_raw("128Mi", "Running")).await;
    let grown = env
        .until_report("forger", "its larger disk", has_disk(128))
        .await;
    assert_eq!(grown.boot, before.boot);
    let capacity =
        |machine: &Value| machine["status"]["volumes"][1]["capacity"].as_str() == Some("128Mi");
    let machine = env.until("forger", "to report the size", capacity).await;
    assert_eq!(machine["status"].get("pendingChanges"), None, "{machine}");
    assert_eq!(condition(&machine, "Ready")["status"], "True", "{machine}");

    // While the guest is off nothing opens what the header names; the disk grows with the next start.
    env.apply("forger", &with_raw("128Mi", "Stopped")).await;
    let is_off = |machine: &Value| machine["status"]["phase"] == "Stopped";
    env.until("forger", "to be off", is_off).await;
    env.virsh(&["pool-refresh", "volumes"]).await;
    env.apply("forger", &with_raw("192Mi", "Stopped")).await;
    let waits = |machine: &Value| {
        let message = condition_message(machine, "StorageReady");
        message.is_some_and(|it| it.contains("grows from 128Mi to 192Mi when the guest runs"))
    };
    env.until("forger", "to say when its disk grows", waits)
        .await;
    assert_eq!(first_bytes(&file), forged);
    assert_eq!(fs::metadata(&file).unwrap().len(), 128 << 20);
    env.apply("forger", &with_raw("192Mi", "Running")).await;
    env.until_report("forger", "its larger disk", has_disk(192))
        .await;
    assert_eq!(first_bytes(&file), forged, "the content is the guest's");

    env.delete("forger").await;
    assert_eq!(env.files(), [].into());
}
