//! The cost of a fleet of Machines for the controller, counted in the audit log of the API server.
//!
//! ```text
//! create all ──▶ all run ──▶ the controller restarts ──▶ an idle minute
//!     └ writes, time to the VirtualMachine, processor    └ first pass   └ reads and writes: none
//! ```

use std::{
    collections::HashMap,
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::jiff::Timestamp;
use lab::{
    Binary, Lab, Options, ProgramUnderTest, Scenario,
    audit::{Event, LogPosition},
    objects::MACHINE,
    reviews,
    usage::{memory, processor_time},
    wait,
};
use serde_json::json;
use tokio::time::sleep;

/// Machines created concurrently, as by a pipeline that applies a folder.
const CONCURRENCY: usize = 16;
/// Limit of the time until all Machines run; the simulator of KubeVirt takes most of it.
const FLEET_LIMIT: Duration = Duration::from_hours(1);
/// Duration for which requests are counted while nothing changes.
const IDLE: Duration = Duration::from_mins(1);

/// Pause between two reads of the metrics.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);

/// The figures of one fleet.
#[derive(Debug)]
pub(crate) struct Fleet {
    machines: usize,
    /// Writes of the controller, by object.
    writes: Writes,
    /// From the creation of a Machine to that of its VirtualMachine: the median and the 99th percentile.
    vm_created: [Duration; 2],
    /// From the first creation until all ran.
    all_run: Duration,
    processor: Duration,
    /// Passes over all Machines until all ran.
    passes: usize,
    memory_mib: u64,
    restart: Restart,
    /// Processor time of the controller in [`IDLE`].
    idle_processor: Duration,
    /// Requests of the controller in [`IDLE`], except those for its Lease.
    at_rest: usize,
}

#[derive(Debug, Default)]
struct Writes {
    machine: usize,
    vm: usize,
    children: usize,
}

#[derive(Debug)]
struct Restart {
    /// From the start of the process until every Machine was reconciled.
    first_pass: Duration,
    writes: usize,
    memory_mib: u64,
}

impl Fleet {
    /// Creates this number of Machines and measures.
    pub(crate) async fn measure(machines: usize) -> Result<Self> {
        Binary::Controller.path().await?;
        let mut lab = Lab::with(Options::default()).await?;
        let _webhook = lab.webhook(&[]).await?;
        let mut controller = lab.controller(&[]).await?;
        let _simulator = lab.simulator(Scenario::Happy).await?;

        let (begin, start) = (lab.log_position().await?, Instant::now());
        let before = processor_time(controller.process().id())?;
        create(&lab, machines).await?;
        let running = format!(
            "kubevirt_operator_machines_total{{phase=\"Running\",template=\"small\"}} {machines}"
        );
        shows(&mut controller, "all Machines to run", |line| {
            line == running
        })
        .await?;
        let all_run = start.elapsed();
        let id = controller.process().id();
        let processor = processor_time(id)?.saturating_sub(before);
        let memory_mib = memory(id)?.now;
        let passes = passes(&controller.metrics().await?);
        let (writes, vm_created) = counted(&lab, begin).await?;

        let restart = restart(&lab, &mut controller, machines).await?;
        let rest = lab.log_position().await?;
        let before = processor_time(controller.process().id())?;
        sleep(IDLE).await;
        let idle_processor = processor_time(controller.process().id())?.saturating_sub(before);
        let at_rest = count_requests(&lab, rest, |event| !event.is_lease()).await?;
        Ok(Self {
            machines,
            writes,
            vm_created,
            all_run,
            processor,
            passes,
            memory_mib,
            restart,
            idle_processor,
            at_rest,
        })
    }

    /// Processor time of the controller for each Machine until it runs, in milliseconds.
    fn processor_ms(&self) -> f64 {
        let machines = u32::try_from(self.machines).unwrap_or(u32::MAX);
        (self.processor / machines).as_secs_f64() * 1e3
    }

    /// A line with what a Machine of this fleet costs, as a multiple of what one of another fleet costs.
    pub(crate) fn growth(&self, other: &Self) -> String {
        format!(
            "growth               a Machine costs {:.2} times the processor time of one of {}",
            self.processor_ms() / other.processor_ms(),
            other.machines
        )
    }
}

async fn create(lab: &Lab, machines: usize) -> Result<()> {
    let objects = lab.objects(MACHINE, "default");
    stream::iter(0..machines)
        .map(|number| {
            let name = format!("fleet-{number}");
            let machine = reviews::machine(&name, &json!({"template": "small"}));
            let objects = &objects;
            async move { objects.create(&machine).await }
        })
        .buffer_unordered(CONCURRENCY)
        .try_collect()
        .await
}

/// Waits until the controller's metrics have a line that satisfies `fits`.
async fn shows(
    controller: &mut ProgramUnderTest,
    what: &str,
    fits: impl Fn(&str) -> bool,
) -> Result<()> {
    // A scrape of the metrics costs the controller time, so they are read no more than once a second.
    let mut ticks = tokio::time::interval(SCRAPE_INTERVAL);
    wait::until_within(FLEET_LIMIT, what, async || {
        ticks.tick().await;
        let text = controller.metrics().await?;
        let machines = |line: &&str| line.starts_with("kubevirt_operator_machines_total");
        Ok(if text.lines().any(&fits) {
            Ok(())
        } else {
            Err(text.lines().filter(machines).collect::<Vec<_>>().join("; "))
        })
    })
    .await
}

/// The controller's writes, and the times from the creation of a Machine to that of its VirtualMachine.
async fn counted(lab: &Lab, since: LogPosition) -> Result<(Writes, [Duration; 2])> {
    let user = Binary::Controller.user();
    let mut writes = Writes::default();
    let mut requested: HashMap<String, Timestamp> = HashMap::new();
    let mut waited = Vec::new();
    let look = |event: Event| {
        let Some(at) = event.answered.filter(|_| event.wrote()) else {
            return;
        };
        if event.user != user {
            if (event.resource.as_str(), event.verb.as_str()) == ("machines", "create") {
                requested.insert(event.name, at);
            }
            return;
        }
        match event.resource.as_str() {
            "leases" | "events" => {}
            "machines" => writes.machine += 1,
            "virtualmachines" => {
                writes.vm += 1;
                let since = requested.remove(&event.name);
                let since =
                    since.and_then(|since| Duration::try_from(at.duration_since(since)).ok());
                waited.extend(since);
            }
            _ => writes.children += 1,
        }
    };
    lab.for_each_request(since, look).await?;
    waited.sort_unstable();
    let quantile = |percent: usize| {
        let at = waited.len().saturating_sub(1) * percent / 100;
        waited
            .get(at)
            .copied()
            .context("no VirtualMachine was created")
    };
    Ok((writes, [quantile(50)?, quantile(99)?]))
}

/// Passes since the start of the controller, as its metrics say; 0 before the first one.
fn passes(metrics: &str) -> usize {
    const PASSES: &str =
        "kubevirt_operator_reconciliation_duration_seconds_count{controller=\"Machine\"} ";
    let mut lines = metrics.lines();
    let count = lines.find_map(|line| line.strip_prefix(PASSES));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

async fn restart(lab: &Lab, controller: &mut ProgramUnderTest, machines: usize) -> Result<Restart> {
    controller.stop().await?;
    let (before, start) = (lab.log_position().await?, Instant::now());
    controller.start_again()?;
    let all = |line: &str| passes(line) >= machines;
    shows(controller, "every Machine to be reconciled", all).await?;
    Ok(Restart {
        first_pass: start.elapsed(),
        writes: count_requests(lab, before, |event| event.wrote() && !event.is_lease()).await?,
        memory_mib: memory(controller.process().id())?.now,
    })
}

/// The number of the controller's requests that satisfy `like`.
async fn count_requests(
    lab: &Lab,
    since: LogPosition,
    like: impl Fn(&Event) -> bool,
) -> Result<usize> {
    let user = Binary::Controller.user();
    let mut count = 0;
    let look = |event: Event| count += usize::from(event.user == user && like(&event));
    lab.for_each_request(since, look).await?;
    Ok(count)
}

impl fmt::Display for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let each = |count: usize| count as f64 / self.machines as f64;
        let Writes {
            machine,
            vm,
            children,
        } = self.writes;
        let Restart {
            first_pass,
            writes,
            memory_mib,
        } = self.restart;
        writeln!(f, "{} Machines", self.machines)?;
        writeln!(
            f,
            "writes for each      {:.2} on the Machine, {:.2} on its VirtualMachine, {:.2} on others",
            each(machine),
            each(vm),
            each(children)
        )?;
        writeln!(
            f,
            "VM created after     {:.0} ms median, {:.0} ms 99th percentile",
            self.vm_created[0].as_secs_f64() * 1e3,
            self.vm_created[1].as_secs_f64() * 1e3
        )?;
        writeln!(
            f,
            "until all run        {:.0} s; {:.2} ms of a processor and {:.1} passes for each; memory {} MiB",
            self.all_run.as_secs_f64(),
            self.processor_ms(),
            each(self.passes),
            self.memory_mib
        )?;
        writeln!(
            f,
            "after a restart      {:.1} s until all were reconciled, {writes} writes, memory {memory_mib} MiB",
            first_pass.as_secs_f64()
        )?;
        write!(
            f,
            "idle                 {} requests in {} s, without those for the Lease; {:.2} s of a processor",
            self.at_rest,
            IDLE.as_secs(),
            self.idle_processor.as_secs_f64()
        )
    }
}
