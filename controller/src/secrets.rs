//! Users' Secrets: that one came or changed, and nothing of what is in it.
//!
//! A Machine that waits for a Secret goes on when that appears. Only metadata is asked for and none
//! of it is kept: what a Machine needs of a Secret is read when something is made of it.

use std::convert::Infallible;

use common::names;
use common::runtime::tasks::Tasks;
use common::runtime::trouble::{Pause, Trouble};
use futures::StreamExt as _;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};

use crate::machine::Machine;
use crate::objects::{Meta as _, Secret};
use crate::watch::{Triggers, every, failed};

const NAME: &str = "watch of users' secrets";

pub(crate) fn watch(
    client: &Client,
    tasks: &mut Tasks,
    triggers: Triggers,
    machines: Store<Machine>,
) {
    let api = Api::<PartialObjectMeta<Secret>>::all(client.clone());
    let theirs = format!("{}!={}", names::LABEL_MANAGED_BY, names::MANAGED_BY);
    let config = watcher::Config::default().labels(&theirs);
    tasks.spawn(NAME, async move {
        let mut stream = std::pin::pin!(watcher::watcher(api, config).backoff(Pause::default()));
        let mut trouble = Trouble::default();
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Apply(secret)) => {
                    triggers.send(readers(&machines, |machine, name| {
                        name == secret.name() && machine.namespace() == secret.namespace()
                    }));
                }
                // Whatever is in the list may have come while nobody watched.
                Ok(Event::InitDone) => {
                    trouble.is_over();
                    triggers.send(readers(&machines, |_, _| true));
                }
                Ok(Event::Init | Event::InitApply(_) | Event::Delete(_)) => {}
                Err(error) => failed(&mut trouble, NAME, &error),
            }
        }
        Ok::<_, Infallible>(())
    });
}

/// Machines with a reference to such a Secret.
fn readers(
    machines: &Store<Machine>,
    concerned: impl Fn(&Machine, &str) -> bool,
) -> Vec<ObjectRef<Machine>> {
    every(machines, |machine| {
        let mut references = machine.cloud_init.references();
        references.any(|reference| concerned(machine, &reference.name))
    })
}
