//! The program: starts every task, waits for a signal, shuts down.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use common::MissingNetworks as Missing;
use common::admission::Settings;
use common::api::choice::{Backend, ReclaimPolicy};
use kube::{Client, Config};
use runtime::checks::Checks;
use runtime::control::control_router;
use runtime::logging::LogControl;
use runtime::signals::Signals;
use runtime::tasks::Tasks;
use runtime::{admin, settings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::args::{Args, DefaultBackend, DefaultReclaimPolicy, MissingNetworks};
use crate::body::BodyBudget;
use crate::catalog::{self, ApiLookup, CONCURRENT_READS, SingleFlight};
use crate::handler::Handler;
use crate::server::{self, Closing, Limits};
use crate::{certificates, crd_check, metrics, router};

/// Runs until a signal arrives or a task that must run ends.
pub async fn run(args: Args, log: LogControl) -> anyhow::Result<()> {
    // kube's TLS uses the provider of the process.
    let provider = rustls::crypto::ring::default_provider();
    if provider.install_default().is_err() {
        anyhow::bail!("another TLS provider is installed");
    }
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let recorder = admin::install_recorder(&[]).context("cannot set up the metrics")?;
    metrics::describe();
    let client = client().await?;
    let verifier = args.certificates.client_verifier();
    let verifier = verifier.context("cannot use the CAs of --client-ca")?;
    raise_descriptor_limit();
    let listener = bind(&args.listen).await?;
    let admin_listener = bind(&args.admin_listen).await?;
    let (listen, admin_listen) = (listener.local_addr()?, admin_listener.local_addr()?);

    let ready = Checks::default();
    let serving = ready.register("server");
    let mut tasks = Tasks::default();
    let admin_router = admin::health_router(Checks::default(), ready.clone())
        .merge(admin::metrics_router(recorder.clone()))
        .merge(control_router("machine-webhook", log));
    tasks.spawn("admin", admin::serve(admin_listener, admin_router));
    tasks.spawn("metrics upkeep", admin::upkeep(recorder));

    let resolver = certificates::start(&mut tasks, &args, &client, &ready)?;
    if let (Some(verifier), Some(ca)) = (&verifier, &args.certificates.client_ca) {
        let poll = args.certificates.certificate_poll.0;
        let follow = ca.clone().follow(verifier.clone(), poll);
        tasks.spawn("client CA", follow);
    }
    crd_check::start(&mut tasks, &client, &ready);
    let handler = Handler {
        cache: catalog::start(&mut tasks, &client, &ready),
        lookup: Box::new(SingleFlight::new(ApiLookup::new(client), CONCURRENT_READS)),
        settings: admission_settings(&args),
        budget: BodyBudget::default(),
    };
    let tls = server::tls(
        Arc::new(resolver),
        args.certificates.tls_min_version,
        verifier,
    );
    let closing = Closing::new();
    let (open, announced) = divided(args.drain_delay.0);
    let limits = Limits {
        announced,
        ..Limits::default()
    };
    let mut server = tokio::spawn(server::serve(
        listener,
        tls.context("cannot set up TLS")?,
        router::router(&Arc::new(handler)),
        limits,
        closing.clone(),
    ));
    serving.met();
    tracing::info!(%listen, admin = %admin_listen, "serving");

    tokio::select! {
        signal = signals.next() => tracing::info!(signal, "shutting down"),
        ended = tasks.first_end() => return Err(ended.into()),
        ended = &mut server => {
            ended.context("the server failed")?;
            anyhow::bail!("the server ended unexpectedly");
        }
    }

    serving.missing("shutting down");
    let shutdown = async {
        sleep(open).await;
        closing.cancel();
        (&mut server).await
    };
    tokio::select! {
        ended = shutdown => ended.context("the server failed")?,
        ended = tasks.first_end() => return Err(ended.into()),
        signal = signals.next() => {
            server.abort();
            anyhow::bail!("received {signal} again: ended without answering pending requests");
        }
    }
    tracing::info!("ended");
    Ok(())
}

/// Shortest time in which responses have `Connection: close`.
const ANNOUNCED_MIN: Duration = Duration::from_secs(1);

/// The times after a signal to end in which connections stay open, and in which every response closes its own.
///
/// API servers keep many idle connections and send the next request over the one that was used last. A request that is sent
/// just when this side closes the connection is lost, so half of the delay is for the clients to close them: one second
/// is too short for that if both sides wait for a processor.
fn divided(drain_delay: Duration) -> (Duration, Duration) {
    let announced = (drain_delay / 2).max(ANNOUNCED_MIN);
    (drain_delay.saturating_sub(announced), announced)
}

/// Raises the soft limit of file descriptors to the hard limit. Each connection needs a descriptor,
/// and the default soft limit of many systems is 1,024. If that fails, fewer connections are possible.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "cannot raise the limit of file descriptors");
    }
}

/// The client without its own retries: they can take minutes, and a review has one second.
async fn client() -> anyhow::Result<Client> {
    let configured = async {
        let mut config = Config::infer().await?;
        config.default_retry = false;
        anyhow::Ok(Client::try_from(config)?)
    };
    configured
        .await
        .context("cannot configure the Kubernetes client")
}

async fn bind(address: &settings::BindAddress) -> anyhow::Result<TcpListener> {
    address
        .bind()
        .await
        .with_context(|| format!("cannot listen at {address}"))
}

fn admission_settings(args: &Args) -> Settings {
    Settings {
        missing_networks: match args.missing_networks {
            MissingNetworks::Warn => Missing::Warn,
            MissingNetworks::Deny => Missing::Deny,
        },
        default_backend: match args.default_backend {
            DefaultBackend::Kubevirt => Backend::Kubevirt,
            DefaultBackend::Libvirt => Backend::Libvirt,
        },
        default_reclaim_policy: match args.default_reclaim_policy {
            DefaultReclaimPolicy::Delete => ReclaimPolicy::Delete,
            DefaultReclaimPolicy::Retain => ReclaimPolicy::Retain,
        },
        max_vcpus: args.max_vcpus,
        cloud_init_schema: args.cloud_init_schema.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_close_their_connections_in_the_second_half_of_the_drain_delay() {
        for (delay, open, announced) in [(0, 0, 1), (1, 0, 1), (2, 1, 1), (10, 5, 5)] {
            let [delay, open, announced] = [delay, open, announced].map(Duration::from_secs);
            assert_eq!(divided(delay), (open, announced));
        }
    }
}
