//! Installs `manifests/install` in a control plane, without the Deployments, which need nodes, and with the webhook
//! configurations pointing at this machine.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, TypeMeta},
    core::ApiResource,
};
use serde_json::{Value, json};

use crate::{
    kubectl::{Kubectl, NOT_READ_IN_TIME},
    paths, wait,
};

/// The documents of a YAML text.
pub fn parse(text: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    Ok(documents.into_iter().filter(|d| !d.is_null()).collect())
}

/// The objects of `manifests/install`, grouped by how the lab uses them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manifests {
    /// Namespace, CRDs, ServiceAccounts and roles, which are applied unchanged.
    pub(crate) platform: Vec<Value>,
    /// Webhook configurations with the address that they have in a cluster.
    pub(crate) webhooks: Vec<Value>,
}

impl Manifests {
    /// Renders `manifests/install` with kubectl, as an administrator does.
    pub(crate) async fn render(kubectl: &Kubectl) -> Result<Self> {
        let folder = paths::repository().join("manifests/install");
        let text = kubectl
            .run(&["kustomize", &folder.display().to_string()])
            .await?
            .ok()
            .context("rendering manifests/install")?;
        let mut manifests = Self::default();
        for object in parse(&text)? {
            match object["kind"].as_str().unwrap_or_default() {
                "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
                    manifests.webhooks.push(object);
                }
                // The lab has no nodes: it starts the programs itself.
                "Deployment" | "Service" | "PodDisruptionBudget" | "NetworkPolicy" => {}
                _ => manifests.platform.push(object),
            }
        }
        ensure!(!manifests.platform.is_empty(), "manifests/install is empty");
        Ok(manifests)
    }
}

/// The configuration with `clientConfig.service` replaced by the address at
/// which the program listens here. No other field changes: no `caBundle` either,
/// which the program has to write.
pub(crate) fn called_at(mut configuration: Value, port: u16) -> Result<Value> {
    let webhooks = configuration["webhooks"]
        .as_array_mut()
        .context("a webhook configuration without webhooks")?;
    for webhook in webhooks {
        let path = webhook["clientConfig"]["service"]["path"]
            .as_str()
            .context("a webhook without clientConfig.service.path")?;
        webhook["clientConfig"] = json!({"url": format!("https://127.0.0.1:{port}{path}")});
    }
    Ok(configuration)
}

/// Applies one object (server-side, as `lab`).
pub(crate) async fn apply(client: &Client, object: &Value) -> Result<()> {
    apply_with(client, object, &PatchParams::apply("lab").force()).await
}

/// As [`apply`], as a dry run.
pub(crate) async fn dry_run(client: &Client, object: &Value) -> Result<()> {
    apply_with(client, object, &PatchParams::apply("lab").force().dry_run()).await
}

async fn apply_with(client: &Client, object: &Value, parameters: &PatchParams) -> Result<()> {
    let types: TypeMeta = serde_json::from_value(object.clone())?;
    let name = object["metadata"]["name"]
        .as_str()
        .context("an object without a name")?;
    let api = dynamic(client, &types, object["metadata"]["namespace"].as_str())?;
    let patch = Patch::Apply(object);
    let what = format!("applying {} {name}", types.kind);
    let applied = wait::until(&what, async || {
        let mut applied = api.patch(name, parameters, &patch).await;
        // A server may close a connection while a client uses it again. A second apply changes nothing.
        if matches!(applied, Err(kube::Error::Service(_))) {
            applied = api.patch(name, parameters, &patch).await;
        }
        // On processors that are busy with several suites that says nothing of the object.
        let is_late = |error: &kube::Error| error.to_string().contains(NOT_READ_IN_TIME);
        let late = applied.as_ref().err().filter(|error| is_late(error));
        Ok(match late.map(ToString::to_string) {
            Some(late) => Err(late),
            None => Ok(applied),
        })
    });
    applied.await?.with_context(|| what.clone())?;
    Ok(())
}

fn dynamic(
    client: &Client,
    types: &TypeMeta,
    namespace: Option<&str>,
) -> Result<Api<DynamicObject>> {
    let kind = GroupVersionKind::try_from(types)?;
    let resource = ApiResource::from_gvk(&kind);
    Ok(match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// Waits until every CRD is served.
///
/// "Established" is not enough: right after it the API server answers 429
/// ("storage is (re)initializing") for a moment.
pub(crate) async fn served(client: &Client) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds.list(&ListParams::default()).await? {
        for version in crd.spec.versions.iter().filter(|version| version.served) {
            let kind = GroupVersionKind::gvk(&crd.spec.group, &version.name, &crd.spec.names.kind);
            let resource = ApiResource::from_gvk_with_plural(&kind, &crd.spec.names.plural);
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            let what = format!("{} to be served", crd.name_any());
            wait::until(&what, async || {
                Ok(match api.list(&ListParams::default().limit(1)).await {
                    Ok(_) => Ok(()),
                    Err(error) => Err(error.to_string()),
                })
            })
            .await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn called_at_changes_only_the_address() {
        let configuration = json!({"webhooks": [{
            "name": "a",
            "failurePolicy": "Fail",
            "clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/mutate"}},
        }]});
        let expected = json!({"webhooks": [{
            "name": "a",
            "failurePolicy": "Fail",
            "clientConfig": {"url": "https://127.0.0.1:1234/mutate"},
        }]});
        assert_eq!(called_at(configuration, 1234).unwrap(), expected);
    }
}
