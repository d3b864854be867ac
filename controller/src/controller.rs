//! Starts everything, and ends it in order.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{applier, controller::Config as Scheduling, controller::Error as PassError};
use kube::{Client, Config};
use runtime::admin;
use runtime::checks::Checks;
use runtime::cluster::Cluster;
use runtime::control::control_router;
use runtime::logging::LogControl;
use runtime::signals::Signals;
use runtime::tasks::{TaskError, Tasks};
use tokio_util::sync::CancellationToken;

use crate::api::Guarded;
use crate::args::Args;
use crate::events::events;
use crate::leader::{Elector, Permit};
use crate::libvirt::access::connector;
use crate::libvirt::hosts::{Hosts, attend_all};
use crate::memory::Memory;
use crate::metrics;
use crate::networks::hold;
use crate::reconcile::{Context, reconcile};
use crate::turns::Turns;
use crate::watch::{self, Caches, Triggers};

/// Events of one change come in a row; together they are one pass.
pub(crate) const DEBOUNCE: Duration = Duration::from_millis(50);
/// How long a pass that has begun may take to end after a signal: a call's limit and some.
const END_LIMIT: Duration = Duration::from_secs(8);
/// Why the process ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// There is no usable configuration of the connection.
    #[error("no connection to a cluster: {what}")]
    Settings {
        /// What is wrong with it.
        what: String,
    },
    /// A socket could not be had.
    #[error("cannot listen on {address}")]
    Bind {
        /// Where.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The process cannot be asked to end.
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    /// The metrics recorder could not be made.
    #[error("no metrics: {0}")]
    Metrics(String),
    /// The client could not be made.
    #[error("no client")]
    Client(#[source] kube::Error),
    /// A task ended that should not have.
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
    let hosts = Hosts::new(connector());
    let (caches, triggers) = watch::start(&client, cluster.clone(), &hosts, &mut tasks);
    let (permit, elector) = election(&args, &client, &mut tasks);
    let (events, publisher) = events(client.clone());
    tasks.spawn("events", publisher.run());
    let memory = Arc::new(Memory::default());
    let attendants = attend_all(
        hosts.clone(),
        caches.clone(),
        triggers.clone(),
        Guarded::new(client.clone(), permit.clone()),
    );
    tasks.spawn("libvirt hosts", attendants);
    tasks.spawn(
        "counts",
        metrics::count(caches.clone(), memory.clone(), permit.clone()),
    );

    let stop = CancellationToken::new();
    let (done, mut ended) = tokio::sync::oneshot::channel::<Infallible>();
    let work = {
        let (stop, interval) = (stop.clone(), args.reconcile_interval.0);
        async move {
            let begin = async {
                let cluster = cluster.uid().await;
                caches.known(&synced).await;
                permit.granted().await;
                cluster
            };
            if let Some(cluster) = stop.run_until_cancelled(begin).await {
                let context = Context {
                    caches: caches.clone(),
                    api: Guarded::new(client, permit.clone()),
                    hosts: hosts.clone(),
                    triggers: triggers.clone(),
                    events,
                    memory,
                    cluster,
                    interval,
                };
                let (marked, api) = (triggers.networks.clone(), context.api.clone());
                let holder = hold(marked, caches.clone(), api, context.events.clone());
                triggers.take_from_now_on(&caches);
                tokio::select! {
                    never = holder => match never {},
                    () = work(context, triggers.turns.clone(), args.max_concurrent_reconciles, stop) => {}
                    never = look_again(&permit, &triggers, &caches) => match never {},
                }
            }
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
            _ = &mut ended => {}
            _ = signals.next() => tracing::warn!("ending at once"),
            () = tokio::time::sleep(END_LIMIT) => tracing::warn!("a pass did not end in time"),
        }
        if let Some(elector) = elector {
            elector.release().await;
        }
    }
    outcome
}

/// Where the cluster is and who we are there.
///
/// The client does not try again by itself: it would do so for minutes without a word. Watches and
/// passes have pauses of their own, and say what failed.
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

/// Serves health and metrics, and says where.
async fn serve(
    args: &Args,
    tasks: &mut Tasks,
    (health, ready): (Checks, Checks),
    log: LogControl,
) -> Result<(), RunError> {
    let recorder = admin::install_recorder(&metrics::BUCKETS)
        .map_err(|error| RunError::Metrics(error.to_string()))?;
    metrics::describe();
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

/// Takes part in the election, if there is one.
fn election(args: &Args, client: &Client, tasks: &mut Tasks) -> (Permit, Option<Arc<Elector>>) {
    if !args.leader_election {
        return (Permit::Always, None);
    }
    let (elector, permit) = Elector::new(client.clone(), &args.namespace);
    let elector = Arc::new(elector);
    let running = elector.clone();
    tasks.spawn("leader election", async move { running.run().await });
    (permit, Some(elector))
}

/// Looks at everything whenever this replica may act again: others may have acted, or nobody.
async fn look_again(permit: &Permit, triggers: &Triggers, caches: &Caches) -> Infallible {
    loop {
        permit.granted_again().await;
        triggers.take_from_now_on(caches);
    }
}

/// Works on Machines until told to stop; then ends what has begun.
async fn work(context: Context, turns: Turns, concurrency: u16, stop: CancellationToken) {
    let machines = context.caches.machines.clone();
    let known = machines.clone();
    let queue = stream::unfold(turns.clone(), async |turns| {
        Some((Ok::<_, Infallible>(turns.next().await), turns))
    })
    .take_until(stop.cancelled_owned());
    let scheduling = Scheduling::default()
        .debounce(DEBOUNCE)
        .concurrency(concurrency);
    let passes = applier(
        |machine, context| {
            let (turns, key) = (turns.clone(), ObjectRef::from_obj(&*machine));
            turns.begun(&key);
            Box::pin(async move {
                let next = reconcile(machine, context).await;
                turns.ended(&key);
                Ok::<_, Infallible>(next)
            })
        },
        |_, never, _| match *never {},
        Arc::new(context),
        machines,
        Box::pin(queue),
        scheduling,
    );
    passes
        .for_each(async |outcome| match outcome {
            Ok(_) => {}
            Err(PassError::ObjectNotFound(gone)) => {
                let gone = ObjectRef::new(&gone.name)
                    .within(gone.namespace.as_deref().unwrap_or_default());
                tracing::debug!(machine = %gone, "nothing to do: it is gone");
                turns.gone(gone, |key| known.get(key).is_some());
            }
            Err(error) => tracing::debug!(%error, "a pass did not begin"),
        })
        .await;
}
