//! The controller in its pod, and a libvirtd that it reaches over TLS.

use lab::{
    OPERATOR_NAMESPACE,
    libvirt::{self, Libvirt},
    node::{self, Cluster},
    objects::{HOST, MACHINE},
    reviews,
};
use serde_json::json;

/// A Machine boots on a libvirt host, and is deleted with its volume.
pub(crate) async fn a_machine_boots_and_is_deleted(cluster: &mut Cluster) {
    let libvirt = Libvirt::start().await.unwrap().unwrap();
    let images = libvirt.pool("images").await.unwrap();
    let volumes = libvirt.pool("volumes").await.unwrap();
    let image = libvirt::image().await.unwrap();
    libvirt.volume(&images, "guest.raw", &image).await.unwrap();
    let server = libvirt.serve_tls(node::ADDRESS).await.unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "rack-1", "namespace": OPERATOR_NAMESPACE},
        "stringData": server.credentials,
    });
    let host = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "LibvirtHost",
        "metadata": {"name": "rack-1"},
        "spec": {
            "uri": server.uri,
            "credentialsSecretRef": {"namespace": OPERATOR_NAMESPACE, "name": "rack-1"},
            "virtType": "qemu",
            "imagePool": "images",
            "storage": [{"storageClass": "local", "pool": "volumes"}],
            "networks": [{"name": "default", "type": "network", "source": "default"}],
        },
    });
    let lab = &cluster.lab;
    for object in [&secret, &host] {
        lab.apply(object).await.unwrap();
    }
    let ready = lab.objects(HOST, "");
    let ready = ready.until_condition("rack-1", "Ready", "True", "Ready");
    ready.await.unwrap();
    let machine = reviews::machine(
        "on-libvirt",
        &json!({
            "backend": "libvirt",
            "resources": {"cpu": {"cores": 1}, "memory": {"size": "256Mi"}},
            "disks": [{
                "name": "root", "size": "1Gi", "storageClass": "local",
                "image": {"volume": "guest.raw"},
            }],
        }),
    );
    lab.apply_when_admitted(&machine).await.unwrap();
    let machines = lab.objects(MACHINE, "default");
    let defined = machines.until("on-libvirt", "to have a domain", |it| {
        it["status"]["phase"] == "Running"
    });
    defined.await.unwrap();
    let domains = libvirt.virsh(&["list", "--name"]).await.unwrap();
    let domain = domains.ok().unwrap().trim().to_owned();
    let report = libvirt.wait_for_report(&domain, "its first boot", |_| true);
    assert_eq!(report.await.unwrap().boots, 1);
    machines.delete("on-libvirt").await.unwrap();
    machines.until_gone("on-libvirt").await.unwrap();
    assert_eq!(std::fs::read_dir(volumes).unwrap().count(), 0);
}
