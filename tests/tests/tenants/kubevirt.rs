//! Attacks through the objects of a namespace: Secrets, claims and their labels, and the quota.

use lab::{
    Binary,
    objects::{CLAIM, DATA_VOLUME, POLICY, SECRET, condition},
};
use serde_json::{Value, json};

use crate::{
    blocks::until_refused,
    blue::{PAYROLL, VAULT, uid},
    red::Red,
    tenants::{Tenants, machine},
};

const PROTECTION: &str = "vitistack.io/deletion-protection";

/// The Secret exists in blue only. The controller may read it: so the Machine's namespace has to decide.
pub(crate) async fn naming_the_secret_of_another_namespace(tenants: &Tenants) {
    let before = tenants.lab.log_position().await.unwrap();
    let reference = json!({"secretRef": {"name": VAULT}});
    let attack = machine(
        "red",
        "thief",
        &json!({"template": "small", "cloudInit": reference}),
    );
    tenants.red.create(&attack).await;
    let (kind, reason) = ("VirtualMachineReady", "CloudInitSecretNotFound");
    let machines = Red::machines(&tenants.lab);
    let waits = machines.until_condition("thief", kind, "False", reason);
    waits.await.unwrap();
    let requests = tenants.lab.requests_since(before).await.unwrap();
    let controller = Binary::Controller.user();
    let own = requests.iter().filter(|event| event.user == controller);
    let asked: Vec<_> = own
        .filter(|event| event.resource == "secrets" && event.name == VAULT)
        .map(|event| event.namespace.as_str())
        .collect();
    assert!(asked.contains(&"red"), "{asked:?}");
    assert!(!asked.contains(&"blue"), "{asked:?}");
    let secrets = tenants.lab.objects(SECRET, "red").list().await.unwrap();
    assert!(secrets.is_empty(), "{secrets:?}");
}

pub(crate) async fn copying_the_claim_of_another_namespace(tenants: &Tenants) {
    let theirs = format!("{PAYROLL}-root");
    let disk = json!({"name": "root", "size": "20Gi", "image": {"persistentVolumeClaim": theirs}});
    let attack = machine(
        "red",
        "thief",
        &json!({"template": "small", "disks": [disk]}),
    );
    let output = tenants.red.apply(&attack).await;
    assert!(output.stderr.contains("[SourceClaimNotFound]"), "{output}");
    output.ok().unwrap();
    let machines = Red::machines(&tenants.lab);
    let waits = machines.until_condition("thief", "StorageReady", "False", "ImageImporting");
    let message = condition(&waits.await.unwrap(), "StorageReady")["message"].to_string();
    let why = format!("PersistentVolumeClaim '{theirs}', which 'root' is a clone of, not found");
    assert!(message.contains(&why), "{message}");
    for import in tenants
        .lab
        .objects(DATA_VOLUME, "red")
        .list()
        .await
        .unwrap()
    {
        let source = &import["spec"]["source"]["pvc"];
        assert_eq!(source["namespace"], "red", "{import}");
    }
}

/// A claim in red with every mark that the controller puts on the claim of blue's Machine.
pub(crate) async fn claims_with_the_marks_of_another_machine(tenants: &Tenants) {
    let claims = tenants.lab.objects(CLAIM, "blue");
    let theirs = claims.get("payroll-root").await.unwrap();
    let mut forged = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "payroll-root", "namespace": "red"},
        "spec": {
            "storageClassName": "standard", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "20Gi"}},
        },
    });
    for marks in ["labels", "annotations"] {
        forged["metadata"][marks] = theirs["metadata"][marks].clone();
    }
    let owner = &theirs["metadata"]["annotations"]["machine.vitistack.io/machine-uid"];
    assert_eq!(*owner, uid(&tenants.lab, PAYROLL).await);
    // Not protected, and deleted with its Machine.
    forged["metadata"]["labels"][PROTECTION] = json!("false");
    forged["metadata"]["annotations"]["machine.vitistack.io/reclaim-policy"] = json!("Delete");
    tenants.red.create(&forged).await;
    // A Machine of red with the name, which the claim seems to belong to.
    let attack = machine("red", PAYROLL, &json!({"template": "small"}));
    tenants.red.create(&attack).await;
    let machines = Red::machines(&tenants.lab);
    // The Machine with the uid exists, so the claim is not one that a former Machine of the name has left.
    let refused = machines.until_condition(PAYROLL, "StorageReady", "False", "NameConflict");
    refused.await.unwrap();
    let delete = ["delete", "machine", PAYROLL];
    tenants.red.run(&delete).await.ok().unwrap();
}

/// Who may write claims in a namespace could remove the label there: the controller sets it again.
pub(crate) async fn removing_the_label_of_a_protected_claim(tenants: &Tenants) {
    let remove = format!("{PROTECTION}-");
    let attack = ["label", "pvc", "payroll-root", "-n", "blue", &remove];
    tenants.red.forbidden(&attack).await;
    let delete = ["delete", "pvc", "payroll-root", "-n", "blue"];
    tenants.red.forbidden(&delete).await;
    let kubectl = tenants.lab.kubectl();
    kubectl.run(&attack).await.unwrap().ok().unwrap();
    let is_protected = |claim: &Value| claim["metadata"]["labels"][PROTECTION] == "true";
    let claims = tenants.lab.objects(CLAIM, "blue");
    let protected = claims.until("payroll-root", "to be protected again", is_protected);
    protected.await.unwrap();
    let text = kubectl.run(&delete).await.unwrap().refused().unwrap();
    assert!(
        text.contains("because its Machine payroll is protected"),
        "{text}"
    );
}

/// The quota of red is red's alone, and a refusal names only what red has.
pub(crate) async fn more_than_the_quota(tenants: &Tenants) {
    let policy = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachinePolicy",
        "metadata": {"name": "quota"},
        "spec": {
            "namespaceSelector": {"matchLabels": {"tenant": "red"}},
            "quota": {"memory": "4Gi"},
        },
    });
    tenants.lab.apply(&policy).await.unwrap();
    let large = |size: &str| {
        let memory = json!({"memory": {"size": size}});
        machine(
            "red",
            "large",
            &json!({"template": "small", "resources": memory}),
        )
    };
    until_refused(tenants, &large("8Gi"), "[QuotaExceeded]").await;
    tenants.red.create(&large("3Gi")).await;
    tenants.red.refused(&large("5Gi"), "[QuotaExceeded]").await;
    let second = machine("red", "second", &json!({"template": "small"}));
    until_refused(tenants, &second, "[QuotaExceeded]").await;
    let policies = tenants.lab.objects(POLICY, "");
    policies.delete("quota").await.unwrap();
    policies.until_gone("quota").await.unwrap();
}
