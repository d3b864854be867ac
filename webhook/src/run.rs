//! The program: everything put together, started, watched over and ended.

use std::fmt::Debug;
use std::sync::Arc;

use anyhow::Context as _;
use certs::{Lives, Names, ServedLeaf};
use common::MissingNetworks as Missing;
use common::admission::Settings;
use common::api::choice::Backend;
use common::api::{MachineTemplate, NetworkConfiguration};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, Config, Resource};
use runtime::checks::{Check, Checks};
use runtime::cluster::Cluster;
use runtime::control::control_router;
use runtime::logging::LogControl;
use runtime::signals::Signals;
use runtime::tasks::Tasks;
use runtime::{admin, settings};
use rustix::process::{Resource as Limited, Rlimit, getrlimit, setrlimit};
use serde::de::DeserializeOwned;
use tokio::sync::watch as channel;
use tokio::time::sleep;

use crate::args::{Args, DefaultBackend, MissingNetworks};
use crate::body::Budget;
use crate::catalog::{Cache, Host, Machine, Neighbour};
use crate::certificates::{CaSecret, Files, Followed, Ready, Rotation, Sources, events};
use crate::handler::Reviewer;
use crate::lookup::Live;
use crate::server::{self, Closing, Limits};
use crate::sharing::{AT_A_TIME, Sharing};
use crate::watch::{Observed, Rows, follow, observe, parsed};
use crate::{metrics, router, schema};

/// Objects of a list at a time; only these are ever whole in memory. After lists of 10,000 Machines
/// and 20,000 claims the process has 16 MiB more with pages of 500, 7 MiB with these, in the same time.
const PAGE: u32 = 200;

/// Runs until it is asked to end, or something fails that must not.
pub async fn run(args: Args, log: LogControl) -> anyhow::Result<()> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let recorder = admin::install_recorder(&[]).context("cannot set up the metrics")?;
    metrics::describe();
    let client = client().await?;
    let names = Names::new(args.certificate_names()).context("cannot name the certificate")?;
    let lives = args.certificates.lives()?;
    let clients = args.certificates.clients();
    let clients = clients.context("cannot judge clients by --client-ca")?;
    raise_descriptors();
    let listener = bind(&args.listen).await?;
    let admin_listener = bind(&args.admin_listen).await?;
    let (listen, admin_listen) = (listener.local_addr()?, admin_listener.local_addr()?);

    let ready = Checks::default();
    let serving = ready.register("server");
    let mut tasks = Tasks::default();
    let router = admin::health_router(Checks::default(), ready.clone())
        .merge(admin::metrics_router(recorder.clone()))
        .merge(control_router("machine-webhook", log));
    tasks.spawn("admin", admin::serve(admin_listener, router));
    tasks.spawn("metrics upkeep", admin::upkeep(recorder));

    let leaf = ServedLeaf::default();
    keep_certificates(&mut tasks, &args, &client, (names, lives), &leaf, &ready);
    if let (Some(clients), Some(ca)) = (&clients, &args.certificates.client_ca) {
        let poll = args.certificates.certificate_poll.0;
        let followed = ca.clone().follow(clients.clone(), poll);
        tasks.spawn("client CA", followed);
    }
    keep_schema(&mut tasks, &client, &ready);
    let reviewer = Reviewer {
        cache: keep_catalog(&mut tasks, &client, &ready),
        lookup: Box::new(Sharing::new(Live::new(client), AT_A_TIME)),
        settings: admission_settings(&args),
        budget: Budget::default(),
    };
    let closing = Closing::new();
    let mut server = tokio::spawn(server::serve(
        listener,
        server::tls(Arc::new(leaf), args.certificates.tls_min_version, clients)
            .context("cannot set up TLS")?,
        router::router(&Arc::new(reviewer)),
        Limits::default(),
        closing.clone(),
    ));
    serving.met();
    tracing::info!(%listen, admin = %admin_listen, "serving");

    tokio::select! {
        signal = signals.next() => tracing::info!(signal, "asked to end"),
        ended = tasks.first_end() => return Err(ended.into()),
        ended = &mut server => {
            ended.context("the server failed")?;
            anyhow::bail!("the server ended unexpectedly");
        }
    }

    serving.missing("the program ends");
    let end = async {
        sleep(args.drain_delay.0).await;
        closing.cancel();
        (&mut server).await
    };
    tokio::select! {
        ended = end => ended.context("the server failed")?,
        ended = tasks.first_end() => return Err(ended.into()),
        signal = signals.next() => {
            server.abort();
            anyhow::bail!("{signal} came a second time: ended without waiting for answers under way");
        }
    }
    tracing::info!("ended");
    Ok(())
}

/// Each connection takes a descriptor, and many systems give a program no more than 1,024 unless it
/// asks for what it may have. Where that is not to be had, fewer connections will do.
fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Limited::Nofile);
    let most = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Limited::Nofile, most) {
        tracing::debug!(%error, "cannot have more descriptors");
    }
}

/// The client does not try again by itself: it would do so for minutes without a word, while a
/// review that needs a live read has one second.
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

async fn bind(address: &settings::BindAddress) -> anyhow::Result<tokio::net::TcpListener> {
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
        max_vcpus: args.max_vcpus,
        cloud_init_schema: args.cloud_init_schema.clone(),
    }
}

/// Starts the watches of what the rules may ask.
fn keep_catalog(tasks: &mut Tasks, client: &Client, ready: &Checks) -> Arc<Cache> {
    // A claim's labels tell whose it is.
    type Claim = PartialObjectMeta<PersistentVolumeClaim>;
    let cache = Arc::new(Cache::default());
    let mut watches = Watches {
        tasks,
        client,
        ready,
    };
    watches.all::<MachineTemplate, _>("machinetemplates", &cache.templates);
    watches.all::<StorageClass, _>("storageclasses", &cache.classes);
    watches.all::<NetworkConfiguration, _>("networkconfigurations", &cache.networks);
    watches.all::<Host, _>("libvirthosts", &cache.hosts);
    watches.all::<Claim, _>("persistentvolumeclaims", &cache.claims);
    tasks.spawn("machines", {
        let (cache, client) = (cache.clone(), client.clone());
        let cluster = Cluster::new(client.clone(), ready.register("cluster"));
        let synced = ready.register("machines");
        async move {
            // Part of the addresses of their network cards.
            let uid = cluster.uid().await;
            let uid = cache.cluster.get_or_init(|| uid);
            let events = watcher(Api::<Machine>::all(client), in_pages());
            let parse = |machine| Neighbour::parse(&machine, uid);
            let events = events.map_ok(|event| parsed(event, parse));
            follow(events, cache.machines.clone(), "machines", synced).await
        }
    });
    cache
}

fn in_pages() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// What a watch of the catalog is started with.
struct Watches<'a> {
    tasks: &'a mut Tasks,
    client: &'a Client,
    ready: &'a Checks,
}

impl Watches<'_> {
    /// Feeds `rows` with every object of a kind.
    fn all<K, R>(&mut self, what: &'static str, rows: &Arc<R>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
        R: Rows<K> + 'static,
    {
        let events = watcher(Api::all(self.client.clone()), in_pages());
        let synced = self.ready.register(what);
        self.tasks
            .spawn(what, follow(events, rows.clone(), what, synced));
    }
}

/// Starts the watches of the objects the certificates are about, and their keeper.
fn keep_certificates(
    tasks: &mut Tasks,
    args: &Args,
    client: &Client,
    (names, lives): (Names, Lives),
    served: &ServedLeaf,
    ready: &Checks,
) {
    let secrets = Api::namespaced(client.clone(), &args.namespace);
    let sources = Sources {
        secret: single(tasks, secrets, &args.ca_secret, "CA secret", ready),
        mutating: followed(
            tasks,
            client,
            &args.mutating_configuration,
            "mutatingwebhookconfiguration",
            ready,
        ),
        validating: followed(
            tasks,
            client,
            &args.validating_configuration,
            "validatingwebhookconfiguration",
            ready,
        ),
    };
    let (poll, served) = (args.certificates.certificate_poll.0, served.clone());
    let told = Ready {
        leaf: ready.register("leaf"),
        bundle: ready.register("caBundle"),
    };
    if let Some(folder) = args.certificates.tls_cert_dir.clone() {
        let files = Files {
            folder,
            poll,
            names: args.certificate_names(),
            sources,
            served,
            ready: told,
        };
        tasks.spawn("certificates", files.run());
        return;
    }
    let (events, sent) = events(client.clone());
    tasks.spawn("events", sent);
    let rotation = Rotation {
        client: client.clone(),
        secret: CaSecret::new(client.clone(), &args.namespace, args.ca_secret.clone()),
        sources,
        names,
        lives,
        poll,
        served,
        events,
        ready: told,
    };
    tasks.spawn("certificates", rotation.run());
}

/// Starts the watch of a webhook configuration.
fn followed<K>(
    tasks: &mut Tasks,
    client: &Client,
    name: &str,
    what: &'static str,
    ready: &Checks,
) -> Followed<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    Followed {
        name: name.to_owned(),
        known: single(tasks, Api::all(client.clone()), name, what, ready),
        heard: Observed::Unknown,
    }
}

/// Starts the watch of the Machines' CRD.
fn keep_schema(tasks: &mut Tasks, client: &Client, ready: &Checks) {
    let crd = single(
        tasks,
        Api::all(client.clone()),
        schema::MACHINES,
        "customresourcedefinition",
        ready,
    );
    let check: Check = ready.register("schema");
    tasks.spawn("schema", schema::keep(crd, check));
}

/// Starts the watch of one object.
fn single<K>(
    tasks: &mut Tasks,
    api: Api<K>,
    name: &str,
    what: &'static str,
    ready: &Checks,
) -> channel::Receiver<Observed<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (receiver, task) = observe(api, name, what, ready.register(what));
    tasks.spawn(what, task);
    receiver
}
