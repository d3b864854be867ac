//! Clients that use as many connections, as much memory and as much time as they can get, against limits that the
//! kernel and the kubelet enforce.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use lab::{
    Binary,
    http::Connection,
    load,
    node::{self, Cluster},
    objects::condition,
    wait::{self, Deadline},
};
use tokio::{
    io::AsyncWriteExt as _,
    time::{sleep, timeout},
};

use crate::pods::{
    HEALTH_PORT, METRICS_PORT, WEBHOOK_PORT, address, all_ready, is_ready, name, restarts,
    webhook_host,
};

const BODIES: usize = 50;

const STUCK_CLIENTS: usize = 40;

/// Longer than three probes of liveness take to fail, with which the kubelet restarts a container.
const ATTACK: Duration = Duration::from_secs(45);

/// The kernel does not end a process that gets as many of the largest reviews at a time, from clients with different
/// addresses.
pub(crate) async fn large_bodies_fit_into_the_memory_limit(cluster: &mut Cluster) {
    let pods = all_ready(cluster, Binary::Webhook, 2).await;
    let address = address(&pods[0], WEBHOOK_PORT);
    let process = || Cluster::process_of(Binary::Webhook, &pods[0]).unwrap();
    let before = process();
    let (ca, name) = (cluster.lab.ca_bundle().await.unwrap(), webhook_host());
    let connect = async |client: u8| {
        let source = node::client(client).into();
        Connection::tls_from(source, address, &ca, &name).await
    };
    load::large_bodies(connect, BODIES).await.unwrap();
    // The kubelet reports later that it was started again.
    assert_eq!(process(), before);
}

/// Every pod stays ready and none is restarted while clients send requests to its open ports and read no answer.
pub(crate) async fn stuck_clients_cost_no_probe(cluster: &mut Cluster) {
    let webhook = all_ready(cluster, Binary::Webhook, 2).await;
    let controller = all_ready(cluster, Binary::Controller, 2).await;
    let targets = [
        address(&webhook[0], HEALTH_PORT),
        address(&controller[0], HEALTH_PORT),
        address(&controller[0], METRICS_PORT),
    ];
    let watching = async {
        let deadline = Deadline::after(ATTACK);
        while !deadline.passed() {
            for (binary, expected) in [
                (Binary::Webhook, &webhook),
                (Binary::Controller, &controller),
            ] {
                let pods = cluster.pods(binary).await.unwrap();
                assert_eq!(pods.len(), expected.len());
                for pod in pods {
                    let before = expected.iter().find(|it| name(it) == name(&pod));
                    assert!(before.is_some(), "{pod:#}");
                    let healthy = restarts(&pod) == 0 && is_ready(&pod);
                    assert!(healthy, "{:#}", pod["status"]);
                    // It changes with every loss of readiness, however short.
                    let [then, now] = [before.unwrap(), &pod]
                        .map(|pod| &condition(pod, "Ready")["lastTransitionTime"]);
                    assert_eq!(then, now);
                }
            }
            sleep(Duration::from_millis(500)).await;
        }
    };
    let attacks = targets.iter().map(|target| async move {
        let stuck = AtomicUsize::new(0);
        let clients = (0..STUCK_CLIENTS).map(async |_| {
            // The program closes a stuck connection at some time; the client comes again.
            loop {
                let Ok(mut connection) = load::stuck_peer(*target).await else {
                    continue;
                };
                stuck.fetch_add(1, Ordering::Relaxed);
                // Waits until it is closed.
                let _ = connection.write_all(&vec![0; 1 << 20]).await;
            }
        });
        // They never end by themselves.
        let _ = timeout(ATTACK, join_all(clients)).await;
        stuck.into_inner()
    });
    let ((), stuck) = tokio::join!(watching, join_all(attacks));
    eprintln!("stuck connections of each port: {stuck:?}");
    assert!(stuck.iter().all(|it| *it >= STUCK_CLIENTS), "{stuck:?}");
    wait::until("a probe to be answered", async || {
        let answer = lab::http::get(targets[0], "/healthz").await;
        Ok(answer.map_err(|error| format!("{error:#}")))
    })
    .await
    .unwrap();
}
