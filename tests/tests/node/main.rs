//! The chart on a real node: its image, its pods, probes, limits and budgets, as the kubelet and the kernel apply them.
//! KubeVirt is not part of it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod attacks;
mod calls;
mod controller;
mod credentials;
mod fleet;
mod leftovers;
mod libvirt_host;
mod releases;
mod webhook;

use std::{net::SocketAddr, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use lab::{
    Binary, OPERATOR_NAMESPACE, libvirt,
    node::{self, Cluster, Output},
    wait,
};
use serde_json::Value;

/// Limit of one test, the start of its node included. A token is replaced after some ten minutes, and 10,000 Machines take
/// five, or more on a busy machine.
const LIMIT: Duration = Duration::from_mins(40);

/// Runs the test of this name in namespaces of its own, with a cluster in which the chart is installed with these values.
fn on_a_node(name: &str, values: &[&str], test: impl AsyncFnOnce(&mut Cluster)) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if node::is_enclosed() {
        runtime.block_on(async {
            let mut cluster = Cluster::start().await.unwrap();
            cluster
                .install(node::IMAGE_VERSIONS[0], values)
                .await
                .unwrap();
            let end = cluster.end();
            tokio::select! {
                () = test(&mut cluster) => {}
                reason = end => assert!(reason.is_empty(), "{reason}"),
            }
        });
        return;
    }
    runtime.block_on(async {
        if let Err(missing) = node::requirements().await.unwrap() {
            lab::skip(missing);
            return;
        }
        let arguments = [name, "--exact", "--include-ignored", "--nocapture"];
        let enclosed = node::prepare(&arguments, Output::Logged).await;
        let mut enclosed = enclosed.unwrap();
        let status = enclosed.wait(LIMIT).await;
        let has_run = enclosed.log().contains("test result: ok. 1 passed;");
        assert!(status.unwrap().success() && has_run, "{}", enclosed.log());
        // The figures of the test, without the counts of its runner: they are counted here.
        let log = enclosed.log();
        let (figures, _) = log.split_once("test result: ").unwrap_or_default();
        eprintln!("{figures}");
    });
}

#[test]
fn the_webhook_answers_every_call_whatever_happens_to_its_pods() {
    let name = "the_webhook_answers_every_call_whatever_happens_to_its_pods";
    on_a_node(name, &[], async |cluster| {
        webhook::is_installed(cluster).await;
        webhook::survives_a_killed_containerd(cluster).await;
        webhook::survives_disruptions(cluster).await;
        webhook::has_another_log_level(cluster).await;
        releases::need_a_whole_archive(cluster).await;
        releases::survive_a_wrong_tag(cluster).await;
        releases::survive_pods_that_do_not_fit(cluster).await;
        releases::are_upgraded_rolled_back_and_removed(cluster).await;
    });
}

#[test]
fn the_programs_stay_within_their_limits_and_a_leader_is_replaced() {
    let name = "the_programs_stay_within_their_limits_and_a_leader_is_replaced";
    on_a_node(name, &["--set=replicaCount=2"], async |cluster| {
        attacks::large_bodies_fit_into_the_memory_limit(cluster).await;
        attacks::stuck_clients_cost_no_probe(cluster).await;
        controller::a_deleted_leader_is_replaced_within_the_lease(cluster).await;
        controller::a_frozen_leader_writes_nothing_after_the_next_one(cluster).await;
        credentials::certificates_are_replaced_between_two_calls(cluster).await;
        credentials::tokens_are_replaced_while_the_programs_run(cluster).await;
    });
}

#[test]
fn ten_thousand_machines_fit_into_the_memory_limits() {
    let name = "ten_thousand_machines_fit_into_the_memory_limits";
    // The limit of the controller's processor would only make it slower.
    on_a_node(name, &["--set=resources.limits.cpu=2"], async |cluster| {
        fleet::ten_thousand_machines_fit_into_the_memory_limits(cluster).await;
        attacks::large_bodies_fit_into_the_memory_limit(cluster).await;
    });
}

/// The programs of the lab's libvirtd, and the tiny guest, are made before the node is started: it has no internet.
#[test]
fn a_machine_boots_on_a_libvirt_host_that_its_controller_reaches_over_tls() {
    let name = "a_machine_boots_on_a_libvirt_host_that_its_controller_reaches_over_tls";
    if !node::is_enclosed() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let is_possible = runtime.block_on(async {
            if !Binary::has_libvirt().await.unwrap() {
                lab::skip("the controller is built without libvirt");
                return false;
            }
            if let Err(missing) = libvirt::packages::host().await.unwrap() {
                lab::skip(missing);
                return false;
            }
            libvirt::image().await.unwrap();
            true
        });
        if !is_possible {
            return;
        }
    }
    on_a_node(name, &[], async |cluster| {
        libvirt_host::a_machine_boots_and_is_deleted(cluster).await;
    });
}

/// The port of the webhook, in the chart.
const WEBHOOK_PORT: u16 = 9443;

/// The port for probes and the log level of both programs, in the chart.
const HEALTH_PORT: u16 = 8081;

/// The Deployment of a program. The chart names it as its ServiceAccount.
fn deployment(binary: Binary) -> String {
    format!("deployment/{}", binary.account())
}

/// Waits until every pod of a program is one of the current template of its Deployment.
async fn rolled_out(cluster: &Cluster, binary: Binary) {
    let status = ["rollout", "status", &deployment(binary), "--timeout=110s"];
    cluster.kubectl(&status).await.unwrap();
}

/// The pods of the operator.
fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.lab.client().clone(), OPERATOR_NAMESPACE)
}

/// The name in the webhook's certificate.
fn webhook_host() -> String {
    format!("{}.{OPERATOR_NAMESPACE}.svc", Binary::Webhook.name())
}

/// The address of a port of a pod.
fn address(pod: &Value, port: u16) -> SocketAddr {
    let address = pod["status"]["podIP"].as_str().unwrap();
    SocketAddr::new(address.parse().unwrap(), port)
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap()
}

fn is_ready(pod: &Value) -> bool {
    lab::objects::condition(pod, "Ready")["status"] == "True"
}

fn restarts(pod: &Value) -> i64 {
    pod["status"]["containerStatuses"][0]["restartCount"]
        .as_i64()
        .unwrap_or_default()
}

/// Waits until a program has exactly so many pods, all of which are ready.
async fn all_ready(cluster: &Cluster, binary: Binary, count: usize) -> Vec<Value> {
    let what = format!("{count} ready pods of {}", binary.name());
    wait::until(&what, async || {
        let pods = cluster.pods(binary).await?;
        let are_ready = pods.len() == count && pods.iter().all(is_ready);
        Ok(are_ready.then_some(pods.clone()).ok_or(pods.len()))
    })
    .await
    .unwrap()
}
