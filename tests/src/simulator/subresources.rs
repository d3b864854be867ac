//! KubeVirt's API of subresources, as virt-api serves it behind the API server's aggregation layer.
//!
//! There are no nodes that forward a Service to its pods: the server listens at the Service's own address, which is one of
//! this machine.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    extract::{Path, State},
    http::{StatusCode, header},
    routing::{get, put},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use certs::{CA_LIFETIME, Ca, LEAF_LIFETIME, ServerCertResolver, ServerNames};
use kube::Client;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::{net::TcpListener, task::AbortHandle};
use webhook::server::{self, Closing, Limits, TlsVersion};

use crate::{
    install,
    objects::{API_SERVICE, Objects, SERVICE, condition, namespace},
};

/// Namespace of KubeVirt.
const NAMESPACE: &str = "kubevirt";
/// Service of virt-api.
const NAME: &str = "virt-api";
/// A port that needs no privilege.
const PORT: u16 = 8443;

/// The guests that were reset, as `namespace/name`, in order.
type Resets = Arc<Mutex<Vec<String>>>;

/// The server, until it is dropped: the API server answers 503 for its group afterwards.
#[derive(Debug)]
pub struct Subresources {
    resets: Resets,
    server: AbortHandle,
}

impl Subresources {
    /// Installs the APIService, and starts the server that it names.
    pub async fn start(client: &Client) -> Result<Self> {
        install::apply(client, &namespace(NAMESPACE, &json!({}))).await?;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"ports": [{"port": PORT}]},
        });
        install::apply(client, &service).await?;
        // The API server asks whether the Service has endpoints, and connects to the Service's address. An endpoint cannot
        // be an address of this machine; this one is reserved for documentation.
        let endpoints = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": NAME, "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": NAME},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": true}}],
            "ports": [{"port": PORT}],
        });
        install::apply(client, &endpoints).await?;
        let services = Objects::new(client.clone(), SERVICE, NAMESPACE);
        let service = services.get(NAME).await?;
        let address = service["spec"]["clusterIP"].as_str();
        let address = address.context("a Service without an address")?.parse()?;
        let listener = TcpListener::bind(SocketAddr::new(address, PORT)).await?;

        let now = OffsetDateTime::now_utc();
        let ca = Ca::generate("virt-api", now, CA_LIFETIME)?;
        let resolver = ServerCertResolver::default();
        let names = ServerNames::new([format!("{NAME}.{NAMESPACE}.svc")])?;
        resolver.set_leaf(&ca.sign(&names, now, LEAF_LIFETIME)?);
        let tls = server::tls(Arc::new(resolver), TlsVersion::default(), None)?;
        let resets = Resets::default();
        let router = router(resets.clone());
        let serving = server::serve(listener, tls, router, Limits::default(), Closing::new());
        let server = tokio::spawn(serving).abort_handle();
        let started = Self { resets, server };

        let group = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1.subresources.kubevirt.io"},
            "spec": {
                "group": "subresources.kubevirt.io", "version": "v1",
                "groupPriorityMinimum": 1000, "versionPriority": 15,
                "service": {"name": NAME, "namespace": NAMESPACE, "port": PORT},
                "caBundle": BASE64_STANDARD.encode(ca.certificate_pem()),
            },
        });
        install::apply(client, &group).await?;
        let is_available = |it: &Value| condition(it, "Available")["status"] == "True";
        let services = Objects::new(client.clone(), API_SERVICE, "");
        let available = services.until("v1.subresources.kubevirt.io", "to answer", is_available);
        available.await?;
        Ok(started)
    }

    /// How often this guest was reset.
    pub fn resets(&self, namespace: &str, name: &str) -> usize {
        let resets = self.resets.lock().unwrap_or_else(PoisonError::into_inner);
        let guest = format!("{namespace}/{name}");
        resets.iter().filter(|it| **it == guest).count()
    }
}

impl Drop for Subresources {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn router(resets: Resets) -> Router {
    const GROUP: &str = "/apis/subresources.kubevirt.io/v1";
    let resources = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "subresources.kubevirt.io/v1",
        "resources": [{
            "name": "virtualmachineinstances/reset", "singularName": "", "namespaced": true,
            "kind": "VirtualMachineInstance", "verbs": ["update"],
        }],
    })
    .to_string();
    let list = async move || ([(header::CONTENT_TYPE, "application/json")], resources);
    let instance = "namespaces/{namespace}/virtualmachineinstances/{name}";
    Router::new()
        .route(GROUP, get(list))
        .route(&format!("{GROUP}/{instance}/reset"), put(reset))
        .with_state(resets)
}

/// virt-api passes it on to virt-handler of the node, and answers without a body.
async fn reset(
    State(resets): State<Resets>,
    Path((namespace, name)): Path<(String, String)>,
) -> StatusCode {
    let mut resets = resets.lock().unwrap_or_else(PoisonError::into_inner);
    resets.push(format!("{namespace}/{name}"));
    StatusCode::ACCEPTED
}
