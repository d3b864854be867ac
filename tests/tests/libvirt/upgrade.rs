//! An upgrade from release 0.1.0 with a running Machine, on a host that serves images and disks from one pool, which is
//! refused today.

use std::{fs, fs::File, path::Path, process::Command};

use common::{
    mac::Mac,
    render::libvirt::{domain_name, domain_uuid, short_id},
};
use lab::{
    Binary, Lab, Options,
    libvirt::{Libvirt, image},
    objects::{HOST, MACHINE, cluster_uid, condition},
};
use serde_json::{Value, json};

use crate::environment::{Environment, libvirt};

/// A running Machine with its status, and the volumes of its pool, as that release wrote them.
const OBJECTS: &str =
    include_str!("../../../controller/libvirt/src/plan/tests/adoption/release-0.1.0.json");
/// The definition of its domain, as that release wrote it.
const DOMAIN: &str =
    include_str!("../../../controller/libvirt/src/plan/tests/adoption/release-0.1.0.xml");
/// The pool in both.
const POOL: &str = "vms";

fn host() -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "LibvirtHost",
        "metadata": {"name": "alpha"},
        "spec": {
            "uri": Libvirt::URI,
            "virtType": "qemu",
            "overcommit": {"cpu": "8"},
            "imagePool": POOL,
            "storage": [
                {"storageClass": "local", "pool": POOL},
                {"storageClass": "copied", "pool": POOL, "provisioning": "copy"},
            ],
            "networks": [{"name": "default", "type": "network", "source": "default"}],
        },
    })
}

/// What that release had at the API server and on the host, with the names that follow from the uid.
struct Former {
    volumes: Vec<Value>,
    domain: String,
}

/// Stores the objects of that release, as long as no webhook of this one refuses any.
async fn store(lab: &Lab) -> Former {
    lab.apply(&host()).await.unwrap();
    let objects: Value = serde_json::from_str(OBJECTS).unwrap();
    let machine = objects["machine"].clone();
    let status = json!({"status": machine["status"]});
    let machines = lab.objects(MACHINE, "default");
    let stored = machines.create_recorded(machine).await.unwrap();
    machines.merge_status("web", &status).await.unwrap();
    let uid = stored["metadata"]["uid"].as_str().unwrap();
    let named = |text: &str| {
        text.replace(
            &domain_uuid("uid-of-web").to_string(),
            &domain_uuid(uid).to_string(),
        )
        .replace(&short_id("uid-of-web"), &short_id(uid))
        .replace("uid-of-web", uid)
    };
    let cluster = cluster_uid(lab.client()).await.unwrap();
    let mac = Mac::derived(&cluster, "default", "web", "default").to_string();
    let volumes = named(&objects["volumes"].to_string());
    Former {
        volumes: serde_json::from_str(&volumes).unwrap(),
        domain: named(DOMAIN).replace("fe:86:09:16:9f:0a", &mac),
    }
}

/// Makes the volumes and starts the guest.
async fn run(libvirt: &Libvirt, former: &Former, pool: &Path) {
    let image = image().await.unwrap();
    let mut volumes = former.volumes.clone();
    // An overlay is made after its image, which is raw.
    volumes.sort_by_key(|volume| volume["raw"] != true);
    for volume in &volumes {
        let name = volume["name"].as_str().unwrap();
        let file = pool.join(name);
        let size = volume["capacity"].as_u64().unwrap();
        if name.starts_with("vitistack-image-") && size > 1 {
            fs::copy(&image, &file).unwrap();
        } else if volume["raw"] == true {
            File::create(&file).unwrap().set_len(size).unwrap();
        } else {
            let mut create = Command::new("qemu-img");
            create.args(["create", "-q", "-f", "qcow2"]);
            if let Some((_, base)) = volume["backing"]
                .as_str()
                .and_then(|it| it.rsplit_once('/'))
            {
                create.args(["-F", "raw", "-b"]).arg(pool.join(base));
            }
            let made = create.arg(&file).arg(size.to_string()).status();
            assert!(made.unwrap().success(), "{name}");
        }
    }
    libvirt.volume(pool, "guest.raw", &image).await.unwrap();
    let file = libvirt.path("release-0.1.0.xml");
    fs::write(&file, &former.domain).unwrap();
    let define = ["define", "--validate", &file.display().to_string()];
    libvirt.virsh(&define).await.unwrap().ok().unwrap();
}

#[tokio::test]
async fn a_running_machine_of_release_0_1_0_is_adopted_and_its_host_goes_on_serving() {
    if !Binary::has_libvirt().await.unwrap() {
        lab::skip("the controller is built without libvirt");
        return;
    }
    let Some(libvirt) = libvirt().await else {
        return;
    };
    let pool = libvirt.pool(POOL).await.unwrap();
    let lab = Lab::with(Options::default()).await.unwrap();
    let former = store(&lab).await;
    run(&libvirt, &former, &pool).await;
    let machines = lab.objects(MACHINE, "default");
    let stored = machines.get("web").await.unwrap();
    let uid = stored["metadata"]["uid"].as_str().unwrap();
    let domain = domain_name("default", "web", uid);
    libvirt
        .virsh(&["start", &domain])
        .await
        .unwrap()
        .ok()
        .unwrap();
    let first = libvirt.wait_for_report(&domain, "its first boot", |it| it.boots == 1);
    let first = first.await.unwrap();
    let process = libvirt.path(&format!("run/qemu/{domain}.pid"));
    let process_id = fs::read_to_string(&process).unwrap();
    let dump = ["dumpxml", "--inactive", &domain];
    let defined = libvirt.virsh(&dump).await.unwrap().ok().unwrap();

    let env = Environment::begin(lab, libvirt, pool, &[]).await;
    let hosts = env.lab.objects(HOST, "");
    let host = hosts
        .until_condition("alpha", "PoolsReady", "False", "ImagePoolShared")
        .await
        .unwrap();
    assert_eq!(condition(&host, "Ready")["status"], "True", "{host}");
    let adopted = env.until_reachable("web").await;
    assert_eq!(adopted["spec"], stored["spec"], "the block is as it was");
    assert_eq!(adopted["status"]["host"], "alpha");
    assert_eq!(adopted["status"].get("pendingChanges"), None);

    // What was stored is accepted again, and the pool that is refused today serves the next Machine.
    let label = json!({"metadata": {"labels": {"upgraded": "yes"}}});
    machines.merge("web", &label).await.unwrap();
    let labelled = machines.get("web").await.unwrap();
    assert_eq!(labelled["spec"], stored["spec"]);
    let more = json!({"spec": {"overcommit": {"cpu": "9"}}});
    hosts.merge("alpha", &more).await.unwrap();
    env.apply("new", &json!({})).await;
    env.until_reachable("new").await;

    let again = env.virsh(&["dumpxml", "--inactive", &domain]).await;
    assert_eq!(again, defined, "the definition is as it was");
    assert_eq!(fs::read_to_string(&process).unwrap(), process_id);
    let now = env.until_report("web", "anything", |_| true).await;
    assert_eq!((now.boots, now.boot), (1, first.boot), "no restart");

    env.delete("web").await;
    let left = env.files_of(&short_id(uid));
    assert!(
        matches!(&left[..], [data] if data.ends_with(".data.qcow2")),
        "{left:?}"
    );
}
