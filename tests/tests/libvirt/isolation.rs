//! What keeps guests of one host apart: filters of MAC addresses and limits.

use lab::{
    objects::{HOST, condition},
    wait,
};
use serde_json::json;

use crate::environment::{Environment, host};

/// The address that a guest takes which forges one.
const FORGED: &str = "52:54:00:66:66:66";

#[tokio::test]
async fn a_guest_sends_nothing_from_a_mac_address_that_is_not_its_own() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let mut allowing = host();
    allowing["spec"]["networks"][1]["allowMacSpoofing"] = true.into();
    env.lab.apply(&allowing).await.unwrap();
    let second = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"name": "second", "namespace": "default"},
        "spec": {"bridge": "br-second"},
    });
    env.lab.apply(&second).await.unwrap();
    let hosts = env.lab.objects(HOST, "");
    let filtered = hosts.until_condition("here", "MacFiltered", "True", "MacFiltered");
    filtered.await.unwrap();
    // QEMU of the lab is not confined.
    let confined = hosts.until_condition("here", "Confined", "False", "NoSecurityDriver");
    let message = condition(&confined.await.unwrap(), "Confined")["message"].to_string();
    assert!(message.contains("/etc/libvirt/qemu.conf"), "{message}");

    let forges = json!({"userData": "#cloud-config\n# lab: another MAC address\n"});
    env.apply("filtered", &json!({"cloudInit": forges})).await;
    let free =
        json!({"cloudInit": forges, "networks": [{"name": "eth0", "networkName": "second"}]});
    env.apply("free", &free).await;
    let has_forged = |report: &lab::libvirt::Report| {
        let mut nics = report.nics.values();
        nics.find(|nic| nic.mac == FORGED).cloned()
    };
    let free = env
        .until_report("free", "an address for the forged card", |report| {
            has_forged(report).is_some_and(|nic| !nic.address.is_empty())
        })
        .await;
    assert!(has_forged(&free).is_some());
    env.until_report("filtered", "the forged card", |report| {
        has_forged(report).is_some()
    })
    .await;
    wait::until("frames of the forged card to be dropped", async || {
        let rules = env.libvirt.bridge_rules().await?;
        let mut dropped = rules.lines().filter(|rule| rule.contains("-j DROP"));
        let has_dropped = dropped.any(|rule| !rule.contains("pcnt = 0"));
        Ok(if has_dropped { Ok(()) } else { Err(rules) })
    })
    .await
    .unwrap();
    let domain = env.domain("filtered").await;
    let defined = env.virsh(&["dumpxml", "--inactive", &domain]).await;
    assert!(
        defined.contains("<filterref filter='no-mac-spoofing'/>"),
        "{defined}"
    );
    let bindings = env.virsh(&["nwfilter-binding-list"]).await;
    assert_eq!(bindings.matches("no-mac-spoofing").count(), 1, "{bindings}");
    let report = env
        .until_report("filtered", "another report", |report| {
            has_forged(report).is_some()
        })
        .await;
    assert_eq!(has_forged(&report).unwrap().address, "", "{report:?}");
}

/// Without the rate of network cards and the quota of vCPUs: the machine that runs the tests may have neither the traffic
/// control of the kernel nor the cgroup controller that they need.
#[tokio::test]
async fn a_guest_gets_the_limits_of_its_host() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let mut limited = host();
    limited["spec"]["limits"] = json!({"diskIops": 800, "diskMegabytesPerSecond": 50});
    limited["spec"]["networks"][0]["portIsolation"] = true.into();
    env.lab.apply(&limited).await.unwrap();
    env.apply("web", &json!({})).await;
    env.until_reachable("web").await;
    let domain = env.domain("web").await;
    // As QEMU and the kernel have them, and not only the definition.
    let disk = env.virsh(&["blkdeviotune", &domain, "vda"]).await;
    let line = |name: &str| {
        let lines = disk.lines().map(str::trim);
        let values = lines.filter_map(|line| line.split_once(':'));
        let mut found = values.filter(|(key, _)| key.trim() == name);
        found.next().map(|(_, value)| value.trim().to_owned())
    };
    assert_eq!(line("total_iops_sec").as_deref(), Some("800"), "{disk}");
    assert_eq!(
        line("total_bytes_sec").as_deref(),
        Some("50000000"),
        "{disk}"
    );
    let running = env.virsh(&["dumpxml", &domain]).await;
    assert!(running.contains("<port isolated='yes'/>"), "{running}");

    // Another limit takes effect when the guest is started, and no earlier.
    limited["spec"]["limits"]["diskIops"] = 900.into();
    env.lab.apply(&limited).await.unwrap();
    env.apply("web", &json!({"powerState": "Stopped"})).await;
    env.until("web", "to be off", |it| it["status"]["phase"] == "Stopped")
        .await;
    let defined = env.virsh(&["dumpxml", "--inactive", &domain]).await;
    assert!(
        defined.contains("<total_iops_sec>800</total_iops_sec>"),
        "{defined}"
    );
    env.apply("web", &json!({})).await;
    env.until_reachable("web").await;
    let disk = env.virsh(&["blkdeviotune", &domain, "vda"]).await;
    assert!(disk.contains("900"), "{disk}");
}
