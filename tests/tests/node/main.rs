//! The chart on a real node: its image, its pods, probes, limits and budgets, as the kubelet and the kernel apply them.
//! KubeVirt is not part of it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod attacks;
mod calls;
mod controller;
mod credentials;
mod fleet;
mod former_release;
mod leftovers;
mod libvirt_host;
mod pods;
mod releases;
mod webhook;

use std::time::Duration;

use futures::FutureExt as _;
use lab::{
    Binary, libvirt,
    node::{self, Cluster, FormerRelease, Output},
};
use tokio::time::timeout;

/// Limit of one test, the start of its node included. A token is replaced after some ten minutes, and 10,000 Machines take
/// five, or more on a busy machine.
const LIMIT: Duration = Duration::from_mins(40);

/// Limit of a report: a dead program is noticed within half a second.
const REPORTED: Duration = Duration::from_secs(30);

/// Runs the test of this name in namespaces of its own, with a cluster in which the chart is installed with these values and
/// answers writes.
fn on_a_node(name: &str, values: &[&str], test: impl AsyncFnOnce(&mut Cluster)) {
    on_an_empty_node(name, async |cluster| {
        let installed = cluster.install(node::IMAGE_VERSIONS[0], values).await;
        installed.unwrap();
        cluster.until_answered().await.unwrap();
        test(cluster).await;
    });
}

/// Runs the test of this name in namespaces of its own, with a cluster.
fn on_an_empty_node(name: &str, test: impl AsyncFnOnce(&mut Cluster)) {
    in_namespaces(name, async || {
        let mut cluster = Cluster::start().await.unwrap();
        let end = cluster.end();
        tokio::select! {
            () = test(&mut cluster) => {}
            reason = end => assert!(reason.is_empty(), "{reason}"),
        }
    });
}

/// Runs the test of this name in namespaces of its own.
fn in_namespaces(name: &str, test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if node::is_enclosed() {
        runtime.block_on(test());
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

/// A test does not wait for its limit without containerd, also if it has restarted it before.
#[test]
fn a_containerd_that_dies_is_reported_with_its_log() {
    in_namespaces(
        "a_containerd_that_dies_is_reported_with_its_log",
        async || {
            let mut cluster = Cluster::start().await.unwrap();
            let restarted = cluster.node.restart_containerd(Duration::ZERO);
            restarted.await.unwrap();
            assert!(cluster.end().now_or_never().is_none());
            cluster.node.kill_containerd();
            let reason = timeout(REPORTED, cluster.end()).await.unwrap();
            assert!(reason.starts_with("containerd has ended\n"), "{reason}");
            assert!(reason.contains("level="), "{reason}");
        },
    );
}

/// The programs of the former release are built before the node is started: it has no internet.
#[test]
fn release_0_1_0_is_upgraded_while_its_webhook_is_called_and_back() {
    let name = "release_0_1_0_is_upgraded_while_its_webhook_is_called_and_back";
    if !node::is_enclosed() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let missing = runtime.block_on(async {
            node::requirements().await.unwrap()?;
            FormerRelease::ensure().await.unwrap().map(drop)
        });
        if let Err(missing) = missing {
            lab::skip(missing);
            return;
        }
    }
    on_an_empty_node(name, async |cluster| {
        former_release::is_upgraded_and_comes_back(cluster).await;
    });
}

#[test]
fn the_programs_stay_within_their_limits_and_a_leader_is_replaced() {
    let name = "the_programs_stay_within_their_limits_and_a_leader_is_replaced";
    on_a_node(name, &["--set=replicaCount=2"], async |cluster| {
        attacks::large_bodies_fit_into_the_memory_limit(cluster).await;
        attacks::stuck_clients_cost_no_probe(cluster).await;
        controller::a_deleted_leader_is_replaced_within_the_lease(cluster).await;
        controller::a_frozen_leader_overwrites_nothing_of_the_next_one(cluster).await;
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
