//! A write that arrives long after its controller was killed: the next one has deleted the Machine meanwhile, and its
//! user has created another one of the same name.

use anyhow::Result;
use lab::{
    Lab,
    fault_proxy::{FaultProxy, Write},
    objects::{CLAIM, INSTANCE, MACHINE, VM},
    reviews,
};
use serde_json::{Value, json};

use crate::invariants;

/// Forwards the held writes, one after the other. Returns what they have cost the Machine `web` that exists now.
pub(crate) async fn forward(lab: &Lab, namespace: &str, proxy: &FaultProxy) -> Result<Vec<String>> {
    let machines = lab.objects(MACHINE, namespace);
    let mut costs = Vec::new();
    for number in 1.. {
        let mut before = in_use(lab, namespace).await?;
        let Some((write, status)) = proxy.forward_held().await? else {
            break;
        };
        if creates_vm(&write) {
            // Applying creates an object or changes the one that exists: the VirtualMachine gets the marks and the owner
            // of the former Machine, is collected with it, and is created again. Its guest is restarted on the same
            // disks.
            before.retain(|object| object.starts_with("claim"));
        }
        // The controller and the simulator have acted on everything that came before it.
        let later = format!("later-{number}");
        let mut machine = reviews::machine(&later, &json!({"template": "small"}));
        machine["metadata"]["namespace"] = json!(namespace);
        lab.apply(&machine).await?;
        for name in [&later, "web"] {
            let ready = machines.until_condition(name, "Ready", "True", "Running");
            ready.await?;
        }
        let now = in_use(lab, namespace).await?;
        let lost = before.iter().filter(|object| !now.contains(object));
        let lost = lost.map(|object| format!("late {write} (HTTP {status}) costs {object}"));
        costs.extend(lost);
        costs.extend(invariants::shared_claims(lab, namespace).await?);
    }
    Ok(costs)
}

/// Whether a write applies a VirtualMachine that did not exist when it was sent.
fn creates_vm(write: &Write) -> bool {
    write.method == "PATCH"
        && write.body["kind"] == "VirtualMachine"
        && write.body["metadata"]["uid"].is_null()
}

/// The claims, the VirtualMachine and the guest of the Machine, as far as nobody deletes them.
pub(crate) async fn in_use(lab: &Lab, namespace: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (what, kind, name) in [
        ("claim", CLAIM, "web-root"),
        ("claim", CLAIM, "web-data"),
        ("VirtualMachine", VM, "web"),
        ("guest", INSTANCE, "web"),
    ] {
        let object = lab.objects(kind, namespace).find(name).await?;
        let metadata = object.map(|mut object| object["metadata"].take());
        let is_kept = |metadata: &Value| metadata["deletionTimestamp"].is_null();
        if let Some(metadata) = metadata.filter(is_kept) {
            found.push(format!("{what} {name} with uid {}", metadata["uid"]));
        }
    }
    Ok(found)
}
