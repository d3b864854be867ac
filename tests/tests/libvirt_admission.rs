//! Admission of Machines on libvirt hosts: a requirement that no host satisfies is refused, and a Machine whose host was
//! deleted can still be edited.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use lab::{
    Kubectl, Lab, Output,
    objects::{HOST, MACHINE},
    paths, wait,
};
use serde_json::{Value, json};

mod machines;
use machines::machine;

/// A host with a class of its own, as a user writes it.
fn host(name: &str, class: &str, more: &Value) -> Value {
    let mut host = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "LibvirtHost",
        "metadata": {"name": name, "labels": {"host": name}},
        "spec": {
            "uri": "qemu:///system",
            "virtType": "qemu",
            "storage": [{"storageClass": class, "pool": "default"}],
            "networks": [{"name": "default", "type": "network", "source": "default"}],
        },
    });
    for (field, value) in more.as_object().unwrap() {
        host["spec"][field] = value.clone();
    }
    host
}

async fn apply(kubectl: &Kubectl, object: impl ToString) -> Output {
    let output = kubectl.run_with(&["apply", "-f", "-"], object.to_string());
    output.await.unwrap()
}

async fn block(lab: &Lab, name: &str) -> Value {
    let machine = lab.objects(MACHINE, "default").get(name).await.unwrap();
    machine["spec"]["normalized"].clone()
}

#[tokio::test]
async fn the_examples_are_accepted_in_one_go() {
    let (lab, _webhook) = machines::lab(&[]).await;
    let kubectl = lab.kubectl();
    let folder = paths::repository().join("manifests/examples/libvirt");
    let apply = ["apply", "-f", folder.to_str().unwrap()];
    // The webhook's watch may not have delivered the host yet when the Machine is reviewed.
    let output = kubectl.run(&apply).await.unwrap();
    assert_eq!(output.code, 0, "{output}");
    assert_eq!(
        output.stderr,
        "Warning: normalized to template small; 1 vCPU, 2Gi; root 20Gi on local; NIC default\n"
    );
    let block = block(&lab, "libvirt-vm").await;
    assert_eq!(block["backend"], "libvirt");
    assert_eq!(block["disks"][0]["storageClass"], "local");
    assert_eq!(block["nodeSelector"], json!({"zone": "here"}));

    let table = kubectl.run(&["get", "lh", "local"]).await.unwrap();
    let head = table.ok().unwrap();
    let head: Vec<_> = head.lines().next().unwrap().split_whitespace().collect();
    let columns = "NAME READY REACHABLE SCHEDULABLE CPU MEMORY MACHINES AGE";
    assert_eq!(head, columns.split(' ').collect::<Vec<_>>());
}

#[tokio::test]
async fn a_requirement_that_no_host_satisfies_is_refused_until_one_does() {
    let (lab, _webhook) = machines::lab(&[("DEFAULT_BACKEND", "libvirt")]).await;
    let kubectl = lab.kubectl();
    // The setting selects the backend; the Machine names none.
    let web = machine(
        "web",
        "template: small\ndisks: [{name: data, size: 1Gi, storageClass: fats}]",
    );
    assert_eq!(
        apply(&kubectl, &web).await.refused().unwrap(),
        "The Machine \"web\" is invalid: spec.backend: Required value: libvirt is the default backend, \
         and there is no LibvirtHost; register one, or set backend: kubevirt [NoLibvirtHost]\n"
    );
    for made in [
        host("hv1", "fast", &json!({})),
        host("hv2", "big", &json!({"imagePool": "images"})),
    ] {
        apply(&kubectl, &made).await.ok().unwrap();
    }
    assert_eq!(
        apply(&kubectl, &web).await.refused().unwrap(),
        "The Machine \"web\" is invalid: \n\
         * spec.template: Required value: no LibvirtHost offers a storage class 'default'; name one in \
         storageClass. Storage classes of LibvirtHosts: big and fast (disks[0].storageClass of the \
         template) [NoDefaultStorageClass]\n\
         * spec.disks[0].storageClass: Not found: \"fats\": did you mean 'fast'? storage classes of \
         LibvirtHosts: fast and big [StorageClassNotFound]\n"
    );
    // A StorageClass of the cluster is not one of a host.
    let split = "template: small\nbootOrder: [network]\ndisks: [{name: root, storageClass: fast}, {name: data, size: 1Gi, storageClass: big}]";
    assert_eq!(
        apply(&kubectl, machine("web", split))
            .await
            .refused()
            .unwrap(),
        "The Machine \"web\" is invalid: spec.disks[1].storageClass: Invalid value: \"big\": no \
         single LibvirtHost has all that this Machine needs: 'hv1' lacks storage class 'big'; 'hv2' \
         lacks storage class 'fast'; take what one has, or extend a LibvirtHost [NoHostFits]\n"
    );
    let both = json!({"storage": [
        {"storageClass": "fast", "pool": "default"},
        {"storageClass": "big", "pool": "big"},
    ]});
    let extended = host("hv1", "fast", &both);
    apply(&kubectl, &extended).await.ok().unwrap();
    // Accepted at once: the webhook reads what its watch has not delivered yet.
    let output = apply(&kubectl, machine("web", split)).await;
    assert_eq!(output.code, 0, "{output}");
    assert_eq!(
        output.stderr,
        "Warning: normalized to template small; 1 vCPU, 2Gi; root 20Gi on fast, data 1Gi on big; NIC default\n"
    );
    let block = block(&lab, "web").await;
    assert_eq!(block["backend"], "libvirt");
    assert_eq!(block["disks"][0]["storageClass"], "fast");
    assert_eq!(block["disks"][1]["storageClass"], "big");
}

#[tokio::test]
async fn a_machine_whose_host_was_deleted_can_still_be_edited() {
    let (lab, _webhook) = machines::lab(&[]).await;
    let kubectl = lab.kubectl();
    apply(&kubectl, host("hv1", "local", &json!({})))
        .await
        .ok()
        .unwrap();
    let spec = "backend: libvirt\ntemplate: small";
    apply(&kubectl, machine("web", spec)).await.ok().unwrap();
    lab.objects(HOST, "").delete("hv1").await.unwrap();
    // Wait until the webhook's cache has the deletion.
    let other = machine("other", spec);
    let dry = ["apply", "--dry-run=server", "-f", "-"];
    let forgotten = wait::until(
        "the webhook to have seen the deletion of the host",
        async || {
            let output = kubectl.run_with(&dry, &other).await?;
            Ok(if output.code == 1 {
                Ok(output)
            } else {
                Err(output)
            })
        },
    );
    assert_eq!(
        forgotten.await.unwrap().stderr,
        "The Machine \"other\" is invalid: spec.backend: Invalid value: \"libvirt\": there is no \
         LibvirtHost to run it; register one, or use backend: kubevirt [NoLibvirtHost]\n"
    );

    let stopped = machine(
        "web",
        &format!("{spec}\npowerState: Stopped\nresources: {{cpu: {{cores: 2}}}}"),
    );
    let output = apply(&kubectl, stopped).await;
    assert_eq!(output.code, 0, "{output}");
    let block = block(&lab, "web").await;
    assert_eq!(block["powerState"], "Stopped");
    assert_eq!(block["disks"][0]["storageClass"], "local");
}

#[tokio::test]
async fn an_invalid_host_is_refused_before_it_is_stored() {
    let (lab, _webhook) = machines::lab(&[]).await;
    let kubectl = lab.kubectl();
    let faulty = host(
        "hv1",
        "local",
        &json!({
            "uri": "qemu+ssh://hv1/system?command=/bin/sh",
            "overcommit": {"cpu": "0"},
            "networks": [{"name": "br0", "type": "bridge", "source": "br0", "vlans": [100, 200]}],
        }),
    );
    assert_eq!(
        apply(&kubectl, faulty).await.refused().unwrap(),
        "The LibvirtHost \"hv1\" is invalid: \n\
         * spec.uri: Invalid value: \"qemu+ssh://hv1/system?command=/bin/sh\": has the parameter 'command'; \
         parameters can name a program that the controller would run, so none is allowed; write it as \
         'qemu+ssh://hv1/system' [InvalidHostUri]\n\
         * spec.credentialsSecretRef: Required value: name the Secret with ssh-privatekey and known_hosts \
         [CredentialsRequired]\n\
         * spec.overcommit.cpu: Invalid value: \"0\": must be a positive decimal number such as '1.5', \
         of at most three digits before and after the point, or left out for the default [InvalidFactor]\n\
         * spec.networks[0].vlans: Forbidden: a plain bridge can be in one VLAN only, and the list has 2; \
         use a bridge for each, or type: ovs [ManyVlansOnBridge]\n"
    );
    // Faults that the schema would report later, and without the other faults.
    let more = json!({"virtType": "xen", "storage": [{"storageClass": "local"}]});
    let reported = apply(&kubectl, host("hv1", "local", &more)).await;
    assert_eq!(
        reported.refused().unwrap(),
        "The LibvirtHost \"hv1\" is invalid: \n\
         * spec.virtType: Unsupported value: \"xen\": supported values: \"kvm\", \"qemu\" \
         [UnsupportedHostValue]\n\
         * spec.storage[0].pool: Required value: name the libvirt pool in which the volumes are \
         created [HostFieldRequired]\n"
    );
}

/// The API server answers a schema fault with 422, after which `kubectl apply --force` deletes the object and creates it
/// again. The webhook refuses the fault before with 403.
#[tokio::test]
async fn apply_with_force_deletes_no_host_for_a_schema_fault() {
    let (lab, _webhook) = machines::lab(&[]).await;
    let kubectl = lab.kubectl();
    let good = host("hv1", "local", &json!({}));
    apply(&kubectl, &good).await.ok().unwrap();
    let uid = async || {
        let host = lab.objects(HOST, "").get("hv1").await.unwrap();
        host["metadata"]["uid"].clone()
    };
    let before = uid().await;
    let twin = json!({"name": "default", "type": "network", "source": "default"});
    let class =
        |number: usize| json!({"storageClass": format!("class-{number}"), "pool": "default"});
    for (typo, reported) in [
        (
            json!({"uri": 7, "virtType": "xen"}),
            "2 faults:\n\
             * spec.uri: Invalid value: 7: must be a text; put it in quotes [WrongType]\n\
             * spec.virtType: Unsupported value: \"xen\": supported values: \"kvm\", \"qemu\" \
             [UnsupportedHostValue]\n",
        ),
        (
            json!({"networks": [twin, twin]}),
            "1 fault:\n\
             * spec.networks[1].name: Duplicate value: \"default\": spec.networks[0].name is the \
             same; each needs its own name [DuplicateOffer]\n",
        ),
        (
            json!({"storage": (0..65).map(class).collect::<Vec<_>>()}),
            "1 fault:\n\
             * spec.storage: Too many: has 65 items; at most 64 are allowed [TooMany]\n",
        ),
        (
            json!({"overcommit": {"cpu": "1000"}, "imagePool": "/images"}),
            "2 faults:\n\
             * spec.overcommit.cpu: Invalid value: \"1000\": must be a positive decimal number such as \
             '1.5', of at most three digits before and after the point, or left out for the default \
             [InvalidFactor]\n\
             * spec.imagePool: Invalid value: \"/images\": must be a name that libvirt can have: at most \
             253 characters without '/' and control characters [InvalidObjectName]\n",
        ),
    ] {
        let object = host("hv1", "local", &typo).to_string();
        let forced = ["apply", "--force", "-f", "-"];
        let output = kubectl.run_with(&forced, object).await.unwrap();
        let stderr = output.refused().unwrap();
        assert!(
            stderr.starts_with("Error from server (Forbidden): "),
            "{stderr}"
        );
        assert!(stderr.contains(reported), "{stderr}");
        assert_eq!(uid().await, before);
    }
}
