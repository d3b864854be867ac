//! Starts the tasks that keep the certificates.

use std::fmt::Debug;

use anyhow::Context as _;
use certs::{ServerCertResolver, ServerNames};
use kube::{Api, Client, Resource};
use runtime::checks::Checks;
use runtime::tasks::Tasks;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::ca_bundle::{Configuration, WatchedConfiguration};
use super::ca_secret::CaSecret;
use super::environment::{ClusterEnvironment, WatchedObjects};
use super::events::event_sender;
use super::files::CertificateFiles;
use super::rotation::Rotation;
use super::status::Readiness;
use crate::args::Args;
use crate::watch::spawn_object_watch;

/// Starts the watches of the objects involved and the task that maintains the certificates. Returns
/// the resolver that presents them.
pub fn start(
    tasks: &mut Tasks,
    args: &Args,
    client: &Client,
    ready: &Checks,
) -> anyhow::Result<ServerCertResolver> {
    let resolver = ServerCertResolver::default();
    let names = args.certificate_names();
    let server_names = ServerNames::new(names.clone()).context("cannot name the certificate")?;
    let lifetimes = args.certificates.lifetimes()?;
    let poll = args.certificates.certificate_poll.0;

    let secrets = Api::namespaced(client.clone(), &args.namespace);
    let objects = WatchedObjects {
        secret: spawn_object_watch(tasks, secrets, &args.ca_secret, "CA secret", ready, |it| it),
        mutating: configuration(
            tasks,
            client,
            &args.mutating_configuration,
            "mutatingwebhookconfiguration",
            ready,
        ),
        validating: configuration(
            tasks,
            client,
            &args.validating_configuration,
            "validatingwebhookconfiguration",
            ready,
        ),
    };
    let readiness = Readiness {
        leaf: ready.register("leaf"),
        bundle: ready.register("caBundle"),
    };
    if let Some(folder) = args.certificates.tls_cert_dir.clone() {
        let files = CertificateFiles {
            folder,
            poll,
            names,
            objects,
            resolver: resolver.clone(),
            readiness,
        };
        tasks.spawn("certificates", files.run());
        return Ok(resolver);
    }
    let (events, task) = event_sender(client.clone());
    tasks.spawn("events", task);
    let environment = ClusterEnvironment {
        client: client.clone(),
        secret: CaSecret::new(client.clone(), &args.namespace, args.ca_secret.clone()),
        objects,
        names: server_names,
        lifetimes,
        resolver: resolver.clone(),
        events,
        started: Instant::now(),
    };
    let rotation = Rotation {
        environment,
        poll,
        readiness,
    };
    tasks.spawn("certificates", rotation.run());
    Ok(resolver)
}

fn configuration<K>(
    tasks: &mut Tasks,
    client: &Client,
    name: &str,
    what: &'static str,
    ready: &Checks,
) -> WatchedConfiguration<K>
where
    K: Configuration
        + Resource<DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static,
{
    let observed = spawn_object_watch(tasks, Api::all(client.clone()), name, what, ready, |it| it);
    WatchedConfiguration::new(name, observed)
}
