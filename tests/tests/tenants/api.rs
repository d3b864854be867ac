//! Attacks that RBAC or admission refuses, whatever the backend.

use lab::{objects::NETWORK, wait};
use serde_json::json;

use crate::{
    blue::{LEDGER, MAC, NETWORK_NAME, PAYROLL, VAULT},
    red::USER,
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

/// Each name is one letter away from what blue has. An answer that suggests the right one would disclose it.
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
    let with_address_on = |network: &str| {
        let card = json!({"name": "eth0", "networkName": network, "macAddress": MAC});
        machine(
            "red",
            "twin",
            &json!({"template": "small", "networks": [card]}),
        )
    };
    let red = &tenants.red;
    let text = red.refused(&with_address_on(LAN), "[MacInUse]").await;
    assert_eq!(codes(&text), ["MacInUse"], "{text}");

    // A network that names the definition which the controller makes of the other network's bridge and VLAN.
    let shadow = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "NetworkConfiguration",
        "metadata": {"name": "shadow", "namespace": "red"},
        "spec": {"networkAttachmentDefinition": LAN},
    });
    tenants.lab.apply(&shadow).await.unwrap();
    // A network that the webhook does not know yet is a warning.
    let known = machine(
        "red",
        "probe",
        &json!({"template": "small", "networks": [{"name": "eth0", "networkName": "shadow"}]}),
    );
    wait::until("the webhook to know the network", async || {
        let dry = ["create", "--dry-run=server", "-f", "-"];
        let output = red.send(&dry, &known).await;
        let is_known = output.code == 0 && !output.stderr.contains("NotFound");
        Ok(is_known.then_some(()).ok_or(output))
    })
    .await
    .unwrap();
    let text = red.refused(&with_address_on("shadow"), "[MacInUse]").await;
    assert_eq!(codes(&text), ["MacInUse"], "{text}");
    let networks = tenants.lab.objects(NETWORK, "red");
    networks.delete("shadow").await.unwrap();
}

/// The codes of a refusal, in its order.
fn codes(text: &str) -> Vec<&str> {
    let parts = text.split('[').skip(1);
    let words = parts.filter_map(|part| Some(part.split_once(']')?.0));
    words
        .filter(|word| word.starts_with(char::is_uppercase))
        .collect()
}
