//! The webhook in its pods.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use kube::api::{DeleteParams, EvictParams, ListParams};
use lab::{
    Binary, OPERATOR_NAMESPACE,
    http::{self, Connection, Response},
    node::{Cluster, NODES},
    paths, reviews, wait,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    calls,
    pods::{HEALTH_PORT, address, all_ready, deployment, name, pods, restarts, rolled_out},
};

/// Replicas in the chart.
const REPLICAS: usize = 2;

/// Pods run, `helm test` passes, a faulty Machine is refused through the Service and a good one gets its block.
pub(crate) async fn is_installed(cluster: &mut Cluster) {
    for (binary, count) in [(Binary::Webhook, REPLICAS), (Binary::Controller, 1)] {
        for pod in all_ready(cluster, binary, count).await {
            assert_eq!(restarts(&pod), 0, "{pod:#}");
            let process = Cluster::process_of(binary, &pod).unwrap();
            let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
            // The mount point is the fifth word, its options are the sixth.
            let mut mounts = mounts.lines().map(|line| line.split(' ').skip(4));
            let root =
                mounts.find_map(|mut words| (words.next() == Some("/")).then(|| words.next()));
            let options = root.flatten().unwrap();
            assert!(options.split(',').any(|it| it == "ro"), "{options}");
        }
    }
    cluster.helm(&["test", "kubevirt-operator"]).await.unwrap();

    let faulty = paths::repository().join("manifests/examples/faulty/machine.yaml");
    let apply = ["apply", "-f", &faulty.display().to_string()];
    let refused = cluster.lab.kubectl().run(&apply).await.unwrap().refused();
    assert!(refused.unwrap().contains("[TemplateNotFound]"));

    let machine = reviews::machine("on-a-node", &json!({"template": "small"}));
    cluster.lab.apply(&machine).await.unwrap();
    // The controller's finalizer shows that it acts.
    let machines = cluster.lab.objects(lab::objects::MACHINE, "default");
    let managed = machines.until("on-a-node", "the finalizer", |machine: &Value| {
        let finalizers = machine["metadata"]["finalizers"].as_array();
        machine["spec"]["normalized"].is_object() && finalizers.is_some_and(|it| !it.is_empty())
    });
    managed.await.unwrap();
    let log = ["logs", "deployment/machine-webhook"];
    assert!(!cluster.kubectl(&log).await.unwrap().is_empty());
}

/// Every write is answered during a rolling restart, a deletion, an eviction, a drain that stops at the budget and one that
/// moves every pod to another node. A process that is killed costs the writes that reach it before the kubelet has seen it.
pub(crate) async fn survives_disruptions(cluster: &mut Cluster) {
    let here = &*cluster;
    answered(here, "rolling restart", rolling_restart(here)).await;
    answered(here, "a deleted pod", deletion(here)).await;
    answered(here, "an evicted pod", eviction(here)).await;
    answered(here, "a drain without another node", stopped_drain(here)).await;
    cluster.add_node().await.unwrap();
    let here = &*cluster;
    answered(here, "a drained node", drain(here)).await;

    let calls = calls::during(&cluster.lab, killed(cluster)).await;
    calls.were_steady("a killed process");
    // A connection that breaks before the answer, and new ones until the kubelet has seen it: nothing else.
    for (_, error) in &calls.failed {
        let is_broken = [
            "EOF",
            "broken pipe",
            "connection refused",
            "connection reset",
            "connection lost",
        ];
        assert!(is_broken.iter().any(|it| error.contains(it)), "{error}");
    }
    let times = || calls.failed.iter().map(|(time, _)| *time);
    let (first, last) = (times().min(), times().max());
    let lasted = last
        .unwrap_or_default()
        .saturating_sub(first.unwrap_or_default());
    assert!(lasted < NOTICED, "{lasted:?}");
}

/// Asserts that every write is answered meanwhile.
async fn answered(cluster: &Cluster, what: &str, meanwhile: impl Future<Output = ()>) {
    calls::during(&cluster.lab, meanwhile)
        .await
        .all_answered(what);
}

/// Until the kubelet has seen that a process is gone, the Service leads to it, too. It looks every second.
const NOTICED: Duration = Duration::from_secs(10);

async fn rolling_restart(cluster: &Cluster) {
    let before = all_ready(cluster, Binary::Webhook, REPLICAS).await;
    let restart = ["rollout", "restart", &deployment(Binary::Webhook)];
    cluster.kubectl(&restart).await.unwrap();
    rolled_out(cluster, Binary::Webhook).await;
    let after = replaced(cluster, &before).await;
    assert!(
        after
            .iter()
            .all(|pod| !before.iter().any(|old| name(old) == name(pod)))
    );
}

/// Waits until all pods are ready, and the old ones that were removed are gone.
async fn replaced(cluster: &Cluster, before: &[Value]) -> Vec<Value> {
    let ready = all_ready(cluster, Binary::Webhook, REPLICAS).await;
    wait::until("the old pods to end", async || {
        let all = pods(cluster).list(&ListParams::default()).await?.items;
        let names: Vec<_> = all
            .into_iter()
            .filter_map(|pod| pod.metadata.name)
            .collect();
        let stays = |pod: &&Value| ready.iter().any(|it| name(it) == name(pod));
        let removed = before.iter().filter(|pod| !stays(pod));
        let left: Vec<_> = removed
            .filter(|pod| names.contains(&name(pod).to_owned()))
            .collect();
        Ok(left.is_empty().then_some(()).ok_or(left.len()))
    })
    .await
    .unwrap();
    ready
}

async fn deletion(cluster: &Cluster) {
    let before = all_ready(cluster, Binary::Webhook, REPLICAS).await;
    let (pods, parameters) = (pods(cluster), DeleteParams::default());
    pods.delete(name(&before[0]), &parameters).await.unwrap();
    replaced(cluster, &before).await;
}

/// One pod is evicted; the other one not before the first is replaced.
async fn eviction(cluster: &Cluster) {
    let before = all_ready(cluster, Binary::Webhook, REPLICAS).await;
    let (pods, parameters) = (pods(cluster), EvictParams::default());
    wait::until("the budget to allow an eviction", async || {
        let evicted = pods.evict(name(&before[0]), &parameters).await;
        Ok(evicted.map_err(|error| error.to_string()))
    })
    .await
    .unwrap();
    let second = pods.evict(name(&before[1]), &parameters).await.unwrap_err();
    assert!(second.to_string().contains("disruption budget"), "{second}");
    replaced(cluster, &before).await;
}

/// Without a second node a drain cannot end: the budget keeps one replica, which answers.
async fn stopped_drain(cluster: &Cluster) {
    let only = "--pod-selector=app.kubernetes.io/component=webhook";
    let drain = ["drain", NODES[0], "--timeout=10s", only];
    let refused = cluster.lab.kubectl().run(&drain).await.unwrap().refused();
    let refused = refused.unwrap();
    assert!(refused.contains("disruption budget"), "{refused}");
    cluster.kubectl(&["uncordon", NODES[0]]).await.unwrap();
    all_ready(cluster, Binary::Webhook, REPLICAS).await;
}

/// All pods move to the other node.
async fn drain(cluster: &Cluster) {
    let drain = ["drain", NODES[0], "--timeout=10m"];
    cluster.kubectl(&drain).await.unwrap();
    for (binary, count) in [(Binary::Webhook, REPLICAS), (Binary::Controller, 1)] {
        for pod in all_ready(cluster, binary, count).await {
            assert_eq!(pod["spec"]["nodeName"], NODES[1], "{}", name(&pod));
        }
    }
    cluster.kubectl(&["uncordon", NODES[0]]).await.unwrap();
}

/// One process gets SIGKILL; the kubelet starts its container again.
async fn killed(cluster: &Cluster) {
    let restarted = async || {
        let pods = cluster.pods(Binary::Webhook).await.unwrap();
        pods.iter().map(restarts).sum::<i64>()
    };
    let before = restarted().await;
    let process = Cluster::processes(Binary::Webhook).unwrap()[0];
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    wait::until("the container to be started again", async || {
        let now = restarted().await;
        Ok((now == before + 1).then_some(()).ok_or(now))
    })
    .await
    .unwrap();
    all_ready(cluster, Binary::Webhook, REPLICAS).await;
}

/// How long containerd is down: several probes of each pod fail to start meanwhile, if they need it.
const DOWN: Duration = Duration::from_secs(10);

/// Pods continue while containerd is down. When it is back, none was restarted, and the node starts new ones.
pub(crate) async fn survives_a_killed_containerd(cluster: &mut Cluster) {
    let before = all_ready(cluster, Binary::Webhook, REPLICAS).await;
    let Cluster { node, lab, .. } = cluster;
    let restart = async { node.restart_containerd(DOWN).await.unwrap() };
    let calls = calls::during(lab, restart).await;
    calls.all_answered("a killed containerd");
    node.wait_until_ready(lab).await.unwrap();
    let after = all_ready(cluster, Binary::Webhook, REPLICAS).await;
    let runs = |pods: &[Value]| -> Vec<_> {
        let runs = pods.iter().map(|pod| (name(pod).to_owned(), restarts(pod)));
        runs.collect()
    };
    assert_eq!(runs(&before), runs(&after));
    deletion(cluster).await;
}

/// The local port that leads to the health port of a pod.
const FORWARDED: u16 = 18081;

/// The log level is set through `kubectl port-forward`, as docs/security.md says, and not from another address.
pub(crate) async fn has_another_log_level(cluster: &mut Cluster) {
    let replicas = all_ready(cluster, Binary::Webhook, REPLICAS).await;
    let pod = address(&replicas[0], HEALTH_PORT);
    let answer = put_log_level(pod).await.unwrap();
    assert_eq!(answer.status, 403, "{}", answer.text());
    let kubectl = cluster.lab.kubectl();
    let forward = format!(
        "exec kubectl -n {OPERATOR_NAMESPACE} port-forward pod/{} {FORWARDED}:{HEALTH_PORT}",
        name(&replicas[0])
    );
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, FORWARDED));
    let changed = wait::until("the port to be forwarded", async || {
        Ok(put_log_level(local)
            .await
            .map_err(|error| format!("{error:#}")))
    });
    tokio::select! {
        ended = kubectl.shell(&forward, &[]) => panic!("{}", ended.unwrap()),
        answer = changed => assert_eq!(answer.unwrap().status, 200),
    }
    let level = http::get(pod, "/loglevel").await.unwrap();
    assert_eq!(level.text().trim(), "debug");
}

async fn put_log_level(address: SocketAddr) -> anyhow::Result<Response> {
    let mut connection = Connection::plain(address).await?;
    let answer = connection.send("PUT", "/loglevel", "text/plain", "debug".into());
    answer.await
}
