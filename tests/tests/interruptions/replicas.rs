//! Two replicas at work at the same time, as if the Lease had failed, one of them interrupted at every write that
//! allocates an address or shares an image.
//!
//! ```text
//! four Machines of one image, on a segment of eight addresses ──▶ two are deleted, two others come at the same time
//!          ──▶ the MachineImage is deleted while a Machine is made of it          (a fault in each of the three)
//! ```
//! With the Lease only one replica allocates. Without it two may lock an address each for the same card: the card gets
//! one of them, and the other one is held as well until its guest reports the first. No other Machine gets either: there are
//! two addresses for each card.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;
use lab::{
    Binary, Lab, OPERATOR_NAMESPACE, Scenario,
    fault_proxy::{Fault, FaultProxy, Injection, Interrupted, InvariantCheck, Scope, Write},
    objects::{self, ADDRESS, IMAGE, INSTANCE, MACHINE, Objects, VM},
    reviews, wait,
};
use serde_json::{Value, json};

use crate::{
    AT_ONCE, invariants,
    lifecycle::{SETTINGS, restart_when_killed},
    runs,
};

/// The writes that are interrupted.
const COUNTED: [&str; 3] = ["machineaddresses", "datavolumes", "machineimages"];

/// The faults that are injected at the write of this number: each write gets two of the four.
fn faults(at: usize) -> [Fault; 2] {
    if at.is_multiple_of(2) {
        [Fault::KilledBefore, Fault::ResponseLost]
    } else {
        [Fault::KilledAfter, Fault::WatchesDelayed]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_give_no_address_twice_and_lose_no_image() {
    let mut lab = Lab::start().await.unwrap();
    let _webhook = lab.webhook(&[]).await.unwrap();
    let _simulator = lab.simulator(Scenario::Happy).await.unwrap();
    let account = Binary::Controller.account();
    let client = lab.account_client(OPERATOR_NAMESPACE, account);
    let client = client.await.unwrap();
    let run = async |number: usize, faults: Faults| {
        let run = Pair::new(&lab, &client, number, faults);
        let outcome = run.run().await;
        outcome.with_context(|| format!("pair {number}, {:?}", run.faults))
    };

    let steps = run(1, Faults::default()).await.unwrap();
    println!("the first replica has these writes:");
    for Interrupted { writes, .. } in &steps {
        println!("{writes:#?}");
    }
    // After each step everything is as without a fault: the next step has a fault of its own.
    let points: Vec<Vec<_>> = steps.iter().map(|step| points(&step.writes)).collect();
    let outcomes = (2..)
        .zip(runs(&points))
        .map(|(number, faults): (_, Faults)| {
            let run = &run;
            async move {
                let steps = run(number, faults.clone()).await?;
                anyhow::Ok(faults.into_iter().zip(steps))
            }
        });
    let outcomes: Vec<_> = stream::iter(outcomes)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
        .unwrap();
    let count = points.iter().map(Vec::len).sum::<usize>();
    let injected = outcomes.into_iter().flatten();
    let injected = injected.filter_map(|(fault, step)| fault.filter(|_| step.injected));
    let injected: Vec<_> = injected.map(|it| it.fault).collect();
    println!("{} of {count} faults were injected", injected.len());
    // Which replica is first differs from run to run.
    assert!(injected.len() * 2 >= count, "{injected:?}");
    for fault in [faults(0), faults(1)].concat() {
        assert!(injected.contains(&fault), "never: {fault}");
    }
}

/// The fault in each of the steps.
type Faults = [Option<Injection>; 3];

/// The faults at each of these writes.
fn points(writes: &[String]) -> Vec<Injection> {
    let numbers = 1..=writes.len();
    let points = numbers.flat_map(|number| faults(number).map(|fault| (number, fault)));
    let points = points.map(|(number, fault)| Injection {
        fault,
        of: None,
        number,
    });
    points.collect()
}

/// Two replicas and their Machines, in a namespace and on a segment of their own.
struct Pair<'a> {
    lab: &'a Lab,
    client: &'a Client,
    namespace: String,
    /// Names of its Machines.
    machines: Vec<String>,
    vlan: usize,
    faults: Faults,
}

impl<'a> Pair<'a> {
    fn new(lab: &'a Lab, client: &'a Client, number: usize, faults: Faults) -> Self {
        Self {
            lab,
            client,
            namespace: format!("pair-{number}"),
            machines: ('a'..='g')
                .map(|it| format!("pair-{number}-{it}"))
                .collect(),
            vlan: number,
            faults,
        }
    }

    async fn run(&self) -> Result<Vec<Interrupted<()>>> {
        self.create_surroundings().await?;
        let [interrupted, other] = [self.proxy().await?, self.proxy().await?];
        let [alone, interval] = SETTINGS;
        let settings = [alone, interval, ("IMAGE_NAMESPACE", &*self.namespace)];
        let kubeconfig = interrupted.kubeconfig();
        let mut first = self.lab.start_controller_at(&kubeconfig, &settings).await?;
        interrupted.set_target(first.process().id());
        let kubeconfig = other.kubeconfig();
        let second = self.lab.start_controller_at(&kubeconfig, &settings);
        let mut second = second.await?;
        let steps = tokio::select! {
            done = self.steps(&interrupted) => done.with_context(|| second.process().log_tail(15))?,
            failed = restart_when_killed(&interrupted, &mut first) => return Err(failed),
        };
        let violations = [interrupted.violations(), other.violations()].concat();
        if !violations.is_empty() {
            bail!("{violations:#?}");
        }
        Ok(steps)
    }

    async fn proxy(&self) -> Result<FaultProxy> {
        let scope = Scope {
            namespace: Some(self.namespace.clone()),
            counted: &COUNTED,
        };
        FaultProxy::start(self.client.clone(), scope, self.invariants()).await
    }

    fn of(&self, kind: objects::Kind) -> Objects {
        self.lab.objects(kind, &self.namespace)
    }

    async fn create_surroundings(&self) -> Result<()> {
        let ipam = json!({"subnets": [{"cidr": "10.9.0.0/24", "ranges": ["10.9.0.10-10.9.0.17"]}]});
        for object in [
            objects::namespace(&self.namespace, &json!({})),
            json!({
                "apiVersion": "vitistack.io/v1alpha1", "kind": "NetworkConfiguration",
                "metadata": {"name": "lan", "namespace": self.namespace},
                "spec": {"bridge": "br-lan", "vlan": self.vlan, "ipam": ipam},
            }),
            json!({
                "apiVersion": "vitistack.io/v1alpha1", "kind": "MachineImage",
                "metadata": {"name": self.namespace},
                "spec": {
                    "source": {"url": format!("https://images.example.com/{}.qcow2", self.namespace)},
                    "minDiskSize": "3Gi",
                },
            }),
        ] {
            self.lab.apply(&object).await?;
        }
        Ok(())
    }

    async fn create(&self, name: &str) -> Result<()> {
        let mut machine = reviews::machine(
            name,
            &json!({
                "template": "small",
                "disks": [{"name": "root", "image": {"name": self.namespace}}],
                "networks": [{"name": "lan", "networkName": "lan"}],
            }),
        );
        machine["metadata"]["namespace"] = json!(self.namespace);
        // Beside other suites a read of the new image may take longer than the webhook waits.
        self.lab.apply_when_admitted(&machine).await
    }

    async fn until_running(&self, names: &[String]) -> Result<()> {
        for name in names {
            let machines = self.of(MACHINE);
            let ready = machines.until_condition(name, "Ready", "True", "Running");
            ready.await?;
        }
        Ok(())
    }

    async fn steps(&self, interrupted: &FaultProxy) -> Result<Vec<Interrupted<()>>> {
        let [allocated, exchanged, without_image] = &self.faults;
        let steps = vec![
            interrupted
                .inject(allocated.clone(), self.allocate())
                .await?,
            interrupted
                .inject(exchanged.clone(), self.exchange())
                .await?,
            interrupted
                .inject(without_image.clone(), self.lose_the_image())
                .await?,
        ];
        // The first replica was killed long ago: what it had sent arrives now.
        while interrupted.forward_held().await?.is_some() {}
        self.each_has_its_own(&self.machines[3..]).await?;
        Ok(steps)
    }

    async fn allocate(&self) -> Result<()> {
        let names = &self.machines[..4];
        for name in names {
            self.create(name).await?;
        }
        self.until_running(names).await?;
        self.each_has_its_own(names).await
    }

    /// Two Machines are deleted, and two others come at the same time.
    async fn exchange(&self) -> Result<()> {
        for name in &self.machines[..2] {
            self.of(MACHINE).delete(name).await?;
        }
        let names = &self.machines[4..6];
        for name in names {
            self.create(name).await?;
        }
        self.until_running(names).await?;
        self.each_has_its_own(&self.machines[2..6]).await
    }

    /// The MachineImage is deleted while a Machine is made of it.
    async fn lose_the_image(&self) -> Result<()> {
        let last = &self.machines[6..];
        self.of(MACHINE).delete(&self.machines[2]).await?;
        self.create(&last[0]).await?;
        let images = self.lab.objects(IMAGE, "");
        images.delete(&self.namespace).await?;
        self.until_running(last).await?;
        self.each_has_its_own(&self.machines[3..]).await
    }

    /// Waits until only these Machines hold addresses, and each guest has one that its own Machine holds.
    async fn each_has_its_own(&self, names: &[String]) -> Result<()> {
        let expected: BTreeSet<_> = names.iter().cloned().collect();
        let held = wait::until("only these Machines to hold addresses", async || {
            let held = self.addresses(names).await?;
            let holders: BTreeSet<_> = held.iter().map(|(_, holder)| holder.clone()).collect();
            Ok(if holders == expected {
                Ok(held)
            } else {
                Err(held)
            })
        })
        .await?;
        let mut given = BTreeSet::new();
        for name in names {
            let address = self.address_in_guest(name).await?;
            let own = (address.clone(), name.clone());
            if !held.contains(&own) || !given.insert(address) {
                bail!("the guest of {name} has {own:?}; held are {held:?}");
            }
        }
        let shared = invariants::shared_claims(self.lab, &self.namespace).await?;
        if !shared.is_empty() {
            bail!("{shared:?}");
        }
        Ok(())
    }

    /// The addresses that are held on the segment, each with the name of its Machine, or with its uid if there is no
    /// such Machine.
    async fn addresses(&self, names: &[String]) -> Result<Vec<(String, String)>> {
        let mut uids = Vec::new();
        for name in names {
            let machine = self.of(MACHINE).get(name).await?;
            uids.push((machine["metadata"]["uid"].clone(), name.clone()));
        }
        let locks = self.lab.objects(ADDRESS, "").list().await?;
        let here = locks
            .iter()
            .filter(|lock| lock["spec"]["machineRef"]["namespace"] == *self.namespace);
        let held = here.map(|lock| {
            let (spec, uid) = (&lock["spec"], &lock["spec"]["machineRef"]["uid"]);
            let holder = uids.iter().find(|(known, _)| known == uid);
            let holder = holder.map_or_else(|| uid.to_string(), |(_, name)| name.clone());
            (text(&spec["address"]).to_owned(), holder)
        });
        Ok(held.collect())
    }

    /// The address that the guest was started with.
    async fn address_in_guest(&self, name: &str) -> Result<String> {
        let instance = self.of(INSTANCE).get(name).await?;
        let given = addresses_in(&instance);
        let [address] = &*given else {
            bail!("the guest of {name} has {given:?}");
        };
        Ok(address.clone())
    }

    /// No address is released that the guest of a Machine has, and no image is removed that is offered.
    fn invariants(&self) -> InvariantCheck {
        let here = Held {
            locks: self.lab.objects(ADDRESS, ""),
            images: self.lab.objects(IMAGE, ""),
            guests: self.of(INSTANCE),
            vms: self.of(VM),
            image: self.namespace.clone(),
        };
        invariants::checked(
            here,
            |here, write| async move { here.violation(&write).await },
        )
    }
}

#[derive(Clone)]
struct Held {
    locks: Objects,
    images: Objects,
    guests: Objects,
    vms: Objects,
    image: String,
}

impl Held {
    async fn violation(&self, write: &Write) -> Result<Option<String>> {
        let (rest, name) = write.path.rsplit_once('/').unwrap_or_default();
        let kind = rest.rsplit('/').next().unwrap_or_default();
        match (write.method.as_str(), kind) {
            ("DELETE", "machineaddresses") => self.address_is_released(name, write).await,
            ("DELETE", "datavolumes") if name.starts_with("image-") => {
                let image = self.images.find(&self.image).await?;
                Ok(image.map(|_| "the image is offered".to_owned()))
            }
            ("PATCH" | "PUT", "machineaddresses") => Ok(Some("an address changes hands".into())),
            _ => Ok(None),
        }
    }

    /// A released address is that of no guest, whether it runs or only may start.
    async fn address_is_released(&self, name: &str, write: &Write) -> Result<Option<String>> {
        let Some(lock) = self.locks.find(name).await? else {
            return Ok(None);
        };
        if lock["metadata"]["uid"] != write.body["preconditions"]["uid"] {
            return Ok(None);
        }
        let address = &lock["spec"]["address"];
        let machine = text(&lock["spec"]["machineRef"]["name"]);
        for objects in [&self.guests, &self.vms] {
            let object = objects.find(machine).await?;
            if object.is_some_and(|it| addresses_in(&it).iter().any(|it| *it == *address)) {
                return Ok(Some(format!("{machine} has {address}")));
            }
        }
        Ok(None)
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The addresses that the network data of a VirtualMachine or an instance gives its only card.
fn addresses_in(object: &Value) -> Vec<String> {
    let volumes = invariants::volumes_of(object);
    let data = volumes.filter_map(|it| it["cloudInitNoCloud"]["networkData"].as_str());
    let data = data.filter_map(|it| serde_json::from_str::<Value>(it).ok());
    data.filter_map(|it| it["ethernets"]["lan"]["addresses"].as_array().cloned())
        .flatten()
        .filter_map(|it| Some(it.as_str()?.split_once('/')?.0.to_owned()))
        .collect()
}
