//! The readiness probe reports what is missing, and recovers; and what is not known is not reported as missing.

use lab::{Binary, OPERATOR_NAMESPACE, fault_proxy::FaultProxy, reviews, wait};
use serde_json::{Value, json};

use crate::{lab, review, unready};

#[tokio::test]
async fn the_readiness_probe_reports_what_is_missing() {
    let mut lab = lab().await;
    let mut webhook = lab.start_webhook(&[]).await.unwrap();
    unready(&mut webhook, |reported| {
        reported
            == "caBundle: the MutatingWebhookConfiguration \"machine-webhook\" does not exist\n"
    })
    .await;
    lab.register_webhooks().await.unwrap();
    webhook.ready().await.unwrap();

    // The served CRD is older than the program, so that the API server would drop fields that the webhook writes.
    let crd = read_crd("machines");
    let mut older = crd.clone();
    let block =
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/normalized/properties";
    let fields = older.pointer_mut(block).unwrap().as_object_mut().unwrap();
    assert!(fields.remove("powerState").is_some());
    lab.apply(&older).await.unwrap();
    unready(&mut webhook, |reported| {
        reported
            == "schema: the installed machines.vitistack.io is older than this program, \
                 it lacks spec.normalized.powerState\n"
    })
    .await;
    lab.apply(&crd).await.unwrap();
    webhook.ready().await.unwrap();

    // Deleted CRDs: reported at once for the kind whose schema is watched, and after the next start for the others.
    let kubectl = lab.kubectl();
    let crds = ["machines.vitistack.io", "machinetemplates.vitistack.io"];
    let allow = ["vitistack.io/allow-deletion=true"];
    let annotate = [&["annotate", "crd"], &crds[..], &allow].concat();
    kubectl.run(&annotate).await.unwrap().ok().unwrap();
    let delete = [&["delete", "crd"], &crds[..]].concat();
    kubectl.run(&delete).await.unwrap().ok().unwrap();
    unready(&mut webhook, |reported| {
        reported == "schema: machines.vitistack.io is not installed\n"
    })
    .await;
    webhook.kill();
    webhook.start_again().unwrap();
    unready(&mut webhook, |reported| {
        let lists: Vec<_> = reported
            .lines()
            .filter(|line| line.contains("404"))
            .collect();
        reported.lines().count() == 3
            && lists.len() == 2
            && lists[0].starts_with("machines: ")
            && lists[1].starts_with("machinetemplates: ")
            && reported.ends_with("\nschema: machines.vitistack.io is not installed\n")
    })
    .await;
    // It still answers reviews, and reports no fault that depends on data that it has not read.
    let mut connection = lab.connect_webhook().await.unwrap();
    let answer = connection
        .post("/mutate", review().to_string())
        .await
        .unwrap()
        .json()
        .unwrap();
    assert_eq!(answer["response"]["uid"], review()["request"]["uid"]);
    assert_eq!(
        answer["response"]["status"]["message"],
        "the webhook has not read the cluster yet; try again"
    );
    lab.apply(&crd).await.unwrap();
    lab.apply(&read_crd("machinetemplates")).await.unwrap();
    webhook.ready().await.unwrap();
}

/// A CRD of the manifests.
fn read_crd(name: &str) -> Value {
    let file = lab::paths::repository().join(format!("manifests/crds/{name}.yaml"));
    let text = std::fs::read_to_string(file).unwrap();
    lab::install::parse(&text).unwrap().remove(0)
}

/// The template is created while the webhook has lost the API server, so it is neither in the cache nor can be read.
#[tokio::test]
async fn a_reference_that_cannot_be_read_is_answered_with_try_again() {
    let lab = lab().await;
    let account = Binary::Webhook.account();
    let client = lab.account_client(OPERATOR_NAMESPACE, account).await;
    let proxy = FaultProxy::transparent(client.unwrap()).await.unwrap();
    lab.register_webhooks().await.unwrap();
    let mut webhook = lab.start_webhook_at(&proxy.kubeconfig()).await.unwrap();
    webhook.ready().await.unwrap();
    proxy.set_disconnected(true);
    let template = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachineTemplate",
        "metadata": {"name": "fresh"},
        "spec": {"resources": {"memory": {"size": "1Gi"}}},
    });
    lab.apply(&template).await.unwrap();

    let machine = reviews::machine("web", &json!({"template": "fresh"})).to_string();
    let kubectl = lab.kubectl();
    let create = ["create", "--dry-run=server", "-f", "-"];
    let output = kubectl.run_with(&create, &machine).await.unwrap();
    let refused = output.refused().unwrap();
    assert!(
        refused.starts_with("Error from server (ServiceUnavailable): ")
            && refused.ends_with(
                "denied the request: MachineTemplate 'fresh' could not be read from the API server; try again\n"
            ),
        "{refused}"
    );

    proxy.set_disconnected(false);
    wait::until("the webhook to read the template", async || {
        let output = kubectl.run_with(&create, &machine).await?;
        Ok(output.ok().map_err(|error| error.to_string()))
    })
    .await
    .unwrap();
}
