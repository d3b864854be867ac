//! Checks that the installed CRD has every field that the webhook writes.
//!
//! The API server prunes fields that the CRD does not define, although the write succeeds. So the webhook
//! stays unready until the schema of Machines has every field of the block.

use std::convert::Infallible;

use common::api::Machine;
use common::names::VERSION;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt as _;
use kube::{Api, Client};
use runtime::checks::{Check, Checks};
use runtime::tasks::Tasks;
use tokio::sync::watch;

use crate::watch::{Observed, spawn_object_watch};

/// Name of the CRD.
const MACHINES: &str = "machines.vitistack.io";

/// Paths of the fields of the block that `served` does not have, or a sentence if the version is not
/// served at all.
fn missing(served: &CustomResourceDefinition) -> Vec<String> {
    let Some(served_block) = block(served) else {
        return vec![format!(
            "{VERSION} of {MACHINES} is not served with spec.normalized"
        )];
    };
    let mut missing = Vec::new();
    if let Some(own) = block(&Machine::crd()) {
        compare(own, served_block, "spec.normalized", &mut missing);
    }
    missing
}

/// The schema of `spec.normalized`, if the version is served.
fn block(crd: &CustomResourceDefinition) -> Option<&JSONSchemaProps> {
    let version = crd
        .spec
        .versions
        .iter()
        .find(|version| version.name == VERSION && version.served)?;
    let object = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
    object
        .properties
        .as_ref()?
        .get("spec")?
        .properties
        .as_ref()?
        .get("normalized")
}

fn compare(own: &JSONSchemaProps, served: &JSONSchemaProps, path: &str, missing: &mut Vec<String>) {
    if served.x_kubernetes_preserve_unknown_fields == Some(true) {
        return;
    }
    for (name, own) in own.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        match served
            .properties
            .as_ref()
            .and_then(|properties| properties.get(name))
        {
            Some(served) => compare(own, served, &path, missing),
            None => missing.push(path),
        }
    }
    if let Some(own) = items(own) {
        match items(served) {
            Some(served) => compare(own, served, &format!("{path}[]"), missing),
            None => missing.push(format!("{path}[]")),
        }
    }
    if let Some(own) = values(own) {
        match values(served) {
            Some(served) => compare(own, served, &format!("{path}.*"), missing),
            None => missing.push(format!("{path}.*")),
        }
    }
}

fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(schema) => Some(schema),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

fn values(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.additional_properties.as_ref()? {
        JSONSchemaPropsOrBool::Schema(schema) => Some(schema),
        JSONSchemaPropsOrBool::Bool(_) => None,
    }
}

fn established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|it| it.type_ == "Established" && it.status == "True")
}

/// Starts the watch of the CRD and the task that keeps the readiness condition `schema` up to date.
pub(crate) fn start(tasks: &mut Tasks, client: &Client, ready: &Checks) {
    let crds = Api::all(client.clone());
    let what = "customresourcedefinition";
    // Its schema, decoded, takes megabytes.
    let fits = spawn_object_watch(tasks, crds, MACHINES, what, ready, |crd| check(&crd));
    tasks.spawn("schema", check_always(fits, ready.register("schema")));
}

/// Fails with what the installed CRD lacks.
fn check(crd: &CustomResourceDefinition) -> Result<(), String> {
    if !established(crd) {
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
    use super::*;
    use serde_json::json;

    fn changed(change: impl FnOnce(&mut serde_json::Value)) -> CustomResourceDefinition {
        let mut crd = serde_json::to_value(Machine::crd()).unwrap();
        change(&mut crd);
        serde_json::from_value(crd).unwrap()
    }

    const BLOCK: &str =
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/normalized";

    #[test]
    fn our_own_crd_has_every_field() {
        assert_eq!(missing(&Machine::crd()), [""; 0]);
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
            missing(&crd),
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
            assert_eq!(missing(&crd).len(), 1);
        }
    }

    #[test]
    fn a_schema_that_preserves_unknown_fields_has_every_field() {
        let crd = changed(|crd| {
            *crd.pointer_mut(BLOCK).unwrap() =
                json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        });
        assert_eq!(missing(&crd), [""; 0]);
    }
}
