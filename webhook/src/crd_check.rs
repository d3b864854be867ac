//! Checks that the installed CRD has every field that the webhook writes.
//!
//! The API server prunes fields that the CRD does not define, although the write succeeds. So the webhook
//! stays unready until the schema of Machines has every field of the block.

use std::convert::Infallible;

use common::api::normalized::Normalized;
use common::names::VERSION;
use kube::{Api, Client};
use runtime::checks::{Check, Checks};
use runtime::tasks::Tasks;
use tokio::sync::watch;

use crate::crd::{Crd, Fields};
use crate::watch::{Observed, spawn_object_watch};

/// Name of the CRD.
const MACHINES: &str = "machines.vitistack.io";

/// The fields of the block that this program writes.
fn own() -> Fields {
    serde_json::from_value(Normalized::schema()).unwrap_or_default()
}

/// Paths of the fields of the block that `served` does not have, or a sentence if the version is not
/// served at all.
fn missing(served: Crd<Fields>) -> Vec<String> {
    let Some(served_block) = block(served) else {
        return vec![format!(
            "{VERSION} of {MACHINES} is not served with spec.normalized"
        )];
    };
    let mut missing = Vec::new();
    compare(&own(), &served_block, "spec.normalized", &mut missing);
    missing
}

/// The schema of `spec.normalized`, if the version is served.
fn block(crd: Crd<Fields>) -> Option<Fields> {
    let mut versions = crd.into_versions().into_iter();
    let version = versions.find(|version| version.name == VERSION && version.served)?;
    let mut object = version.into_schema()?;
    let mut spec = object.properties.remove("spec")?;
    spec.properties.remove("normalized")
}

fn compare(own: &Fields, served: &Fields, path: &str, missing: &mut Vec<String>) {
    if served.preserves_unknown {
        return;
    }
    for (name, own) in &own.properties {
        let path = format!("{path}.{name}");
        match served.properties.get(name) {
            Some(served) => compare(own, served, &path, missing),
            None => missing.push(path),
        }
    }
    let nested = [
        (own.items.as_deref(), served.items.as_deref(), "[]"),
        (own.values(), served.values(), ".*"),
    ];
    for (own, served, end) in nested {
        let Some(own) = own else { continue };
        let path = format!("{path}{end}");
        match served {
            Some(served) => compare(own, served, &path, missing),
            None => missing.push(path),
        }
    }
}

/// Starts the watch of the CRD and the task that keeps the readiness condition `schema` up to date.
pub(crate) fn start(tasks: &mut Tasks, client: &Client, ready: &Checks) {
    let crds = Api::all(client.clone());
    let what = "customresourcedefinition";
    let fits = spawn_object_watch(tasks, crds, MACHINES, what, ready, check);
    tasks.spawn("schema", check_always(fits, ready.register("schema")));
}

/// Fails with what the installed CRD lacks.
fn check(crd: Crd<Fields>) -> Result<(), String> {
    if !crd.is_established() {
        return Err(format!("{MACHINES} is not established"));
    }
    match missing(crd).as_slice() {
        [] => Ok(()),
        paths => Err(format!(
            "the installed {MACHINES} is older than this program, it lacks {}",
            paths.join(", ")
        )),
    }
}

async fn check_always(
    mut installed: watch::Receiver<Observed<Result<(), String>>>,
    check: Check,
) -> Result<(), Infallible> {
    loop {
        let observed = installed.borrow_and_update().clone();
        match observed {
            Observed::Unknown => {}
            Observed::Absent => check.missing(format!("{MACHINES} is not installed")),
            Observed::Present(fits) => match &*fits {
                Ok(()) => check.met(),
                Err(why) => check.missing(why.clone()),
            },
        }
        if installed.changed().await.is_err() {
            // The watch has ended; its own task reports that.
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use common::api::Machine;
    use kube::CustomResourceExt as _;
    use serde_json::{Value, json};

    use super::*;

    fn changed(change: impl FnOnce(&mut Value)) -> Crd<Fields> {
        let mut crd = serde_json::to_value(Machine::crd()).unwrap();
        change(&mut crd);
        serde_json::from_value(crd).unwrap()
    }

    const BLOCK: &str =
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/normalized";

    #[test]
    fn our_own_crd_has_every_field() {
        let crd = changed(|_| {});
        assert_eq!(block(crd.clone()), Some(own()));
        assert_eq!(missing(crd), [""; 0]);
    }

    #[test]
    fn every_missing_field_is_listed() {
        let crd = changed(|crd| {
            let block = crd.pointer_mut(BLOCK).unwrap();
            let disk = block
                .pointer_mut("/properties/disks/items/properties")
                .unwrap();
            disk.as_object_mut().unwrap().remove("bus");
            let block = block["properties"].as_object_mut().unwrap();
            block.remove("backend");
            block["nodeSelector"] = json!({"type": "object"});
        });
        assert_eq!(
            missing(crd),
            [
                "spec.normalized.backend",
                "spec.normalized.disks[].bus",
                "spec.normalized.nodeSelector.*"
            ]
        );
    }

    #[test]
    fn a_version_that_is_not_served_or_has_no_block_is_one_finding() {
        for crd in [
            changed(|crd| *crd.pointer_mut("/spec/versions/0/served").unwrap() = json!(false)),
            changed(|crd| *crd.pointer_mut("/spec/versions/0/name").unwrap() = json!("v1")),
            changed(|crd| {
                let spec = BLOCK.rsplit_once('/').unwrap().0;
                let fields = crd.pointer_mut(spec).unwrap().as_object_mut().unwrap();
                fields.remove("normalized");
            }),
        ] {
            assert_eq!(missing(crd).len(), 1);
        }
    }

    #[test]
    fn a_schema_that_preserves_unknown_fields_has_every_field() {
        let crd = changed(|crd| {
            *crd.pointer_mut(BLOCK).unwrap() =
                json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        });
        assert_eq!(missing(crd), [""; 0]);
    }
}
