//! The simulator, with VirtualMachines that the test creates: it reports the same as KubeVirt.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
    core::ApiResource,
};
use lab::{Cdi, KubevirtCrds, Lab, Options, Scenario, wait};
use serde_json::{Value, json};

async fn lab() -> Lab {
    let options = Options {
        kubevirt: KubevirtCrds::best(),
        storage_classes: true,
        multus: true,
        cdi: Cdi::Current,
        controller_manager: true,
        ..Options::bare()
    };
    Lab::with(options).await.unwrap()
}

fn api(client: &Client, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", kind));
    Api::default_namespaced_with(client.clone(), &resource)
}

fn machine(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"runStrategy": "Always", "template": {"spec": {
            "domain": {"devices": {
                "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                "interfaces": [{
                    "name": "default", "masquerade": {}, "macAddress": "02:00:00:00:00:01",
                }],
            }},
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": format!("{name}-root")}}],
        }}},
    })
}

fn claim(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": format!("{name}-root"),
            "namespace": "default",
            "labels": BTreeMap::from([("vitistack.io/machine", name)]),
        },
        "spec": {
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// Waits until the machine has this `printableStatus`.
async fn shows(lab: &Lab, name: &str, wanted: &str) -> Value {
    let machines = api(lab.client(), "VirtualMachine");
    wait::until(&format!("{name} to be {wanted}"), async || {
        let machine = machines.get(name).await?;
        let status = machine.data["status"].clone();
        Ok(if status["printableStatus"] == wanted {
            Ok(status)
        } else {
            Err(status)
        })
    })
    .await
    .unwrap()
}

async fn gone(api: &Api<DynamicObject>, name: &str) -> Result<()> {
    wait::until(&format!("{name} to be gone"), async || {
        Ok(match api.get_opt(name).await? {
            None => Ok(()),
            Some(object) => Err(object.metadata),
        })
    })
    .await
}

#[tokio::test]
async fn a_machine_runs_stops_and_is_deleted_in_order() {
    let lab = lab().await;
    let simulator = lab.simulator(Scenario::Happy).await.unwrap();
    lab.apply(&claim("web", "fast-ssd")).await.unwrap();
    lab.apply(&machine("web")).await.unwrap();

    let status = shows(&lab, "web", "Running").await;
    assert_eq!(status["ready"], true);
    let instances = api(lab.client(), "VirtualMachineInstance");
    let instance = instances.get("web").await.unwrap();
    assert_eq!(instance.data["status"]["phase"], "Running");
    let interface = &instance.data["status"]["interfaces"][0];
    assert_eq!(interface["mac"], "02:00:00:00:00:01");
    assert!(
        interface["ipAddresses"][0]
            .as_str()
            .unwrap()
            .starts_with("10.244.")
    );

    let machines = api(lab.client(), "VirtualMachine");
    let halt = Patch::Merge(json!({"spec": {"runStrategy": "Halted"}}));
    machines
        .patch("web", &PatchParams::default(), &halt)
        .await
        .unwrap();
    shows(&lab, "web", "Stopped").await;
    // KubeVirt reports Stopped while the ended instance is still being deleted.
    wait::until("the instance to be gone", async || {
        Ok(match instances.get_opt("web").await? {
            None => Ok(()),
            Some(instance) => Err(instance.metadata.deletion_timestamp),
        })
    })
    .await
    .unwrap();

    let run = Patch::Merge(json!({"spec": {"runStrategy": "Always"}}));
    machines
        .patch("web", &PatchParams::default(), &run)
        .await
        .unwrap();
    shows(&lab, "web", "Running").await;

    simulator.set("default", "web", Scenario::Stuck);
    machines
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    shows(&lab, "web", "Terminating").await;
    assert!(instances.get_opt("web").await.unwrap().is_some());
    simulator.set("default", "web", Scenario::Happy);
    gone(&instances, "web").await.unwrap();
    gone(&machines, "web").await.unwrap();
}

#[tokio::test]
async fn each_scenario_reports_the_status_that_kubevirt_reports() {
    let lab = lab().await;
    let simulator = lab.simulator(Scenario::Happy).await.unwrap();
    let scenarios = [
        ("full", Scenario::Unschedulable, "ErrorUnschedulable"),
        ("broken", Scenario::Crash, "CrashLoopBackOff"),
        ("waiting", Scenario::PvcPending, "ErrorUnschedulable"),
        ("no-quota", Scenario::PodOverQuota, "Starting"),
        ("restricted", Scenario::PodNotAllowed, "Starting"),
        ("denied", Scenario::PodDenied, "Starting"),
        ("refused", Scenario::InstanceRefused, "Stopped"),
        ("no-image", Scenario::ImagePull, "ImagePullBackOff"),
        ("late", Scenario::Slow, "Running"),
    ];
    for (name, scenario, _) in scenarios {
        simulator.set("default", name, scenario);
        lab.apply(&claim(name, "standard")).await.unwrap();
        lab.apply(&machine(name)).await.unwrap();
    }
    lab.apply(&machine("diskless")).await.unwrap();
    lab.apply(&claim("classless", "nowhere")).await.unwrap();
    lab.apply(&machine("classless")).await.unwrap();

    for (name, _, wanted) in scenarios {
        shows(&lab, name, wanted).await;
    }
    let status = shows(&lab, "diskless", "ErrorPvcNotFound").await;
    let why = text(&status, "Synchronized");
    assert!(why.ends_with("didn't find PVC diskless-root"), "{why}");
    shows(&lab, "classless", "ErrorUnschedulable").await;
    for (name, kind, part) in [
        ("full", "PodScheduled", "3 Insufficient memory."),
        (
            "waiting",
            "PodScheduled",
            "pod has unbound immediate PersistentVolumeClaims.",
        ),
        ("no-quota", "Synchronized", "exceeded quota: compute"),
        ("restricted", "Synchronized", "violates PodSecurity"),
        ("denied", "Synchronized", "denied the request: privileged"),
        ("refused", "Failure", "exceeded quota: guests"),
        ("no-image", "Synchronized", "Back-off pulling image"),
    ] {
        let machines = api(lab.client(), "VirtualMachine");
        wait::until(&format!("{name} to say why"), async || {
            let status = machines.get(name).await?.data["status"].clone();
            let found = text(&status, kind).contains(part);
            Ok(if found { Ok(()) } else { Err(status) })
        })
        .await
        .unwrap();
    }

    // All of them are over when their cause is.
    simulator.set_all(Scenario::Happy);
    for (name, ..) in scenarios {
        shows(&lab, name, "Running").await;
    }
}

/// From the creation of its VirtualMachine until its guest runs, a Machine's objects change as often as with KubeVirt.
#[tokio::test]
async fn an_instance_takes_five_steps_until_its_guest_is_ready() {
    let lab = lab().await;
    let _simulator = lab.simulator(Scenario::Happy).await.unwrap();
    let start = lab.log_position().await.unwrap();
    lab.apply(&claim("web", "standard")).await.unwrap();
    lab.apply(&machine("web")).await.unwrap();
    shows(&lab, "web", "Running").await;
    let instances = api(lab.client(), "VirtualMachineInstance");
    wait::until("the instance to be ready", async || {
        let status = instances.get("web").await?.data["status"].clone();
        let ready = status["conditions"][0] == json!({"type": "Ready", "status": "True"});
        Ok(if ready { Ok(()) } else { Err(status) })
    })
    .await
    .unwrap();
    let writes = lab.requests_since(start).await.unwrap();
    let steps = writes
        .iter()
        .filter(|it| it.resource == "virtualmachineinstances" && it.wrote());
    assert!(steps.count() >= 5, "{writes:#?}");
}

/// The message of a condition of a status; empty without one.
fn text<'a>(status: &'a Value, kind: &str) -> &'a str {
    let conditions = status["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == kind);
    found
        .and_then(|condition| condition["message"].as_str())
        .unwrap_or_default()
}

#[tokio::test]
async fn a_bound_claim_grows_where_its_class_allows_it() {
    let lab = lab().await;
    let _simulator = lab.simulator(Scenario::Happy).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(lab.client().clone());
    let capacity = async |name: &str, wanted: &str| {
        wait::until(&format!("{name} to have {wanted}"), async || {
            let claim = claims.get(name).await?;
            let status = claim.status.unwrap_or_default();
            let found = status.capacity.unwrap_or_default();
            Ok(match found.get("storage") {
                Some(size) if size.0 == wanted => Ok(()),
                other => Err(format!("{other:?} {:?}", status.phase)),
            })
        })
        .await
        .unwrap();
    };
    let grow = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
    let parameters = PatchParams::default();

    for (name, class) in [("grows", "fast-ssd"), ("stays", "standard")] {
        lab.apply(&claim(name, class)).await.unwrap();
        capacity(&format!("{name}-root"), "1Gi").await;
    }
    claims
        .patch("grows-root", &parameters, &grow)
        .await
        .unwrap();
    capacity("grows-root", "2Gi").await;
    let error = claims
        .patch("stays-root", &parameters, &grow)
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("only dynamically provisioned pvc can be resized"),
        "{error}"
    );
}

#[tokio::test]
async fn a_guest_that_shut_down_stays_off_with_guest_shutdown_stops() {
    let lab = lab().await;
    let simulator = lab.simulator(Scenario::Happy).await.unwrap();
    for (name, strategy) in [("again", "Always"), ("once", "RerunOnFailure")] {
        let mut machine = machine(name);
        machine["spec"]["runStrategy"] = json!(strategy);
        lab.apply(&claim(name, "standard")).await.unwrap();
        lab.apply(&machine).await.unwrap();
        shows(&lab, name, "Running").await;
    }
    let instances = api(lab.client(), "VirtualMachineInstance");
    let before = instances.get("again").await.unwrap().uid();
    simulator.guest_shutdown("default", "once").await.unwrap();
    shows(&lab, "once", "Stopped").await;

    simulator.guest_shutdown("default", "again").await.unwrap();
    wait::until("another instance that runs", async || {
        let instance = instances.get_opt("again").await?;
        Ok(match instance {
            Some(new) if new.uid() != before && new.data["status"]["phase"] == "Running" => Ok(()),
            other => Err(other.map(|instance| instance.data)),
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_image_is_imported_into_a_claim() {
    let lab = lab().await;
    let _simulator = lab.simulator(Scenario::Happy).await.unwrap();
    let volume = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1",
        "kind": "DataVolume",
        "metadata": {"name": "web-root", "namespace": "default"},
        "spec": {
            "source": {"http": {"url": "https://example.com/disk.qcow2"}},
            "storage": {
                "storageClassName": "standard",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    });
    lab.apply(&volume).await.unwrap();
    lab.apply(&machine("web")).await.unwrap();
    shows(&lab, "web", "Running").await;
    let phase = lab
        .kubectl()
        .run(&[
            "get",
            "datavolume",
            "web-root",
            "-o",
            "jsonpath={.status.phase}",
        ])
        .await
        .unwrap();
    assert_eq!(phase.ok().unwrap(), "Succeeded");
}
