//! Hardware of a host that single guests have for themselves.

use lab::{
    objects::{HOST, condition, condition_message},
    wait,
};
use serde_json::{Value, json};

use crate::environment::{self, Environment};

/// A host of libvirt's test driver with a device: QEMU passes no device through where there is none.
fn there() -> Value {
    let mut host = environment::test_driver_host();
    host["spec"]["devices"] = json!([{"name": "example.com/gpu", "addresses": ["0000:3b:00.0"]}]);
    host
}

/// A Machine with this number of devices.
fn with_devices(count: usize) -> Value {
    let device = |number| json!({"name": format!("gpu-{number}"), "deviceName": "example.com/gpu"});
    let devices: Vec<_> = (0..count).map(device).collect();
    json!({
        "resources": {"cpu": {"cores": 1}, "memory": {"size": "128Mi"}},
        "disks": [{"name": "root", "size": "1Gi", "storageClass": "local"}],
        "devices": devices,
    })
}

#[tokio::test]
async fn a_device_of_a_host_is_given_to_one_machine_at_a_time() {
    let Some(env) = Environment::new().await else {
        return;
    };
    env.lab.apply(&there()).await.unwrap();
    let hosts = env.lab.objects(HOST, "");
    let reported = hosts.until_condition("there", "Ready", "True", "Ready");
    reported.await.unwrap();

    let two = environment::machine("two", &with_devices(2));
    let why = "spec.devices[0].deviceName: Invalid value: \"example.com/gpu\": 2 are asked for, and no LibvirtHost offers more than 1 ('there')";
    wait::until("the webhook to know the host", async || {
        let answer = env.lab.kubectl().apply(&two).await?.refused()?;
        let is_known = answer.contains(why) && answer.contains("[DeviceNotOffered]");
        Ok(if is_known { Ok(()) } else { Err(answer) })
    })
    .await
    .unwrap();

    let is_ready = |machine: &Value| condition(machine, "Ready")["status"] == "True";
    env.apply("first", &with_devices(1)).await;
    let first = env.until("first", "to run", is_ready).await;
    assert_eq!(first["status"]["host"], "there");

    env.apply("second", &with_devices(1)).await;
    let machines = env.machines();
    let waits = machines.until_condition("second", "Ready", "False", "NoHostFits");
    let second = waits.await.unwrap();
    assert_eq!(second["status"]["phase"], "Pending");
    let why = condition_message(&second, "Ready").unwrap();
    let lacks = "there: has 0 of 1 devices 'example.com/gpu' left, 1 needed";
    assert!(why.contains(lacks), "{why}");

    env.delete("first").await;
    let second = env.until("second", "to run", is_ready).await;
    assert_eq!(second["status"]["host"], "there");
}

/// libvirt looks for the device only when the guest starts.
#[tokio::test]
async fn a_machine_that_is_off_has_its_device_too() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let devices = json!([{"name": "example.com/gpu", "addresses": ["0000:ff:1f.7"]}]);
    let offer = json!({"spec": {"devices": devices}});
    env.lab
        .objects(HOST, "")
        .merge("here", &offer)
        .await
        .unwrap();
    let mut spec = with_devices(1);
    spec["powerState"] = json!("Stopped");
    env.apply("first", &spec).await;
    let is_off = |machine: &Value| machine["status"]["phase"] == "Stopped";
    env.until("first", "to be off", is_off).await;
    let domain = env.domain("first").await;
    let xml = env.virsh(&["dumpxml", "--inactive", &domain]).await;
    for part in [
        "<hostdev mode='subsystem' type='pci' managed='yes'>",
        "<address domain='0x0000' bus='0xff' slot='0x1f' function='0x7'/>",
        "<alias name='ua-device-gpu-0'/>",
    ] {
        assert!(xml.contains(part), "{part}\n{xml}");
    }
    env.apply("second", &spec).await;
    let machines = env.machines();
    let waits = machines.until_condition("second", "Ready", "False", "NoHostFits");
    let why = waits.await.unwrap();
    let why = condition_message(&why, "Ready").unwrap();
    let lacks = "here: has 0 of 1 devices 'example.com/gpu' left, 1 needed";
    assert!(why.contains(lacks), "{why}");
    env.delete("first").await;
    env.until("second", "to be off", is_off).await;
}

/// The CPUs of the host that each vCPU of a running guest may run on, as the kernel reports it: `y` or `-` for each.
async fn affinities(env: &Environment, name: &str) -> Vec<String> {
    let domain = env.domain(name).await;
    let info = env.virsh(&["vcpuinfo", &domain]).await;
    let lines = info
        .lines()
        .filter_map(|line| line.strip_prefix("CPU Affinity:"));
    lines.map(|text| text.trim().to_owned()).collect()
}

#[tokio::test]
async fn a_dedicated_cpu_of_a_host_runs_one_vcpu() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let hosts = env.lab.objects(HOST, "");
    let here = hosts.get("here").await.unwrap();
    if here["status"]["capacity"]["cpu"].as_u64() < Some(2) {
        return lab::skip("the host has one CPU only");
    }
    let offer = json!({"spec": {"dedicatedCpus": "1"}});
    hosts.merge("here", &offer).await.unwrap();
    let dedicated = |cores| json!({"resources": {"cpu": {"cores": cores, "dedicated": true}, "memory": {"size": "256Mi"}}});
    let two = environment::machine("two", &dedicated(2));
    wait::until("the webhook to know the CPU", async || {
        let answer = env.lab.kubectl().apply(&two).await?.refused()?;
        let why = "no LibvirtHost has more than 1 ('here')";
        let is_known = answer.contains(why) && answer.contains("[DedicatedCpusNotOffered]");
        Ok(if is_known { Ok(()) } else { Err(answer) })
    })
    .await
    .unwrap();

    let is_ready = |machine: &Value| condition(machine, "Ready")["status"] == "True";
    env.apply("pinned", &dedicated(1)).await;
    env.until("pinned", "to run", is_ready).await;
    let domain = env.domain("pinned").await;
    let pins = env.virsh(&["vcpupin", &domain, "--live"]).await;
    let pins: Vec<_> = pins.split_whitespace().rev().take(2).collect();
    assert_eq!(pins, ["1", "0"], "vCPU 0 is on CPU 1");
    let [affinity] = &affinities(&env, "pinned").await[..] else {
        panic!("{domain} has another number of vCPUs");
    };
    assert!(affinity.starts_with("-y"), "{affinity}");
    assert_eq!(affinity.matches('y').count(), 1, "{affinity}");

    env.apply("second", &dedicated(1)).await;
    let machines = env.machines();
    let waits = machines.until_condition("second", "Ready", "False", "NoHostFits");
    let why = waits.await.unwrap();
    let why = condition_message(&why, "Ready").unwrap();
    let lacks = "here: has 0 of 1 dedicated CPUs left, 1 are needed";
    assert!(why.contains(lacks), "{why}");

    env.apply("other", &json!({})).await;
    env.until("other", "to run", is_ready).await;
    for affinity in affinities(&env, "other").await {
        assert!(affinity.starts_with("y-"), "{affinity}");
    }
    env.delete("pinned").await;
    env.until("second", "to run", is_ready).await;
}
