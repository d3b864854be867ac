//! Rotation and restarts under load: no call fails.
//!
//! ```text
//! writers ──kept connections──► kube-apiserver ──TLS──┐
//! clients ──a new connection each time, TLS───────────┴─► Balancer ──► two replicas
//! ```
//! A client simulates an API server whose watch is late: it trusts the bundle of four seconds ago.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use lab::balancer::Balancer;
use lab::{Lab, OPERATOR_NAMESPACE, ProgramUnderTest, WEBHOOK_CONFIGURATION, http, reviews, wait};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::{admit, lab};

/// A whole rotation in a minute and a half; a leaf for each replica every twelve seconds. On a busy machine, an API server
/// may use a bundle some seconds late, and a replica may be as late with its next leaf.
const FAST_ROTATION: [(&str, &str); 6] = [
    ("WEBHOOK_BIND_ADDRESS", "127.0.0.1:0"),
    ("CA_LIFE", "87s"),
    ("LEAF_LIFE", "18s"),
    ("CA_PROPAGATION", "8s"),
    ("CERTIFICATE_POLL", "500ms"),
    ("DRAIN_DELAY", "15s"),
];
/// The propagation time of [`FAST_ROTATION`]: clients with an older bundle may be rejected.
const PROPAGATION: Duration = Duration::from_secs(8);
/// How long a client uses the bundle that it has read: shorter than the propagation time.
const BUNDLE_AGE: Duration = Duration::from_secs(4);
const WRITERS: u32 = 2;
/// Interval between calls. Each write causes two reviews: a mutating and a validating one.
const CALL_INTERVAL: Duration = Duration::from_millis(40);
const STALE_CLIENTS: u32 = 2;

/// The results of the calls.
#[derive(Debug, Default)]
struct Calls {
    over: AtomicBool,
    written: AtomicU32,
    opened: AtomicU32,
    failed: Mutex<Vec<String>>,
}

impl Calls {
    fn count(&self, which: &AtomicU32, what: Result<(), String>) {
        which.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = what {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.push(error);
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Creates Machines through the API server, as dry runs.
async fn write(client: kube::Client, calls: Arc<Calls>) {
    let kind = GroupVersionKind::gvk("vitistack.io", "v1alpha1", "Machine");
    let resource = ApiResource::from_gvk(&kind);
    let machines: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
    let machine = reviews::machine("web", &json!({"template": "small"}));
    let machine: DynamicObject = serde_json::from_value(machine).unwrap();
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut ticks = interval(CALL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !calls.is_over() {
        ticks.tick().await;
        let made = machines.create(&parameters, &machine).await;
        let made = made.map(drop).map_err(|error| format!("a writer: {error}"));
        calls.count(&calls.written, made);
    }
}

/// Sends reviews, each on a new connection, and trusts a bundle that was published up to [`BUNDLE_AGE`] ago. A call that has
/// taken so long that the bundle is older than [`PROPAGATION`] does not count.
async fn send_stale(client: kube::Client, address: SocketAddr, calls: Arc<Calls>) {
    let mut ticks = interval(CALL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut bundle, mut read) = (String::new(), None::<Instant>);
    while !calls.is_over() {
        ticks.tick().await;
        if read.is_none_or(|read| read.elapsed() > BUNDLE_AGE) {
            read = Some(Instant::now());
            let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
            let configuration = configurations.get(WEBHOOK_CONFIGURATION).await.unwrap();
            let mut webhooks = configuration.webhooks.unwrap().into_iter();
            let bytes = webhooks.find_map(|webhook| webhook.client_config.ca_bundle);
            bundle = String::from_utf8(bytes.unwrap().0).unwrap();
        }
        let answer = admit(address, &bundle).await;
        let answer = answer
            .map(drop)
            .map_err(|error| format!("a stale client: {error:#}"));
        if read.is_some_and(|read| read.elapsed() < PROPAGATION) {
            calls.count(&calls.opened, answer);
        }
    }
}

/// CA and phase in the Secret.
async fn stored_ca(lab: &Lab) -> (String, String) {
    let secrets: Api<Secret> = Api::namespaced(lab.client().clone(), OPERATOR_NAMESPACE);
    let data = secrets
        .get("machine-webhook-ca")
        .await
        .unwrap()
        .data
        .unwrap();
    let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
    (text("ca.crt"), text("phase"))
}

async fn replica(lab: &mut Lab, balancer: &Balancer) -> ProgramUnderTest {
    let mut replica = lab.start_webhook(&FAST_ROTATION).await.unwrap();
    let serves = replica.address("listen").await.unwrap();
    balancer.add(serves, replica.health_address().await.unwrap());
    replica
}

async fn ready(balancer: &Balancer, replicas: usize) {
    wait::until("the replicas to be ready", async || {
        let ready = balancer.ready();
        Ok(if ready == replicas {
            Ok(())
        } else {
            Err(ready)
        })
    })
    .await
    .unwrap();
}

/// Writers and stale clients, which run until [`Load::end`].
struct Load {
    calls: Arc<Calls>,
    running: JoinSet<()>,
}

impl Load {
    async fn of(lab: &Lab) -> Self {
        let (calls, mut running) = (Arc::new(Calls::default()), JoinSet::new());
        for _ in 0..WRITERS {
            let client = lab.client_as(lab::User::Admin).await.unwrap();
            running.spawn(write(client, calls.clone()));
        }
        for _ in 0..STALE_CLIENTS {
            let client = lab.client().clone();
            running.spawn(send_stale(client, lab.webhook_address(), calls.clone()));
        }
        Self { calls, running }
    }

    /// Ends the load, once there were enough calls for one of them to fail.
    async fn end(&mut self) {
        wait::until("a hundred writes and connections", async || {
            let counts = [&self.calls.written, &self.calls.opened];
            let counts = counts.map(|count| count.load(Ordering::Relaxed));
            Ok(if counts.iter().all(|count| *count > 100) {
                Ok(())
            } else {
                Err(counts)
            })
        })
        .await
        .unwrap();
        self.calls.over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap();
        }
    }

    /// Checks that no call failed, and describes the number of calls.
    fn failed_nowhere(&self, took: Duration) -> String {
        let written = self.calls.written.load(Ordering::Relaxed);
        let opened = self.calls.opened.load(Ordering::Relaxed);
        let failed = self
            .calls
            .failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        assert!(failed.is_empty(), "{:#?}", &failed[..failed.len().min(5)]);
        format!(
            "{:.0} s: {written} writes ({} reviews), {opened} new connections, {:.0} reviews/s; \
             0 calls failed",
            took.as_secs_f64(),
            2 * written,
            f64::from(2 * written + opened) / took.as_secs_f64(),
        )
    }
}

/// Two replicas behind a balancer, which the API server trusts.
async fn two_replicas(lab: &mut Lab) -> (Balancer, Vec<ProgramUnderTest>) {
    lab.register_webhooks().await.unwrap();
    let balancer = Balancer::start(lab.webhook_address()).await.unwrap();
    let replicas = vec![replica(lab, &balancer).await, replica(lab, &balancer).await];
    ready(&balancer, 2).await;
    // Wait until the API server has the first bundle.
    wait::until("the API server to trust the replicas", async || {
        Ok(crate::reviewed(lab)
            .await
            .map_err(|error| format!("{error:#}")))
    })
    .await
    .unwrap();
    (balancer, replicas)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotations_and_a_rolling_restart_fail_no_call() {
    let mut lab = lab().await;
    let (balancer, mut replicas) = two_replicas(&mut lab).await;
    let (mut load, start) = (Load::of(&lab).await, Instant::now());

    // A rolling restart: a new replica serves before an old one is stopped.
    let mut leaves = 0;
    for _ in 0..2 {
        replicas.push(replica(&mut lab, &balancer).await);
        ready(&balancer, 3).await;
        let mut old = replicas.remove(0);
        leaves += signed(&old);
        assert_eq!(old.stop().await.unwrap().code(), Some(0));
        ready(&balancer, 2).await;
    }
    let restarted = start.elapsed();

    // A whole rotation, from its beginning to its end.
    let (before, _) = stored_ca(&lab).await;
    for phase in ["publishing", "overlap", "steady"] {
        wait::until_within(wait::LIMIT, phase, async || {
            let (_, there) = stored_ca(&lab).await;
            Ok(if there == phase { Ok(()) } else { Err(there) })
        })
        .await
        .unwrap();
    }
    // Some more calls with the bundle without the former CA.
    sleep(2 * BUNDLE_AGE).await;
    load.end().await;
    let took = start.elapsed();
    let (after, _) = stored_ca(&lab).await;
    assert_ne!(after, before);
    leaves += replicas.iter().map(signed).sum::<usize>();

    println!(
        "{:.0} s for a restart of both replicas; {leaves} leaves, connections of each {:?}",
        restarted.as_secs_f64(),
        balancer.accepted(),
    );
    println!("{}", load.failed_nowhere(took));
    assert!(leaves > 6, "{leaves}");
}

/// The head of a request whose body does not come.
const UNFINISHED: &str = "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                          content-length: 9\r\n\r\n";
/// Interval between two unfinished requests: the webhook waits for a body for five seconds.
const UNFINISHED_INTERVAL: Duration = Duration::from_secs(1);

/// Sends unfinished requests until the replica accepts no connection: one of them prevents it from exiting when its other
/// connections are closed.
async fn hold(replica: SocketAddr, ca: Vec<u8>) {
    let mut held = Vec::new();
    while let Ok(mut stream) = http::tls(replica, &ca).await {
        // Fails if the replica closes its connections now.
        let _ = stream.write_all(UNFINISHED.as_bytes()).await;
        let _ = stream.flush().await;
        held.push(stream);
        sleep(UNFINISHED_INTERVAL).await;
    }
    std::future::pending::<()>().await;
}

/// Rounds of a replica that is unready, of which two have to be in time: on a busy machine, a replica may end by itself
/// before it is killed.
const ROUNDS: usize = 6;

/// A replica on a node that fails has no time to finish. Once the replica is unready and has closed its connections,
/// killing it fails no call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_an_unready_replica_without_connections_fails_no_call() {
    let mut lab = lab().await;
    let (balancer, mut replicas) = two_replicas(&mut lab).await;
    let (mut load, start) = (Load::of(&lab).await, Instant::now());
    let mut killed = 0;
    for round in 0..ROUNDS {
        let mut old = replicas.remove(0);
        let address = old.address("listen").await.unwrap();
        let mut holding = JoinSet::new();
        holding.spawn(hold(address, lab.ca_bundle().await.unwrap()));
        old.process().terminate().unwrap();
        ready(&balancer, 1).await;
        wait::until_at_once("the replica to have no connections", async || {
            let open = balancer.open()[round];
            Ok(if open == 0 { Ok(()) } else { Err(open) })
        })
        .await
        .unwrap();
        if old.process().check_alive().is_ok() {
            old.kill();
            killed += 1;
        }
        replicas.push(replica(&mut lab, &balancer).await);
        ready(&balancer, 2).await;
        if killed == 2 {
            break;
        }
    }
    assert_eq!(killed, 2);
    // Includes the last calls of clients that trust the former bundle.
    sleep(BUNDLE_AGE).await;
    load.end().await;
    println!("{}", load.failed_nowhere(start.elapsed()));
}

/// The number of leaves that a replica has signed.
fn signed(replica: &ProgramUnderTest) -> usize {
    let lines = replica.log_lines();
    let signed = lines
        .iter()
        .filter(|line| line["message"] == "signed a new leaf");
    signed.count()
}
