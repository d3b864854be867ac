//! Starts the tasks of the controller and ends them in order.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::applier;
use kube::runtime::controller::{Action as Next, Config as Scheduling, Error as PassError};
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Config};
use runtime::admin;
use runtime::checks::{Check, Checks};
use runtime::cluster::Cluster;
use runtime::control::control_router;
use runtime::logging::LogControl;
use runtime::signals::Signals;
use runtime::tasks::{TaskError, Tasks};
use tokio_util::sync::CancellationToken;

use controller_core::caches::Caches;
use controller_core::client::GuardedClient;
use controller_core::events::{Events, events};
use controller_core::expectations::Expectations;
use controller_core::lease::{Elector, LeaseGuard};
use controller_core::machine_addresses::{self, release_addresses};
use controller_core::metrics;
use controller_core::network_usage::maintain_in_use_finalizers;
use controller_core::queue::{DEBOUNCE, FairQueue};
use controller_core::quota;
use controller_core::reconcile::{Backends, Context, reconcile};
use controller_core::triggers::Triggers;
use controller_core::watch::Watches;
use controller_kubevirt::KubeVirtCaches;
use controller_libvirt::Fleet;

use crate::args::Args;

/// How long running passes may take to end after a signal: the 12 s of one write, and a margin. Kubernetes ends the
/// process after 30 s.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(15);

/// Why the process ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// There is no usable kubeconfig or ServiceAccount.
    #[error("no connection to a cluster: {what}")]
    Settings {
        /// What is wrong with it.
        what: String,
    },
    /// A socket could not be bound.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address of the flag.
        address: String,
        /// Why it was refused.
        source: io::Error,
    },
    /// Signal handlers could not be installed.
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    /// The metrics recorder could not be installed.
    #[error("no metrics: {0}")]
    Metrics(String),
    /// The Kubernetes client could not be built.
    #[error("no client")]
    Client(#[source] kube::Error),
    /// A task ended that should run as long as the process.
    #[error(transparent)]
    Task(TaskError),
}

pub(crate) async fn run(args: Args, log: LogControl) -> Result<(), RunError> {
    let mut signals = Signals::listen().map_err(RunError::Signals)?;
    let config = configuration(args.kubeconfig.clone()).await?;
    let client = Client::try_from(config).map_err(RunError::Client)?;

    let (health, ready) = (Checks::default(), Checks::default());
    let (synced, reached) = (ready.register("first lists"), ready.register("API server"));
    let mut tasks = Tasks::default();
    serve(&args, &mut tasks, (health, ready), log).await?;

    let cluster = Cluster::new(client.clone(), reached);
    let mut watches = Watches::start(&client, cluster.clone(), &mut tasks);
    let kubevirt = controller_kubevirt::watch(&mut watches);
    let fleet = Fleet::watch(&mut watches);
    let (caches, triggers) = watches.into_parts();

    let (guard, elector) = election(&args, &client, &mut tasks);
    let api = GuardedClient::new(client.clone(), guard.clone());
    let (events, publisher) = events(client);
    tasks.spawn("events", publisher.run());
    let parts = Parts {
        cluster,
        caches,
        triggers,
        kubevirt,
        fleet,
        guard,
        api,
        events,
        expectations: Arc::new(Expectations::default()),
        image_retention: args.image_retention.0,
    };
    parts.spawn_observers(&mut tasks);

    let stop = CancellationToken::new();
    let (done, mut passes_ended) = tokio::sync::oneshot::channel::<Infallible>();
    let work = {
        let stop = stop.clone();
        async move {
            Box::pin(parts.work(&args, synced, stop)).await;
            drop(done);
            std::future::pending::<Result<(), Infallible>>().await
        }
    };
    tasks.spawn("reconciler", work);

    let outcome = tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "ending");
            Ok(())
        }
        error = tasks.first_end() => Err(RunError::Task(error)),
    };
    stop.cancel();
    if outcome.is_ok() {
        tokio::select! {
            _ = &mut passes_ended => {}
            _ = signals.next() => tracing::warn!("ending without waiting for passes"),
            () = tokio::time::sleep(SHUTDOWN_LIMIT) => tracing::warn!("a pass did not end in time"),
        }
        if let Some(elector) = elector {
            elector.release().await;
        }
    }
    outcome
}

/// What the tasks share.
struct Parts {
    cluster: Cluster,
    caches: Caches,
    triggers: Triggers,
    kubevirt: KubeVirtCaches,
    fleet: Fleet,
    guard: LeaseGuard,
    api: GuardedClient,
    events: Events,
    expectations: Arc<Expectations>,
    image_retention: Duration,
}

impl Parts {
    /// Starts the tasks that poll hosts and update gauges. They run on every replica.
    fn spawn_observers(&self, tasks: &mut Tasks) {
        let (caches, triggers, api) = (&self.caches, &self.triggers, &self.api);
        let hosts = self.fleet.clone();
        let hosts = hosts.poll(
            caches.clone(),
            triggers.clone(),
            api.clone(),
            self.image_retention,
        );
        tasks.spawn("libvirt hosts", hosts);
        let gauges = metrics::update_gauges(
            caches.clone(),
            self.expectations.clone(),
            self.guard.clone(),
        );
        tasks.spawn("gauges", gauges);
        let quotas = quota::publish(caches.clone(), api.clone());
        tasks.spawn("use of quotas", quotas);
        let attachments = Arc::new(self.kubevirt.clone());
        let networks = machine_addresses::publish(caches.clone(), attachments, api.clone());
        tasks.spawn("use of networks", networks);
        let gauges = controller_kubevirt::metrics::count(caches.clone(), self.kubevirt.clone());
        tasks.spawn("gauges of virtual machines", gauges);
        let gauges = controller_libvirt::metrics::count(self.fleet.clone());
        tasks.spawn("gauges of libvirt hosts", gauges);
    }

    /// Waits for the first lists and for the Lease, then reconciles until `stop`.
    async fn work(self, args: &Args, synced: Check, stop: CancellationToken) {
        let begin = async {
            let cluster_uid = self.cluster.uid().await;
            self.caches.wait_until_listed(&synced).await;
            self.kubevirt.wait_until_listed(&synced).await;
            self.fleet.wait_until_listed(&synced).await;
            synced.met();
            self.guard.acquired().await;
            self.fleet.wait_until_polled().await;
            cluster_uid
        };
        let Some(cluster_uid) = stop.run_until_cancelled(begin).await else {
            return;
        };
        let Self {
            caches,
            triggers,
            kubevirt,
            fleet,
            guard,
            api,
            events,
            expectations,
            ..
        } = self;
        let finalizers = maintain_in_use_finalizers(
            triggers.network_namespaces.clone(),
            caches.clone(),
            Arc::new(kubevirt.clone()),
            api.clone(),
            events.clone(),
        );
        let images = controller_kubevirt::images::maintain(
            caches.clone(),
            kubevirt.clone(),
            api.clone(),
            args.image_namespace().to_owned(),
        );
        let release = release_addresses(
            caches.clone(),
            vec![Arc::new(kubevirt.clone()), Arc::new(fleet.clone())],
            api.clone(),
        );
        let cluster = cluster_uid.clone();
        let backends = Backends {
            kubevirt: controller_kubevirt::backend(
                kubevirt,
                caches.clone(),
                (api.clone(), events.clone()),
                cluster_uid.clone(),
                args.on_foreign_stop.into(),
                args.image_namespace(),
            ),
            libvirt: controller_libvirt::backend(
                fleet,
                caches.clone(),
                api.clone(),
                triggers.clone(),
                cluster_uid,
                args.on_foreign_stop.into(),
            ),
        };
        let context = Context {
            caches: caches.clone(),
            api,
            events,
            expectations,
            interval: args.reconcile_interval.0,
            cluster,
            backends,
        };
        triggers.activate(&caches);
        let queue = triggers.queue.clone();
        tokio::select! {
            never = finalizers => match never {},
            never = images => match never {},
            never = release => match never {},
            () = work(context, queue, args.max_concurrent_reconciles, stop) => {}
            never = requeue_after_reacquiring(&guard, &triggers, &caches) => match never {},
        }
    }
}

/// The connection to the cluster: the kubeconfig of the flag, or what kube finds.
///
/// The client's own retries are off: it would retry a busy API server for up to 164 s and log nothing. Watches and
/// passes have their own backoff and log the failure.
async fn configuration(kubeconfig: Option<PathBuf>) -> Result<Config, RunError> {
    let settings = |error: &dyn std::error::Error| RunError::Settings {
        what: runtime::tasks::chain(error),
    };
    let mut config = match kubeconfig.filter(|path| !path.as_os_str().is_empty()) {
        None => Config::infer().await.map_err(|error| settings(&error))?,
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(&path).map_err(|error| settings(&error))?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .map_err(|error| settings(&error))?
        }
    };
    config.default_retry = false;
    Ok(config)
}

/// Serves health and metrics, and logs the addresses.
async fn serve(
    args: &Args,
    tasks: &mut Tasks,
    (health, ready): (Checks, Checks),
    log: LogControl,
) -> Result<(), RunError> {
    let recorder = admin::install_recorder(&controller_kubevirt::metrics::BUCKETS)
        .map_err(|error| RunError::Metrics(error.to_string()))?;
    metrics::describe();
    quota::describe();
    controller_kubevirt::metrics::describe();
    controller_libvirt::metrics::describe();
    let mut bound = Vec::new();
    for address in [&args.health_probe_bind_address, &args.metrics_bind_address] {
        let failed = |source| RunError::Bind {
            address: address.to_string(),
            source,
        };
        let listener = address.bind().await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        bound.push((listener, local));
    }
    let health = admin::health_router(health, ready);
    let health = health.merge(control_router("machine-controller", log));
    let routers = [
        ("health", health),
        ("metrics", admin::metrics_router(recorder.clone())),
    ];
    tasks.spawn("metrics upkeep", admin::upkeep(recorder));
    if let [(_, health), (_, metrics)] = &bound[..] {
        tracing::info!(%health, %metrics, "serving");
    }
    for ((name, router), (listener, _)) in routers.into_iter().zip(bound) {
        tasks.spawn(name, admin::serve(listener, router));
    }
    Ok(())
}

/// Starts the leader election, unless it is turned off.
fn election(args: &Args, client: &Client, tasks: &mut Tasks) -> (LeaseGuard, Option<Arc<Elector>>) {
    if !args.leader_election {
        return (LeaseGuard::Always, None);
    }
    let (elector, guard) = Elector::new(client.clone(), &args.namespace);
    let elector = Arc::new(elector);
    let running = elector.clone();
    tasks.spawn("leader election", async move { running.run().await });
    (guard, Some(elector))
}

/// Queues everything whenever this replica acquires the Lease again: meanwhile another replica may have reconciled, or
/// none.
async fn requeue_after_reacquiring(
    guard: &LeaseGuard,
    triggers: &Triggers,
    caches: &Caches,
) -> Infallible {
    loop {
        guard.reacquired().await;
        caches.quotas.remove_grants();
        triggers.activate(caches);
    }
}

/// Reconciles Machines until `stop`, then waits for the running passes.
async fn work(context: Context, queue: FairQueue, concurrency: u16, stop: CancellationToken) {
    let machines = context.caches.machines.clone();
    let (store, latest) = (machines.clone(), machines.clone());
    let machines_to_reconcile = stream::unfold(queue.clone(), async |queue| {
        Some((Ok::<_, Infallible>(queue.next().await), queue))
    })
    .take_until(stop.cancelled_owned());
    let scheduling = Scheduling::default()
        .debounce(DEBOUNCE)
        .concurrency(concurrency);
    let passes = applier(
        |machine, context| {
            let (queue, key) = (queue.clone(), ObjectRef::from_obj(&*machine));
            queue.started(&key);
            // A change between the scheduler's look at the store and `started` was not queued again.
            let machine = latest.get(&key).unwrap_or(machine);
            Box::pin(async move {
                let pause = reconcile(machine, context).await;
                queue.finished(&key);
                Ok::<_, Infallible>(Next::requeue(pause))
            })
        },
        |_, never, _| match *never {},
        Arc::new(context),
        machines,
        Box::pin(machines_to_reconcile),
        scheduling,
    );
    passes
        .for_each(async |outcome| match outcome {
            Ok(_) => {}
            Err(PassError::ObjectNotFound(key)) => {
                let key =
                    ObjectRef::new(&key.name).within(key.namespace.as_deref().unwrap_or_default());
                tracing::debug!(machine = %key, "the Machine was deleted before its pass");
                queue.not_found(key, |key| store.get(key).is_some());
            }
            Err(error) => tracing::debug!(%error, "a pass did not start"),
        })
        .await;
}
