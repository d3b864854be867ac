//! The readiness probe reports what is missing, and recovers.

use serde_json::Value;

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
