//! Steps that the program carries out at the API server, which has the Machine and the LibvirtHosts of the environment. The
//! hosts were polled right before.
//!
//! ```text
//! step ─▶ Applier, add_finalizer … ─ request ─▶ channel ─▶ Environment::answer
//!               ▲                                                 │
//!               └──────────────────── response ───────────────────┘
//! ```

use std::sync::Arc;
use std::thread;

use common::api::status::MachineStatus;
use controller_core::api_server::{Answer, api_server, guarded};
use controller_core::backend::Failed;
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::client::GuardedClient;
use controller_core::machine::CachedMachine;
use controller_core::objects::Meta as _;
use controller_core::plan::Step;
use controller_core::triggers::Triggers;
use controller_core::writes::{add_finalizer, remove_finalizer};
use hyper::{Method, Request};
use kube::client::Body;
use kube::runtime::reflector::store;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use super::{Environment, host_object};
use crate::access::fake::FakeLibvirt;
use crate::apply::Applier;
use crate::hosts::poller::poll;
use crate::hosts::registry::Hosts;
use crate::libvirt_host::LibvirtHost;
use crate::plan::action::Action;

/// One patch.
struct Call {
    plural: String,
    name: String,
    is_of_status: bool,
    is_apply: bool,
    body: Value,
}

impl Call {
    async fn read(request: Request<Body>) -> Self {
        let (parts, body) = request.into_parts();
        assert_eq!(parts.method, Method::PATCH, "{}", parts.uri);
        let path: Vec<_> = parts.uri.path().trim_matches('/').split('/').collect();
        let (plural, rest) = match path.as_slice() {
            ["apis", _, _, "namespaces", _, plural, rest @ ..]
            | ["apis", _, _, plural, rest @ ..] => (*plural, rest),
            other => panic!("{other:?} is no path of an object"),
        };
        let kind = parts.headers.get("content-type");
        let body = body.collect_bytes().await.unwrap();
        Self {
            plural: plural.to_owned(),
            name: rest[0].to_owned(),
            is_of_status: rest.get(1) == Some(&"status"),
            is_apply: kind.is_some_and(|kind| kind == "application/apply-patch+yaml"),
            body: serde_json::from_slice(&body).unwrap(),
        }
    }
}

impl Environment {
    /// Carries out a step as the program does.
    pub(super) fn at_api_server(&mut self, step: &Step<'_, Action>) -> Result<(), Failed> {
        // Some tests have a runtime of their own.
        thread::scope(|scope| {
            let done = scope.spawn(|| {
                let runtime = Builder::new_current_thread().enable_time().build();
                runtime.unwrap().block_on(self.carry_out(step))
            });
            done.join().unwrap()
        })
    }

    async fn carry_out(&mut self, step: &Step<'_, Action>) -> Result<(), Failed> {
        let (client, server) = api_server(Call::read);
        let api = guarded(client, self.has_lease);
        let applier = self.applier(&api);
        // The others do nothing on a host.
        if let Step::Act(
            Action::MoveTo { .. }
            | Action::Leave { .. }
            | Action::ReleaseKept(_)
            | Action::FetchImage { .. },
        ) = step
        {
            self.connect(&applier.hosts).await;
        }
        let machine = self.machine().clone();
        let calls = async {
            match step {
                Step::AddFinalizer => add_finalizer(&api, &machine).await.map(drop)?,
                Step::RemoveFinalizer => remove_finalizer(&api, &machine).await.map(drop)?,
                Step::Act(action) => applier.apply(&machine, action).await.map(drop)?,
            }
            Ok(())
        };
        server.serve(calls, |call| self.answer(call)).await
    }

    /// Connects the hosts, and polls them.
    async fn connect(&self, hosts: &Hosts) {
        let other = self.other.iter().map(|(host, object)| (host, object));
        for (host, object) in other.chain([(&self.host, &self.object)]) {
            let connected = hosts.connect(object.name(), host.clone(), Err(String::new()));
            let polled = poll(&connected, object, None, true).await;
            connected.set_snapshot(polled.map_err(|error| error.to_string()));
        }
    }

    /// What carries actions out, with caches that are up to date.
    fn applier(&self, api: &GuardedClient) -> Applier {
        let hosts = Hosts::new(Arc::new(FakeLibvirt::new()));
        let objects = Cache::default();
        let other = self.other.iter().map(|(_, object)| object);
        for object in other.chain([&self.object]) {
            objects.apply(Event::Apply(object.clone()), |_| ());
        }
        for name in &self.elsewhere {
            if objects.get("", name).is_none() {
                objects.apply(Event::Apply(host_object(name)), |_| ());
            }
        }
        let (machines, mut writer) = store();
        let caches = Caches::new(machines);
        let known = CachedMachine::from(self.machine().clone());
        caches.apply(&Event::Apply(known), &mut writer, "cluster");
        for (name, network) in &self.networks {
            let mut network = (**network).clone();
            network.metadata.name = Some(name.clone());
            network.metadata.namespace = Some(self.machine().namespace().to_owned());
            caches.networks.apply(Event::Apply(network), |_| ());
        }
        Applier {
            hosts,
            objects,
            caches,
            api: api.clone(),
            triggers: Triggers::default(),
        }
    }

    /// Stores what a patch writes, unless the object is another one or in another version than it names.
    fn answer(&mut self, call: &Call) -> Answer {
        let live = match call.plural.as_str() {
            "machines" => {
                json!({"metadata": self.machine().metadata, "status": self.machine().status})
            }
            // A host of `elsewhere` has no object of its own.
            "libvirthosts" => match self.host_object_mut(&call.name) {
                Some(object) => json!(object),
                None => json!(host_object(&call.name)),
            },
            other => panic!("{other} are not written"),
        };
        for key in ["uid", "resourceVersion"] {
            let given = call.body["metadata"][key].as_str().unwrap_or_default();
            if !given.is_empty() && given != live["metadata"][key] {
                return conflict(&call.name);
            }
        }
        let mut changed = live;
        let part = if call.is_of_status {
            "status"
        } else {
            "metadata"
        };
        if call.is_apply {
            changed[part] = call.body[part].clone();
        } else {
            json_patch::merge(&mut changed[part], &call.body[part]);
        }
        self.writes += 1;
        if call.plural == "libvirthosts" {
            let host: LibvirtHost = serde_json::from_value(changed.clone()).unwrap();
            if let Some(stored) = self.host_object_mut(&call.name) {
                stored.status = host.status;
            }
            return (200, changed);
        }
        self.version += 1;
        changed["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.store(&changed);
        (200, changed)
    }

    fn store(&mut self, changed: &Value) {
        let machine = self.machine_mut();
        machine.metadata = serde_json::from_value(changed["metadata"].clone()).unwrap();
        machine.status =
            serde_json::from_value::<MachineStatus>(changed["status"].clone()).unwrap();
        let finalizers = &mut machine.metadata.finalizers;
        *finalizers = finalizers.take().filter(|it| !it.is_empty());
        if machine.is_deleting() && machine.metadata.finalizers.is_none() {
            self.machine = None;
        }
    }

    fn host_object_mut(&mut self, name: &str) -> Option<&mut LibvirtHost> {
        let other = self.other.iter_mut().map(|(_, object)| object);
        let mut all = other.chain([&mut self.object]);
        all.find(|object| object.name() == name)
    }
}

fn conflict(name: &str) -> Answer {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict",
        "message": format!("{name} is another object now"), "details": {"name": name},
    });
    (409, status)
}
