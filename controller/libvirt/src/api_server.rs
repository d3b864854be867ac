//! An API server for unit tests, which records what is written.

use std::sync::{Arc, Mutex};

use controller_core::client::GuardedClient;
use controller_core::lease::LeaseGuard;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// The bodies of the writes, in order, and the Secret that the server has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    bodies: Arc<Mutex<Vec<Value>>>,
    secret: Arc<Mutex<Value>>,
}

impl Written {
    /// The bodies since the last call.
    pub(crate) fn take(&self) -> Vec<Value> {
        std::mem::take(&mut *self.bodies.lock().unwrap())
    }

    /// Every read of a Secret returns this from now on.
    pub(crate) fn set_secret(&self, secret: Value) {
        *self.secret.lock().unwrap() = secret;
    }
}

/// A client that always holds the Lease, of an API server that accepts every write of a LibvirtHost.
pub(crate) fn api_server() -> (GuardedClient, Written) {
    let written = Written::default();
    let log = written.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let log = log.clone();
        async move {
            if request.uri().path().contains("/secrets/") {
                let secret = log.secret.lock().unwrap().to_string();
                return Ok(Response::new(Body::from(secret.into_bytes())));
            }
            let body = request.into_body().collect_bytes().await?;
            log.bodies
                .lock()
                .unwrap()
                .push(serde_json::from_slice(&body).unwrap());
            let host = json!({
                "metadata": {"name": "alpha"},
                "spec": {"uri": "qemu:///system", "virtType": "qemu"},
            });
            let body = Body::from(host.to_string().into_bytes());
            Ok::<_, kube::Error>(Response::new(body))
        }
    });
    let client = Client::new(service, "default");
    (GuardedClient::new(client, LeaseGuard::Always), written)
}
