//! The controller in its pods.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use futures::future::join;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::DeleteParams};
use lab::{
    Binary, OPERATOR_NAMESPACE,
    audit::{Event, LogPosition},
    http,
    node::Cluster,
    reviews, wait,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::pods::{METRICS_PORT, address, all_ready, name, pods};

/// The Lease of all replicas.
const LEASE: &str = "kubevirt-operator";

/// Two looks of the other replica at the Lease, and a busy machine.
const LOOKS: Duration = Duration::from_secs(6);

/// Passes that run at the same time (`maxConcurrentReconciles` of the chart): each may have one request in flight.
const AT_ONCE: usize = 5;

/// Writes of the next leader that follow the end of the former one.
const FOLLOWING: usize = 30;

/// The other replica holds the Lease soon after the pod of the leader was deleted, which gets no time to give it back.
pub(crate) async fn a_deleted_leader_is_replaced_within_the_lease(cluster: &mut Cluster) {
    let replicas = all_ready(cluster, Binary::Controller, 2).await;
    let before = lease(cluster).await;
    let leader = replicas
        .iter()
        .find(|pod| holder(&before).contains(name(pod)))
        .unwrap();
    let start = Instant::now();
    // It gives back nothing: the Lease has to expire.
    let process = Cluster::process_of(Binary::Controller, leader).unwrap();
    kill_process(Pid::from_raw(process).unwrap(), Signal::STOP).unwrap();
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
    // Most of the rest is time between two looks of the other replica.
    assert!(start.elapsed() <= Duration::from_secs(seconds) + LOOKS);
    all_ready(cluster, Binary::Controller, 2).await;
}

/// While Machines are created, the leader is frozen until the other replica acts in its place, and then continues: a
/// Lease is no fence for a request that it had handed to its connection, which overwrites nothing of the next leader.
pub(crate) async fn a_frozen_leader_overwrites_nothing_of_the_next_one(cluster: &mut Cluster) {
    let replicas = all_ready(cluster, Binary::Controller, 2).await;
    let before = lease(cluster).await;
    let leads = |pod: &&Value| holder(&before).contains(name(pod));
    let leader = replicas.iter().find(leads).unwrap();
    let process_now = || Cluster::process_of(Binary::Controller, leader).unwrap();
    let process = Pid::from_raw(process_now()).unwrap();
    let metrics = address(leader, METRICS_PORT);
    let leader = name(leader);
    let mark = cluster.lab.log_position().await.unwrap();
    let is_over = AtomicBool::new(false);
    let creating = async {
        let mut created = 0;
        while !is_over.load(Ordering::Relaxed) {
            created += 1;
            let machine =
                reviews::machine(&format!("during-{created}"), &json!({"template": "small"}));
            cluster.lab.apply_when_admitted(&machine).await.unwrap();
        }
        created
    };
    let exchange = async {
        until_writes(cluster, mark, 1, |pod| pod == leader).await;
        kill_process(process, Signal::STOP).unwrap();
        until_writes(cluster, mark, 1, |pod| pod != leader).await;
        kill_process(process, Signal::CONT).unwrap();
        wait::until("the former leader to know that it is none", async || {
            let text = http::get(metrics, "/metrics").await?.text();
            let knows = text
                .lines()
                .any(|line| line == "kubevirt_operator_leading 0");
            Ok(knows.then_some(()).ok_or(text))
        })
        .await
        .unwrap();
        // What it had handed to its connection is answered by the time that the next leader has written as often.
        let in_flight = cluster.lab.log_position().await.unwrap();
        until_writes(cluster, in_flight, FOLLOWING, |pod| pod != leader).await;
        let known = cluster.lab.log_position().await.unwrap();
        until_writes(cluster, known, FOLLOWING, |pod| pod != leader).await;
        is_over.store(true, Ordering::Relaxed);
        known
    };
    let (created, known) = join(creating, exchange).await;
    let after = writes_since(cluster, known).await;
    assert!(
        after.iter().all(|it| it.pod != leader),
        "{:?}",
        summaries(&after)
    );
    let writes = writes_since(cluster, mark).await;
    let next = writes.iter().position(|it| it.pod != leader).unwrap();
    let mut written = BTreeSet::new();
    let mut late = Vec::new();
    for write in &writes[next..] {
        if write.pod == leader {
            late.push(write.summary());
            assert!(!written.contains(&write.object()), "{late:?}");
        } else {
            written.insert(write.object());
        }
    }
    assert!(late.len() <= AT_ONCE, "{late:?}");
    eprintln!(
        "{created} Machines created; {next} writes of the former leader, {} of the next one, {} in flight",
        writes.len() - next - late.len(),
        late.len()
    );
    // It was the same process: the kubelet did not start the container again.
    assert_eq!(process_now(), process.as_raw_nonzero().get());
    all_ready(cluster, Binary::Controller, 2).await;
}

/// What the controller's replicas have written since a position, in order, without their Leases and Events.
async fn writes_since(cluster: &Cluster, mark: LogPosition) -> Vec<Event> {
    let requests = cluster.lab.requests_since(mark).await.unwrap();
    let account = format!(":{}", Binary::Controller.account());
    let is_write = |it: &Event| {
        it.user.ends_with(&account) && it.wrote() && !it.is_lease() && it.resource != "events"
    };
    requests.into_iter().filter(is_write).collect()
}

fn summaries(writes: &[Event]) -> Vec<String> {
    writes.iter().map(Event::summary).collect()
}

/// Waits until pods that `by` accepts have written so often since a position.
async fn until_writes(
    cluster: &Cluster,
    mark: LogPosition,
    count: usize,
    by: impl Fn(&str) -> bool,
) {
    wait::until("the leader to write", async || {
        let writes = writes_since(cluster, mark).await;
        let found = writes.iter().filter(|it| by(&it.pod)).count();
        Ok((found >= count)
            .then_some(())
            .ok_or_else(|| summaries(&writes)))
    })
    .await
    .unwrap();
}

fn holder(lease: &Value) -> &str {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

async fn lease(cluster: &Cluster) -> Value {
    let leases: Api<Lease> = Api::namespaced(cluster.lab.client().clone(), OPERATOR_NAMESPACE);
    json!(leases.get(LEASE).await.unwrap())
}
