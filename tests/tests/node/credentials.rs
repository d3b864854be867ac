//! Certificates and tokens that are replaced while the programs run.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use certs::{CA_LIFETIME, Ca};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Secret,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use lab::{Binary, Lab, OPERATOR_NAMESPACE, WEBHOOK_CONFIGURATION, http, node::Cluster, wait};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::{
    calls,
    pods::{
        WEBHOOK_PORT, address, all_ready, deployment, name, restarts, rolled_out, webhook_host,
    },
};

/// The Secret with the CA of the webhook.
const CA: &str = "machine-webhook-ca";

/// Writes after both replicas have another certificate and the other CA is published first.
const AFTERWARDS: usize = 10;

/// Every write is answered while another CA is published and both replicas get certificates of it.
pub(crate) async fn certificates_are_replaced_between_two_calls(cluster: &mut Cluster) {
    let deployment = &deployment(Binary::Webhook);
    let sooner = ["CA_PROPAGATION=5s", "CERTIFICATE_POLL=1s"];
    let set = [&["set", "env", deployment][..], &sooner].concat();
    cluster.kubectl(&set).await.unwrap();
    rolled_out(cluster, Binary::Webhook).await;
    let replicas = all_ready(cluster, Binary::Webhook, 2).await;
    let now = OffsetDateTime::now_utc();
    let own = Ca::generate("Our own CA", now, CA_LIFETIME).unwrap();
    let exchange = json!({"stringData": {
        "ca.crt": own.certificate_pem(),
        "ca.key": own.key_pem(),
    }});
    let rotation = async {
        let secrets: Api<Secret> =
            Api::namespaced(cluster.lab.client().clone(), OPERATOR_NAMESPACE);
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&exchange));
        secrets.patch(CA, &parameters, &patch).await.unwrap();
        let host = webhook_host();
        for replica in &replicas {
            let address = address(replica, WEBHOOK_PORT);
            wait::until("a certificate of the other CA", async || {
                let shown = http::tls_named(address, own.certificate_pem().as_bytes(), &host).await;
                Ok(shown.map(drop).map_err(|error| format!("{error:#}")))
            })
            .await
            .unwrap();
        }
        // The API server makes new connections for another bundle.
        let configurations: Api<ValidatingWebhookConfiguration> =
            Api::all(cluster.lab.client().clone());
        wait::until("the other CA to be published first", async || {
            let found = configurations.get(WEBHOOK_CONFIGURATION).await?;
            let found = found.webhooks.unwrap_or_default();
            let bundles = found.into_iter().map(|it| it.client_config.ca_bundle);
            let bundles: Vec<_> = bundles.flatten().map(|it| it.0).collect();
            let first = own.certificate_pem().as_bytes();
            let all = bundles.iter().all(|bundle| bundle.starts_with(first));
            Ok((all && !bundles.is_empty())
                .then_some(())
                .ok_or(bundles.len()))
        })
        .await
        .unwrap();
        let machine = lab::reviews::machine("after-the-switch", &json!({"template": "small"}));
        for _ in 0..AFTERWARDS {
            let dry = ["apply", "--dry-run=server", "-f", "-"];
            let written = cluster
                .lab
                .kubectl()
                .run_with(&dry, machine.to_string())
                .await;
            written.unwrap().ok().unwrap();
        }
    };
    let calls = calls::during(&cluster.lab, rotation).await;
    calls.all_answered("another CA");
}

/// The shortest life of a token that the API server gives, in seconds.
const TOKEN_LIFE: u64 = 600;

/// The kubelet replaces a token when four fifths of its life are over and it looks at the pod, which it does every 60 to
/// 90 s; the programs read it each minute.
const TOKENS_REPLACED: Duration = Duration::from_mins(12);

/// Both programs go on with the token that the kubelet has replaced: the requests of each pod have a second token.
pub(crate) async fn tokens_are_replaced_while_the_programs_run(cluster: &mut Cluster) {
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_LIFE}});
    let ca = json!({"configMap": {
        "name": "kube-root-ca.crt",
        "items": [{"key": "ca.crt", "path": "ca.crt"}],
    }});
    let namespace = json!({"downwardAPI": {"items": [{
        "path": "namespace",
        "fieldRef": {"fieldPath": "metadata.namespace"},
    }]}});
    let volume = json!({"name": "token", "projected": {"sources": [token, ca, namespace]}});
    let mount = json!({
        "name": "token",
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        "readOnly": true,
    });
    for binary in [Binary::Webhook, Binary::Controller] {
        let deployment = &deployment(binary);
        let find = ["get", deployment, "--output=json"];
        let found = cluster.kubectl(&find).await.unwrap();
        let found: Value = serde_json::from_str(&found).unwrap();
        let container = &found["spec"]["template"]["spec"]["containers"][0]["name"];
        let patch = json!({"spec": {"template": {"spec": {
            "automountServiceAccountToken": false,
            "volumes": [volume],
            "containers": [{"name": container, "volumeMounts": [mount]}],
        }}}});
        let patch = ["patch", deployment, "--patch", &patch.to_string()];
        cluster.kubectl(&patch).await.unwrap();
        rolled_out(cluster, binary).await;
    }
    let mut pods = BTreeSet::new();
    for binary in [Binary::Webhook, Binary::Controller] {
        let running = all_ready(cluster, binary, 2).await;
        pods.extend(running.iter().map(|pod| name(pod).to_owned()));
    }
    let mark = cluster.lab.log_position().await.unwrap();
    let start = Instant::now();
    let replaced = wait::until_within(TOKENS_REPLACED, "a second token of each pod", async || {
        let tokens = tokens(&cluster.lab, mark).await;
        let all = pods
            .iter()
            .all(|pod| tokens.get(pod).is_some_and(|it| it.len() > 1));
        Ok(if all { Ok(()) } else { Err(tokens) })
    });
    replaced.await.unwrap();
    for binary in [Binary::Webhook, Binary::Controller] {
        // The program that began with the first token goes on with the second one.
        for pod in all_ready(cluster, binary, 2).await {
            assert!(pods.contains(name(&pod)) && restarts(&pod) == 0, "{pod:#}");
        }
    }
    eprintln!(
        "the tokens of {} pods were replaced within {} s",
        pods.len(),
        start.elapsed().as_secs()
    );
}

/// The tokens of the requests since a position, by pod.
async fn tokens(lab: &Lab, mark: lab::audit::LogPosition) -> BTreeMap<String, BTreeSet<String>> {
    let mut tokens = BTreeMap::<_, BTreeSet<_>>::new();
    for event in lab.requests_since(mark).await.unwrap() {
        if !event.pod.is_empty() && !event.token.is_empty() {
            tokens.entry(event.pod).or_default().insert(event.token);
        }
    }
    tokens
}
