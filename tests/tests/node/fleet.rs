//! The memory limits of the chart, and as many Machines as docs/performance.md has figures for.

use std::{fs, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use hyper::Request;
use lab::{Binary, http, node::Cluster, objects::MACHINE, reviews, usage, wait};
use serde_json::{Value, json};

use crate::pods::{HEALTH_PORT, address, all_ready, restarts};

const MACHINES: usize = 10_000;

/// Machines that are created at the same time.
const CONCURRENCY: usize = 16;

/// The test build of the controller needs some 50 ms of a processor for a new Machine.
const RECONCILED: Duration = Duration::from_mins(20);

/// Neither program is ended by the kernel while both get this many Machines.
pub(crate) async fn ten_thousand_machines_fit_into_the_memory_limits(cluster: &mut Cluster) {
    let machines = cluster.lab.objects(MACHINE, "default");
    let created = stream::iter(0..MACHINES).map(|number| {
        let machine = reviews::machine(&format!("fleet-{number}"), &json!({"template": "small"}));
        let machines = &machines;
        async move { machines.create(&machine).await }
    });
    let created = created.buffer_unordered(CONCURRENCY).try_collect::<()>();
    created.await.unwrap();
    let webhook = all_ready(cluster, Binary::Webhook, 2).await;
    for pod in &webhook {
        let known = format!("machine_webhook_catalog_objects{{kind=\"machines\"}} {MACHINES}");
        until_shown(pod, &known).await;
    }
    until_each_has_a_vm(cluster).await;
    for (binary, pods) in [
        (
            Binary::Webhook,
            all_ready(cluster, Binary::Webhook, 2).await,
        ),
        (
            Binary::Controller,
            all_ready(cluster, Binary::Controller, 1).await,
        ),
    ] {
        for pod in pods {
            assert_eq!(restarts(&pod), 0, "{:#}", pod["status"]);
            let process = Cluster::process_of(binary, &pod).unwrap();
            let memory = usage::memory(process.cast_unsigned()).unwrap();
            let limit = enforced_limit(process) / (1 << 20);
            let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
            assert_eq!(limits["memory"], format!("{limit}Mi"), "by the kernel");
            assert!(memory.peak < limit, "{memory:?}");
            eprintln!(
                "{} with {MACHINES} Machines: {} MiB at most, limit {limit} MiB",
                binary.name(),
                memory.peak,
            );
        }
    }
}

/// The limit of memory in bytes that the kernel enforces for the container of a process.
fn enforced_limit(process: i32) -> u64 {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    // `9:memory:/path` of version 1, or `0::/path` of version 2.
    let limits = groups.lines().filter_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        let file = match controllers {
            "" => format!("/sys/fs/cgroup{path}/memory.max"),
            "memory" => format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"),
            _ => return None,
        };
        fs::read_to_string(file).ok()
    });
    let limits: Vec<_> = limits.collect();
    assert_eq!(limits.len(), 1, "{groups}: {limits:?}");
    limits[0].trim().parse().unwrap()
}

/// Waits until the controller has created a VirtualMachine for each Machine.
async fn until_each_has_a_vm(cluster: &Cluster) {
    let first = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines?limit=1";
    wait::until_within(RECONCILED, "a VirtualMachine of each Machine", async || {
        let request = Request::get(first).body(Vec::new())?;
        let list: Value = cluster.lab.client().request(request).await?;
        let others = list["metadata"]["remainingItemCount"].as_u64();
        let count = others.map_or(0, |others| others + 1);
        Ok((count == MACHINES as u64).then_some(()).ok_or(count))
    })
    .await
    .unwrap();
}

/// Waits until the webhook's metrics have this line.
async fn until_shown(pod: &Value, line: &str) {
    let address = address(pod, HEALTH_PORT);
    wait::until(line, async || {
        let metrics = http::get(address, "/metrics").await?.text();
        let found = metrics.lines().any(|it| it == line);
        Ok(found.then_some(()).ok_or(metrics))
    })
    .await
    .unwrap();
}
