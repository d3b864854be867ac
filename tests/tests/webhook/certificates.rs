//! The CA of the webhook: created, published in `caBundle`, restored and replaced.

use certs::{CA_LIFETIME, Ca};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use lab::{Binary, Lab, OPERATOR_NAMESPACE, WEBHOOK_CONFIGURATION, wait};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::{admit, lab, review, reviewed};

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

/// The value of a key of the CA Secret.
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
const WEBHOOKS: usize = 7;

/// Waits until every bundle equals this one.
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
async fn an_emptied_ca_bundle_is_written_again() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let ca = stored(&lab, "ca.crt").await;
    assert_eq!(bundles(&lab).await, vec![ca.clone(); WEBHOOKS]);
    reviewed(&lab).await.unwrap();

    // The bundles are emptied, as when the manifests, which have none, are applied again.
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

    // The configurations are deleted and created again, as by an upgrade that deletes first.
    lab.unregister_webhooks().await.unwrap();
    lab.register_webhooks().await.unwrap();
    trusted(&lab, &ca).await;
    reviewed(&lab).await.unwrap();

    webhook.process().check_alive().unwrap();
}

/// As on the way back to a release with fewer webhooks. The API server would refuse a webhook with a bundle and nothing else,
/// which stays if the bundle has an owner.
#[tokio::test]
async fn a_webhook_that_is_not_applied_any_more_is_gone_with_its_bundle() {
    let mut lab = lab().await;
    let _webhook = lab.webhook(&[]).await.unwrap();
    let ca = stored(&lab, "ca.crt").await;
    let mut applied = Value::Null;
    wait::until("a bundle without an owner", async || {
        let live = validating(&lab).get(WEBHOOK_CONFIGURATION).await?;
        let managers = live.managed_fields().iter();
        let managers: Vec<_> = managers.filter_map(|it| it.manager.clone()).collect();
        applied = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": WEBHOOK_CONFIGURATION},
            "webhooks": live.webhooks,
        });
        let is_free = !managers.iter().any(|it| it == "machine-webhook");
        Ok(is_free.then_some(()).ok_or(managers))
    })
    .await
    .unwrap();
    assert_eq!(bundles(&lab).await, vec![ca.clone(); WEBHOOKS]);

    let webhooks = applied["webhooks"].as_array_mut().unwrap();
    webhooks.pop().unwrap();
    for webhook in webhooks {
        let client = webhook["clientConfig"].as_object_mut().unwrap();
        client.remove("caBundle").unwrap();
    }
    lab.apply(&applied).await.unwrap();
    assert_eq!(bundles(&lab).await, vec![ca; WEBHOOKS - 1]);
    reviewed(&lab).await.unwrap();
}

/// The reasons of the events of the CA Secret, in their order.
async fn events(lab: &Lab) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(lab.client().clone(), OPERATOR_NAMESPACE);
    let mut events = events.list(&ListParams::default()).await.unwrap().items;
    events.retain(|event| {
        let about = event
            .regarding
            .as_ref()
            .and_then(|about| about.name.as_deref());
        about == Some(SECRET)
    });
    events.sort_by_key(|event| event.event_time.clone());
    let reasons = events.into_iter().filter_map(|event| event.reason);
    reasons.collect()
}

async fn reported(lab: &Lab, reasons: &[&str]) {
    wait::until("the events of the CA Secret", async || {
        let events = events(lab).await;
        Ok(if events == reasons {
            Ok(())
        } else {
            Err(events)
        })
    })
    .await
    .unwrap();
}

/// Waits until the Secret has this CA and key again.
async fn restored(lab: &Lab, ca: &str, key: &str) {
    wait::until("the CA Secret to be as it was", async || {
        let found = secrets(lab).get_opt(SECRET).await?;
        let data = found.and_then(|secret| secret.data).unwrap_or_default();
        let is = |name: &str, text: &str| data.get(name).is_some_and(|it| it.0 == text.as_bytes());
        Ok(if is("ca.crt", ca) && is("ca.key", key) {
            Ok(())
        } else {
            Err(data.into_keys().collect::<Vec<_>>())
        })
    })
    .await
    .unwrap();
}

/// The trusted CA and its key are restored as long as a replica has them in memory.
#[tokio::test]
async fn a_lost_or_damaged_secret_is_recovered() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let ca = stored(&lab, "ca.crt").await;
    let key = stored(&lab, "ca.key").await;
    reported(&lab, &["CaCreated"]).await;

    let lost = secrets(&lab).get(SECRET).await.unwrap();
    let delete = DeleteParams::default();
    secrets(&lab).delete(SECRET, &delete).await.unwrap();
    restored(&lab, &ca, &key).await;
    assert_ne!(secrets(&lab).get(SECRET).await.unwrap().uid(), lost.uid());

    // The Secret is corrupted, incomplete or emptied; keys of others in it stay.
    let parameters = PatchParams::default();
    for damage in [
        json!({"stringData": {"ca.key": "not a key", "note": "of somebody else"}}),
        json!({"data": {"ca.key": null}}),
        json!({"stringData": {"ca.crt": ""}}),
        json!({"stringData": {"ca-next.crt": ca}}),
    ] {
        secrets(&lab)
            .patch(SECRET, &parameters, &Patch::Merge(&damage))
            .await
            .unwrap();
        restored(&lab, &ca, &key).await;
    }
    wait::until("the incomplete next CA to be removed", async || {
        let data = secrets(&lab).get(SECRET).await?.data.unwrap_or_default();
        let keys: Vec<_> = data.into_keys().collect();
        let right = keys == ["ca.crt", "ca.key", "note", "phase"];
        Ok(if right { Ok(()) } else { Err(keys) })
    })
    .await
    .unwrap();
    let mut expected = vec!["CaCreated"];
    expected.extend(["CaRestored"; 5]);
    reported(&lab, &expected).await;
    assert_eq!(bundles(&lab).await, vec![ca.clone(); WEBHOOKS]);
    reviewed(&lab).await.unwrap();

    // The CA key is lost: a new CA is created. The former one stays trusted for an overlap, because a replica that
    // is disconnected may still serve a leaf of it.
    webhook.kill();
    secrets(&lab).delete(SECRET, &delete).await.unwrap();
    webhook.start_again().unwrap();
    webhook.ready().await.unwrap();
    let other = stored(&lab, "ca.crt").await;
    assert_ne!(other, ca);
    trusted(&lab, &format!("{other}{ca}")).await;
    reviewed(&lab).await.unwrap();
    expected.push("CaReplaced");
    reported(&lab, &expected).await;

    // A Secret of a version without rotation, found at a start.
    webhook.kill();
    let older = json!({"data": {"phase": null, "since": null, "ca-old.crt": null}});
    secrets(&lab)
        .patch(SECRET, &parameters, &Patch::Merge(&older))
        .await
        .unwrap();
    webhook.start_again().unwrap();
    webhook.ready().await.unwrap();
    assert_eq!(stored(&lab, "ca.crt").await, other);
    reviewed(&lab).await.unwrap();
    reported(&lab, &expected).await;
}

/// A CA that is put into the Secret by hand is published before it signs.
#[tokio::test]
async fn a_ca_put_into_the_secret_is_published_before_it_signs() {
    let mut lab = lab().await;
    // Longer than a client of this test uses a bundle, on a busy machine.
    let webhook = lab.webhook(&[("CA_PROPAGATION", "10s")]).await.unwrap();
    let before = stored(&lab, "ca.crt").await;
    let now = OffsetDateTime::now_utc();
    let own = Ca::generate("Our own CA", now, CA_LIFETIME).unwrap();
    let exchange = json!({"stringData": {
        "ca.crt": own.certificate_pem(),
        "ca.key": own.key_pem(),
    }});
    secrets(&lab)
        .patch(SECRET, &PatchParams::default(), &Patch::Merge(&exchange))
        .await
        .unwrap();
    let address = lab.webhook_address();
    wait::until("a leaf of the other CA", async || {
        // At every moment, clients that trust the published bundle are served.
        admit(address, &bundles(&lab).await.concat()).await?;
        Ok(admit(address, own.certificate_pem())
            .await
            .map_err(|error| error.to_string()))
    })
    .await
    .unwrap();
    assert_eq!(stored(&lab, "ca.crt").await, own.certificate_pem());
    // The former CA stays trusted for a while, but signs no more leaves.
    trusted(&lab, &format!("{}{before}", own.certificate_pem())).await;
    let refused = admit(address, &before).await.unwrap_err();
    assert!(
        format!("{refused:#}").contains("invalid peer certificate"),
        "{refused:#}"
    );
    reported(&lab, &["CaCreated", "CaReclaimed", "CaSwitched"]).await;
    drop(webhook);
}

#[tokio::test]
async fn replicas_share_a_ca_and_do_not_fight() {
    let mut lab = lab().await;
    lab.register_webhooks().await.unwrap();
    let mark = lab.log_position().await.unwrap();
    // Both replicas start at the same time, without a Secret.
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
    assert_eq!(&admit(first, &ca).await.unwrap(), uid);
    assert_eq!(&admit(second, &ca).await.unwrap(), uid);

    // One Secret was created; each replica wrote each configuration at most once.
    let events = lab.requests_since(mark).await.unwrap();
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

    // After the end of one replica the other still serves, and the CA is unchanged.
    assert_eq!(one.stop().await.unwrap().code(), Some(0));
    assert_eq!(&admit(second, &ca).await.unwrap(), uid);
    assert_eq!(bundles(&lab).await, vec![ca; WEBHOOKS]);
}
