//! The pods of both programs, their ports and Deployments.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use lab::{Binary, OPERATOR_NAMESPACE, node::Cluster, wait};
use serde_json::Value;

/// The port of the webhook, in the chart.
pub(crate) const WEBHOOK_PORT: u16 = 9443;

/// The port for probes and the log level of both programs, in the chart.
pub(crate) const HEALTH_PORT: u16 = 8081;

/// The port for metrics of the controller, in the chart.
pub(crate) const METRICS_PORT: u16 = 8080;

/// The Deployment of a program. The chart names it as its ServiceAccount.
pub(crate) fn deployment(binary: Binary) -> String {
    format!("deployment/{}", binary.account())
}

/// Waits until every pod of a program is one of the current template of its Deployment.
pub(crate) async fn rolled_out(cluster: &Cluster, binary: Binary) {
    let status = ["rollout", "status", &deployment(binary), "--timeout=10m"];
    cluster.kubectl(&status).await.unwrap();
}

/// The pods of the operator.
pub(crate) fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.lab.client().clone(), OPERATOR_NAMESPACE)
}

/// The name in the webhook's certificate.
pub(crate) fn webhook_host() -> String {
    format!("{}.{OPERATOR_NAMESPACE}.svc", Binary::Webhook.name())
}

/// The address of a port of a pod.
pub(crate) fn address(pod: &Value, port: u16) -> SocketAddr {
    let address = pod["status"]["podIP"].as_str().unwrap();
    SocketAddr::new(address.parse().unwrap(), port)
}

pub(crate) fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap()
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    lab::objects::condition(pod, "Ready")["status"] == "True"
}

pub(crate) fn restarts(pod: &Value) -> i64 {
    pod["status"]["containerStatuses"][0]["restartCount"]
        .as_i64()
        .unwrap_or_default()
}

/// Waits until a program has exactly so many pods, all of which are ready.
pub(crate) async fn all_ready(cluster: &Cluster, binary: Binary, count: usize) -> Vec<Value> {
    let what = format!("{count} ready pods of {}", binary.name());
    wait::until(&what, async || {
        let pods = cluster.pods(binary).await?;
        let are_ready = pods.len() == count && pods.iter().all(is_ready);
        Ok(are_ready.then_some(pods.clone()).ok_or(pods.len()))
    })
    .await
    .unwrap()
}
