//! The webhook makes a CA and keeps the API server's trust in it.

use certs::Authority;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use lab::{Binary, Lab, OPERATOR_NAMESPACE, WEBHOOK_CONFIGURATION, wait};
use serde_json::json;
use time::OffsetDateTime;

use crate::{asked, lab, review, reviewed};

const SECRET: &str = "machine-webhook-ca";

fn secrets(lab: &Lab) -> Api<Secret> {
    Api::namespaced(lab.client().clone(), OPERATOR_NAMESPACE)
}

fn mutating(lab: &Lab) -> Api<MutatingWebhookConfiguration> {
    Api::all(lab.client().clone())
}

fn validating(lab: &Lab) -> Api<ValidatingWebhookConfiguration> {
    Api::all(lab.client().clone())
}

/// What is stored under a key of the CA Secret.
async fn stored(lab: &Lab, key: &str) -> String {
    let secret = secrets(lab).get(SECRET).await.unwrap();
    String::from_utf8(secret.data.unwrap()[key].0.clone()).unwrap()
}

/// Every bundle of both configurations.
async fn bundles(lab: &Lab) -> Vec<String> {
    let mutating = mutating(lab).get(WEBHOOK_CONFIGURATION).await.unwrap();
    let validating = validating(lab).get(WEBHOOK_CONFIGURATION).await.unwrap();
    let mutating = mutating.webhooks.unwrap().into_iter();
    let validating = validating.webhooks.unwrap().into_iter();
    let clients = mutating
        .map(|webhook| webhook.client_config)
        .chain(validating.map(|webhook| webhook.client_config));
    clients
        .map(|client| client.ca_bundle.map_or_else(Vec::new, |bytes| bytes.0))
        .map(|bytes| String::from_utf8(bytes).unwrap())
        .collect()
}

/// The webhooks of both configurations.
const WEBHOOKS: usize = 6;

/// Waits until every bundle is this one.
async fn trusted(lab: &Lab, ca: &str) {
    wait::until("the caBundle of both configurations", async || {
        let bundles = bundles(lab).await;
        let right = bundles.len() == WEBHOOKS && bundles.iter().all(|bundle| bundle == ca);
        Ok(if right { Ok(()) } else { Err(bundles) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn the_trust_is_made_and_mended() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let ca = stored(&lab, "ca.crt").await;
    assert_eq!(bundles(&lab).await, vec![ca.clone(); WEBHOOKS]);
    reviewed(&lab).await.unwrap();

    // Somebody empties the bundles, or applies the manifests again, which have none.
    let empty = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]);
    let empty = Patch::<()>::Json(serde_json::from_value(empty).unwrap());
    let parameters = PatchParams::default();
    let patch = mutating(&lab);
    patch
        .patch(WEBHOOK_CONFIGURATION, &parameters, &empty)
        .await
        .unwrap();
    let patch = validating(&lab);
    patch
        .patch(WEBHOOK_CONFIGURATION, &parameters, &empty)
        .await
        .unwrap();
    trusted(&lab, &ca).await;
    lab.register_webhooks().await.unwrap();
    assert_eq!(bundles(&lab).await, vec![ca.clone(); WEBHOOKS]);

    // The configurations are made anew, as an upgrade by deletion does.
    lab.unregister_webhooks().await.unwrap();
    lab.register_webhooks().await.unwrap();
    trusted(&lab, &ca).await;
    reviewed(&lab).await.unwrap();

    // The Secret is lost: the CA that is trusted already comes back, with its key.
    let key = stored(&lab, "ca.key").await;
    let lost = secrets(&lab).get(SECRET).await.unwrap();
    let delete = DeleteParams::default();
    secrets(&lab).delete(SECRET, &delete).await.unwrap();
    wait::until("the CA Secret to come back", async || {
        Ok(match secrets(&lab).get_opt(SECRET).await? {
            Some(secret) if secret.uid() != lost.uid() => Ok(()),
            other => Err(other.map(|secret| secret.metadata)),
        })
    })
    .await
    .unwrap();
    assert_eq!(stored(&lab, "ca.crt").await, ca);
    assert_eq!(stored(&lab, "ca.key").await, key);

    // The Secret is damaged: the same.
    let damage = json!({"stringData": {"ca.key": "not a key"}});
    secrets(&lab)
        .patch(SECRET, &parameters, &Patch::Merge(&damage))
        .await
        .unwrap();
    wait::until("the CA Secret to be repaired", async || {
        let found = stored(&lab, "ca.key").await;
        Ok(if found == key { Ok(()) } else { Err(found) })
    })
    .await
    .unwrap();
    assert_eq!(bundles(&lab).await, vec![ca.clone(); WEBHOOKS]);
    reviewed(&lab).await.unwrap();
    webhook.process().check_alive().unwrap();
}

#[tokio::test]
async fn another_ca_is_taken_over() {
    let mut lab = lab().await;
    let _webhook = lab.webhook(&[]).await.unwrap();
    let before = stored(&lab, "ca.crt").await;
    let own = Authority::generate("Our own CA", OffsetDateTime::now_utc()).unwrap();
    let data = [
        ("ca.crt", own.stored().certificate.clone()),
        ("ca.key", own.stored().key.clone()),
    ];
    let data = data.map(|(key, text)| (key, ByteString(text.into_bytes())));
    let exchange = json!({"data": serde_json::Map::from_iter(
        data.map(|(key, bytes)| (key.to_owned(), json!(bytes))),
    )});
    secrets(&lab)
        .patch(SECRET, &PatchParams::default(), &Patch::Merge(&exchange))
        .await
        .unwrap();
    trusted(&lab, own.certificate_pem()).await;
    reviewed(&lab).await.unwrap();
    let address = lab.webhook_address();
    asked(address, own.certificate_pem()).await.unwrap();
    let refused = asked(address, &before).await.unwrap_err();
    assert!(
        format!("{refused:#}").contains("invalid peer certificate"),
        "{refused:#}"
    );
}

#[tokio::test]
async fn replicas_share_a_ca_and_do_not_fight() {
    let mut lab = lab().await;
    lab.register_webhooks().await.unwrap();
    let mark = lab.mark().await.unwrap();
    // Both begin at once, with nothing there.
    let mut one = lab.start_webhook(&[]).await.unwrap();
    let elsewhere = [("WEBHOOK_BIND_ADDRESS", "127.0.0.1:0")];
    let mut two = lab.start_webhook(&elsewhere).await.unwrap();
    one.ready().await.unwrap();
    two.ready().await.unwrap();
    let ca = stored(&lab, "ca.crt").await;
    trusted(&lab, &ca).await;
    let (first, second) = (
        one.address("listen").await.unwrap(),
        two.address("listen").await.unwrap(),
    );
    let uid = &review()["request"]["uid"];
    assert_eq!(&asked(first, &ca).await.unwrap(), uid);
    assert_eq!(&asked(second, &ca).await.unwrap(), uid);

    // One Secret was made; each replica told each configuration at most once.
    let events = lab.asked_since(mark).await.unwrap();
    let wrote = |resource: &str| {
        let by = |event: &&lab::audit::Event| {
            event.wrote() && event.user == Binary::Webhook.user() && event.resource == resource
        };
        events.iter().filter(by).count()
    };
    assert_eq!(wrote("secrets"), 1);
    for resource in [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ] {
        assert!((1..=2).contains(&wrote(resource)), "{resource}");
    }

    // When one goes, the other serves on, and the CA stays.
    assert_eq!(one.stop().await.unwrap().code(), Some(0));
    assert_eq!(&asked(second, &ca).await.unwrap(), uid);
    assert_eq!(bundles(&lab).await, vec![ca; WEBHOOKS]);
}
