//! The controller in its pods.

use std::time::Instant;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::DeleteParams};
use lab::{Binary, OPERATOR_NAMESPACE, node::Cluster, wait};
use serde_json::{Value, json};

use crate::{all_ready, name, pods};

/// The Lease of all replicas.
const LEASE: &str = "kubevirt-operator";

/// The other replica holds the Lease soon after the pod of the leader was deleted without a grace period.
pub(crate) async fn a_deleted_leader_is_replaced_within_the_lease(cluster: &mut Cluster) {
    let replicas = all_ready(cluster, Binary::Controller, 2).await;
    let before = lease(cluster).await;
    let leader = replicas
        .iter()
        .find(|pod| holder(&before).contains(name(pod)))
        .unwrap();
    let start = Instant::now();
    let at_once = DeleteParams::default().grace_period(0);
    pods(cluster).delete(name(leader), &at_once).await.unwrap();
    let after = wait::until("another holder of the Lease", async || {
        let now = lease(cluster).await;
        let is_new = !holder(&now).is_empty() && !holder(&now).contains(name(leader));
        Ok(is_new.then_some(now.clone()).ok_or(now))
    })
    .await
    .unwrap();
    let seconds = after["spec"]["leaseDurationSeconds"].as_u64().unwrap();
    eprintln!(
        "the Lease changed hands after {:.1} s; it lasts {seconds} s",
        start.elapsed().as_secs_f64()
    );
    // The last renewal was before the deletion; the rest is time between two looks on a busy machine.
    assert!(start.elapsed().as_secs() <= 2 * seconds);
    all_ready(cluster, Binary::Controller, 2).await;
}

fn holder(lease: &Value) -> &str {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

async fn lease(cluster: &Cluster) -> Value {
    let leases: Api<Lease> = Api::namespaced(cluster.lab.client().clone(), OPERATOR_NAMESPACE);
    json!(leases.get(LEASE).await.unwrap())
}
