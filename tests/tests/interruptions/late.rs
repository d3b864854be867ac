//! A write that arrives long after its controller was killed: the next one has deleted the Machine meanwhile, and its
//! user has created another one of the same name.

use anyhow::{Context as _, Result};
use lab::{
    Lab,
    fault_proxy::FaultProxy,
    objects::{CLAIM, INSTANCE, MACHINE, VM},
    reviews,
};
use serde_json::{Value, json};

use crate::invariants;

/// Forwards the held write. Returns what it has cost the Machine `web` that exists now.
pub(crate) async fn forward(lab: &Lab, namespace: &str, proxy: &FaultProxy) -> Result<Vec<String>> {
    let before = in_use(lab, namespace).await?;
    let Some(status) = proxy.forward_held().await? else {
        return Ok(Vec::new());
    };
    // The controller and the simulator have acted on everything that came before it.
    let mut later = reviews::machine("later", &json!({"template": "small"}));
    later["metadata"]["namespace"] = json!(namespace);
    lab.apply(&later).await?;
    let machines = lab.objects(MACHINE, namespace);
    machines
        .until_condition("later", "Ready", "True", "Running")
        .await?;
    let now = in_use(lab, namespace).await?;
    let lost = before.iter().filter(|object| !now.contains(object));
    let lost = lost.map(|object| format!("a late write (HTTP {status}) costs {object}"));
    let mut costs: Vec<_> = lost.collect();
    costs.extend(invariants::shared_claims(lab, namespace).await?);
    Ok(costs)
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
        let metadata = object.context("an object of the Machine")?["metadata"].take();
        if metadata["deletionTimestamp"] == Value::Null {
            found.push(format!("{what} {name} with uid {}", metadata["uid"]));
        }
    }
    Ok(found)
}
