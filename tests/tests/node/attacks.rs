//! Clients that take what they can, against limits that the kernel and the kubelet enforce.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use lab::{
    Binary, load,
    node::Cluster,
    wait::{self, Deadline},
};
use serde_json::Value;
use tokio::time::sleep;

use crate::{HEALTH_PORT, all_ready, is_ready, name, restarts};

const BODIES: usize = 50;

const STUCK_CLIENTS: usize = 40;

/// Longer than three probes of liveness take to fail, with which the kubelet restarts a container.
const ATTACK: Duration = Duration::from_secs(45);

/// The port for metrics of the controller, in the chart.
const METRICS_PORT: u16 = 8080;

/// The kernel ends no process that gets as many of the largest reviews at a time.
pub(crate) async fn large_bodies_fit_into_the_memory_limit(cluster: &mut Cluster) {
    all_ready(cluster, Binary::Webhook, 2).await;
    let connect = async || cluster.connect_webhook().await;
    load::large_bodies(connect, BODIES).await.unwrap();
    for pod in all_ready(cluster, Binary::Webhook, 2).await {
        assert_eq!(restarts(&pod), 0, "{:#}", pod["status"]);
    }
}

/// Every pod stays ready and none is restarted while clients send requests to its open ports and read no answer.
pub(crate) async fn stuck_clients_at_the_probe_port_cost_no_probe(cluster: &mut Cluster) {
    let webhook = all_ready(cluster, Binary::Webhook, 2).await;
    let controller = all_ready(cluster, Binary::Controller, 2).await;
    let address = |pod: &Value, port: u16| -> SocketAddr {
        let address = pod["status"]["podIP"].as_str().unwrap();
        SocketAddr::new(address.parse().unwrap(), port)
    };
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
                    assert!(expected.iter().any(|it| name(it) == name(&pod)), "{pod:#}");
                    let healthy = restarts(&pod) == 0 && is_ready(&pod);
                    assert!(healthy, "{:#}", pod["status"]);
                }
            }
            sleep(Duration::from_millis(500)).await;
        }
    };
    let attacks = targets.iter().flat_map(|target| {
        let deadline = Deadline::after(ATTACK);
        (0..STUCK_CLIENTS).map(move |_| async move {
            // The program ends a stuck connection at some time; the client comes again.
            while !deadline.passed() {
                let stuck = load::stuck_peer(*target).await;
                sleep(Duration::from_secs(1)).await;
                drop(stuck);
            }
        })
    });
    tokio::join!(watching, join_all(attacks));
    wait::until("a probe to be answered", async || {
        let answer = lab::http::get(targets[0], "/healthz").await;
        Ok(answer.map_err(|error| format!("{error:#}")))
    })
    .await
    .unwrap();
}
