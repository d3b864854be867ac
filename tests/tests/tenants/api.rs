//! Attacks that RBAC or admission refuses, whatever the backend.

use serde_json::json;

use crate::{
    blue::{LEDGER, MAC, NETWORK_NAME, PAYROLL, VAULT},
    red::{Red, USER},
    tenants::{SHARED, Tenants, local, machine},
};

/// A network of red in the segment of blue's network, which an administrator has created.
pub(crate) const LAN: &str = "lan";

pub(crate) async fn reading_and_writing_what_is_of_another_namespace(tenants: &Tenants) {
    let red = &tenants.red;
    for kind in [
        "machines",
        "secrets",
        "persistentvolumeclaims",
        "networkconfigurations",
        "events",
    ] {
        red.forbidden(&["get", kind, "-n", "blue"]).await;
        red.forbidden(&["get", kind, "--all-namespaces"]).await;
    }
    let power = r#"{"spec":{"powerState":"Stopped"}}"#;
    for attack in [
        &["delete", "machine", PAYROLL, "-n", "blue"][..],
        &[
            "patch",
            "machine",
            PAYROLL,
            "-n",
            "blue",
            "--type=merge",
            "-p",
            power,
        ],
        &["delete", "machines", "--all", "-n", "blue"],
        &["label", "pvc", "payroll-root", "-n", "blue", "a=b"],
    ] {
        red.forbidden(attack).await;
    }
    let theirs = machine("blue", LEDGER, &json!({"template": "small"}));
    red.refused(&theirs, &format!("User \"{USER}\" cannot"))
        .await;
}

pub(crate) async fn writing_a_network(tenants: &Tenants) {
    let network = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "NetworkConfiguration",
        "metadata": {"name": "trunk", "namespace": "red"},
        "spec": {"bridge": "br0", "vlan": 77},
    });
    let (red, create) = (
        &tenants.red,
        "cannot create resource \"networkconfigurations\"",
    );
    red.refused(&network, create).await;
    let vlan = r#"{"spec":{"vlan":78}}"#;
    let patch = [
        "patch",
        "networkconfiguration",
        LAN,
        "--type=merge",
        "-p",
        vlan,
    ];
    red.forbidden(&patch).await;
}

pub(crate) async fn writing_what_belongs_to_no_namespace(tenants: &Tenants) {
    let red = &tenants.red;
    for kind in ["libvirthosts", "machinepolicies"] {
        red.forbidden(&["get", kind]).await;
    }
    red.forbidden(&["delete", "libvirthost", SHARED]).await;
    for kind in ["MachineTemplate", "MachinePolicy", "LibvirtHost"] {
        let object = json!({
            "apiVersion": "vitistack.io/v1alpha1", "kind": kind,
            "metadata": {"name": "of-red"}, "spec": {},
        });
        // kubectl reads the object first, which red may do with templates only.
        let cannot = format!("User \"{USER}\" cannot ");
        red.refused(&object, &cannot).await;
    }
}

pub(crate) async fn references_that_name_another_namespace(tenants: &Tenants) {
    let across = |name: &str| format!("blue/{name}");
    let attack = machine(
        "red",
        "across",
        &json!({
            "template": "small",
            "disks": [{"name": "data", "size": "20Gi", "image": {"persistentVolumeClaim": across("payroll-root")}}],
            "networks": [{"name": "eth0", "networkName": across(NETWORK_NAME)}],
            "cloudInit": {"secretRef": {"name": across(VAULT)}},
        }),
    );
    let text = tenants.red.refused(&attack, "[InvalidObjectName]").await;
    assert_eq!(text.matches("[InvalidObjectName]").count(), 3, "{text}");
}

/// Each name is one letter away from what blue has. An answer that suggests the right one would tell of it.
pub(crate) async fn suggestions_for_misspelt_names(tenants: &Tenants) {
    let attack = machine(
        "red",
        "guess",
        &json!({
            "template": "small",
            "disks": [{"name": "data", "size": "20Gi", "image": {"persistentVolumeClaim": "payrol-root"}}],
            "networks": [{"name": "eth0", "networkName": "backbon"}],
            "cloudInit": {"secretRef": {"name": "vaul"}},
        }),
    );
    let dry = ["create", "--dry-run=server", "-f", "-"];
    let output = tenants.red.send(&dry, &attack).await;
    assert_eq!(output.code, 0, "{output}");
    for code in ["[NetworkConfigurationNotFound]", "[SourceClaimNotFound]"] {
        assert!(output.stderr.contains(code), "{output}");
    }
    if tenants.libvirt.is_some() {
        // The refusal lists what the hosts offer, and nothing of who uses it.
        let mut attack = local("red", "guess", "128Mi");
        attack["spec"]["disks"][0]["storageClass"] = json!("locl");
        tenants.red.refused(&attack, "[StorageClassNotFound]").await;
    }
}

/// A card with the address of blue's card, in the segment of blue's network.
pub(crate) async fn taking_the_address_of_another_namespace(tenants: &Tenants) {
    let card = json!({"name": "eth0", "networkName": LAN, "macAddress": MAC});
    let attack = machine(
        "red",
        "twin",
        &json!({"template": "small", "networks": [card]}),
    );
    let output = tenants.red.apply(&attack).await;
    if output.code == 0 {
        let machines = Red::machines(&tenants.lab);
        let is_judged = |twin: &serde_json::Value| !twin["status"]["observedGeneration"].is_null();
        machines
            .until("twin", "to be observed", is_judged)
            .await
            .unwrap();
    } else {
        assert!(output.stderr.contains("[MacInUse]"), "{output}");
    }
}
