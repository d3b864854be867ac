//! What a pass over an unchanged Machine costs the controller, and what a placement does in a small and in a large fleet:
//!
//! ```text
//! cargo test --release -p controller-libvirt costs -- --ignored --nocapture
//! ```

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::fixtures;
use controller_core::machine::CachedMachine;
use controller_core::plan::Now;
use controller_core::reconcile::plan;
use kube::runtime::reflector::store;
use kube::runtime::watcher::Event;

use crate::Libvirt;
use crate::access::HostInfo;
use crate::access::fake::FakeLibvirt;
use crate::environment::{Environment, block, host_object, running_domain};
use crate::hosts::registry::Hosts;
use crate::libvirt_host::LibvirtHost;
use crate::snapshot::Snapshot;

/// Machines on each host of a fleet.
const ON_EACH: usize = 100;

/// The median of this many calls.
fn median(calls: usize, mut call: impl FnMut()) -> Duration {
    let mut took: Vec<_> = (0..calls)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[calls / 2]
}

#[test]
#[ignore = "a benchmark: see costs.rs"]
fn of_a_pass_over_an_unchanged_machine() {
    let mut env = Environment::new(block());
    env.settle();
    let cached = CachedMachine::from(env.machine().clone());
    let decompressed = median(1000, || {
        black_box(cached.decompress());
    });
    let asked = median(1000, || {
        black_box(env.observe().unwrap());
    });
    let observed = env.observe().unwrap();
    let planned = median(1000, || {
        let (machine, growth, now) = (env.machine(), env.growth(), Now(env.now));
        black_box(plan::<Libvirt>(machine, &observed, None, growth, now));
    });
    println!("decompressing the Machine  {decompressed:?}");
    println!("asking a host in memory    {asked:?}");
    println!("planning, with rendering   {planned:?}");
}

/// Hosts with their Machines, as the watches and polls know them.
struct Fleet {
    hosts: Hosts,
    caches: Caches,
    objects: Cache<LibvirtHost>,
}

impl Fleet {
    fn new(count: usize) -> Self {
        let fake = FakeLibvirt::new();
        let hosts = Hosts::new(Arc::new(fake.clone()));
        let (machines, mut writer) = store();
        let fleet = Self {
            hosts,
            caches: Caches::new(machines),
            objects: Cache::default(),
        };
        for number in 0..count {
            let host = format!("host-{number}");
            let uids = (0..ON_EACH).map(|machine| format!("uid-{number}-{machine}"));
            let domains = uids.map(|uid| {
                let machine = fixtures::cached(&uid, &uid, block(), Some(&host));
                let event = Event::Apply(machine);
                fleet.caches.apply(&event, &mut writer, "cluster");
                running_domain(Some(&uid), 2 << 30)
            });
            let snapshot = Snapshot {
                info: HostInfo {
                    cpus: 128,
                    memory: 1 << 40,
                    ..HostInfo::default()
                },
                domains: domains.collect(),
                ..Snapshot::default()
            };
            fleet.hosts.connect(&host, fake.clone(), Ok(snapshot));
            let object = host_object(&host);
            fleet.objects.apply(Event::Apply(object), |_| ());
        }
        fleet
    }

    /// How long it takes to collect the hosts to choose from. Other placements wait meanwhile.
    fn placement(&self, runtime: &tokio::runtime::Runtime) -> Duration {
        median(21, || {
            let candidates = self.hosts.candidates(&self.caches, &self.objects);
            black_box(runtime.block_on(candidates));
        })
    }
}

#[test]
#[ignore = "a benchmark: see costs.rs"]
fn of_a_placement_per_host() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let per_host = [10_u32, 100].map(|count| {
        let took = Fleet::new(count as usize).placement(&runtime);
        let machines = count as usize * ON_EACH;
        println!("{machines} Machines on {count} hosts: {took:?}");
        took / count
    });
    let [small, large] = per_host.map(|took| took.as_secs_f64());
    println!("for each host, large fleet to small: {:.2}", large / small);
}
