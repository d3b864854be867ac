//! Machines of many namespaces whose images come from a server that never answers.

use anyhow::Result;
use lab::{
    Lab,
    image_server::ImageServer,
    libvirt::Libvirt,
    objects::{HOST, MACHINE, condition, namespace},
    reviews, wait,
};
use serde_json::{Value, json};

/// Fetches that a host runs at the same time; the others wait in the fair queue.
const FETCHES: usize = 4;

/// Registers the libvirt host.
pub(crate) async fn register(lab: &Lab, libvirt: &Libvirt, server: &ImageServer) -> Result<()> {
    for pool in ["images", "volumes"] {
        libvirt.pool(pool).await?;
    }
    let host = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "LibvirtHost",
        "metadata": {"name": "here"},
        "spec": {
            "uri": Libvirt::URI,
            "virtType": "qemu",
            "overcommit": {"cpu": "16"},
            "imagePool": "images",
            "imageSources": [server.url("")],
            "storage": [{"storageClass": "local", "pool": "volumes"}],
            "networks": [{"name": "default", "type": "network", "source": "default"}],
        },
    });
    lab.apply(&host).await?;
    let hosts = lab.objects(HOST, "");
    hosts
        .until_condition("here", "Ready", "True", "Ready")
        .await?;
    Ok(())
}

/// Creates a Machine in each of so many namespaces, and waits until the host fetches as many images as it can.
pub(crate) async fn start(lab: &Lab, server: &ImageServer, namespaces: usize) -> Result<()> {
    for number in 0..namespaces {
        let name = format!("slow-{number}");
        lab.apply(&namespace(&name, &json!({}))).await?;
        let mut machine = reviews::machine(
            "web",
            &json!({
                "backend": "libvirt",
                "resources": {"cpu": {"cores": 1}, "memory": {"size": "128Mi"}},
                "disks": [{
                    "name": "root", "size": "1Gi", "storageClass": "local",
                    "image": {"url": server.url(&format!("{name}.raw"))},
                }],
            }),
        );
        machine["metadata"]["namespace"] = json!(name);
        lab.apply_when_admitted(&machine).await?;
        let waits = |machine: &Value| condition(machine, "StorageReady")["status"] == "False";
        let machines = lab.objects(MACHINE, &name);
        machines
            .until("web", "to wait for its image", waits)
            .await?;
    }
    wait::until("the fetches to begin", async || {
        let fetches: usize = (0..namespaces)
            .map(|number| server.requests(&format!("slow-{number}.raw")))
            .sum();
        Ok((fetches >= FETCHES.min(namespaces))
            .then_some(())
            .ok_or(fetches))
    })
    .await
}
