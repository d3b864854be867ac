//! The `KubeVirt` object, in which an administrator configures KubeVirt.

use anyhow::Result;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{Context, Kind, Simulator};

const KUBEVIRT: Kind = Kind {
    group: "kubevirt.io",
    version: "v1",
    name: "KubeVirt",
    plural: "kubevirts",
};

/// Name and namespace of the object, as the documentation of KubeVirt has them.
const NAME: &str = "kubevirt";

/// The version that the scenarios imitate.
const VERSION: &str = "v1.9.0";

/// Creates the object with its namespace; a simulator that was started again finds them.
pub(super) async fn create(context: &Context) -> Result<()> {
    let created = |result: kube::Result<()>| match result {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result,
    };
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let parameters = PostParams::default();
    created(namespaces.create(&parameters, &namespace).await.map(drop))?;
    let object = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": KUBEVIRT.name,
        "metadata": {"name": NAME, "namespace": NAME},
        "spec": {"workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate"]}},
    }))?;
    let objects = context.api(&KUBEVIRT, NAME);
    created(objects.create(&parameters, &object).await.map(drop))?;
    let status = json!({"status": {"observedKubeVirtVersion": VERSION, "phase": "Deployed"}});
    let patch = Patch::Merge(status);
    objects
        .patch_status(NAME, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

impl Simulator {
    /// An administrator sets how KubeVirt applies changes to running guests.
    pub async fn set_update_methods(&self, methods: &[&str]) -> Result<()> {
        let strategy = json!({"workloadUpdateStrategy": {"workloadUpdateMethods": methods}});
        let patch = Patch::Merge(json!({ "spec": strategy }));
        let objects = self.context.api(&KUBEVIRT, NAME);
        objects.patch(NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}
