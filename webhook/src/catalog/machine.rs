//! A Machine as the watch decodes it: its name, its block and its volumes, nothing else.

use std::net::IpAddr;

use common::api::normalized::Normalized;
use common::bounds::GUEST_ADDRESSES_MAX;
use common::catalog::{MachineRow, Usage, amount, says_what_runs};
use common::quantity::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use runtime::metadata::{Identity, kept};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A Machine: its name, its block and its volumes.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = common::api::Machine)]
pub struct Machine {
    #[serde(deserialize_with = "kept::<_, Identity>")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "spec")]
    pub(super) spec: Spec,
    #[serde(default, deserialize_with = "status")]
    status: Status,
}

/// The block of a Machine, or what else can be read of its spec. A decoding error is not passed on: one object that
/// cannot be decoded would stop the watch for all others.
#[derive(Clone, Debug)]
pub(super) enum Spec {
    Readable(Box<Normalized>),
    /// There is no block, or this release cannot read it.
    Unreadable(MachineRow),
}

impl Default for Spec {
    fn default() -> Self {
        Self::Unreadable(MachineRow::of_unreadable(&Value::Null))
    }
}

/// The parts of a Machine's status that rules read of other Machines.
#[derive(Clone, Debug, Default)]
struct Status {
    /// Its volumes, by disk, in bytes.
    volumes: Vec<(Box<str>, u64)>,
    /// IP addresses that the controller has allocated, by network card.
    allocated: Vec<(Box<str>, IpAddr)>,
    /// What the guest still has, by its path in the block.
    pending: Vec<(Box<str>, Box<str>)>,
    /// The generation that the status is about; `None`: there is no status yet.
    observed_generation: Option<i64>,
    /// Whether nothing could be observed: the rest is as it was before.
    is_unknown: bool,
}

impl Machine {
    /// What the Machine uses of the quota of its namespace, apart from kept volumes.
    pub fn usage(&self) -> Usage {
        match &self.spec {
            Spec::Readable(block) => Usage::of(block),
            Spec::Unreadable(row) => row.usage,
        }
    }

    /// The volumes in its status, also those that are kept of disks which left the spec: disk, bytes.
    pub(super) fn volumes(&self) -> impl Iterator<Item = (&str, u64)> {
        let volumes = self.status.volumes.iter();
        volumes.map(|(disk, size)| (&**disk, *size))
    }

    /// What the guest has in place of what the block says: path in the block, value. `None`: the status does not
    /// say.
    pub(super) fn pending(&self) -> Option<impl Iterator<Item = (&str, &str)>> {
        let status = &self.status;
        let (observed, is_unknown) = (status.observed_generation, status.is_unknown);
        let pending = status.pending.iter();
        let pending = pending.map(|(field, current)| (&**field, &**current));
        says_what_runs(self.metadata.generation, observed, is_unknown).then_some(pending)
    }

    /// The IP addresses that the controller has allocated: network card, address.
    pub(super) fn allocated(&self) -> impl Iterator<Item = (&str, IpAddr)> {
        let allocated = self.status.allocated.iter();
        allocated.map(|(card, address)| (&**card, *address))
    }
}

fn spec<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Spec, D::Error> {
    let spec = Value::deserialize(deserializer)?;
    let block = spec.get("normalized").map(Normalized::deserialize);
    Ok(match block {
        Some(Ok(block)) => Spec::Readable(Box::new(block)),
        Some(Err(_)) | None => Spec::Unreadable(MachineRow::of_unreadable(&spec)),
    })
}

fn status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Status, D::Error> {
    let status = Value::deserialize(deserializer)?;
    let list = |name: &str| {
        let list = status.get(name).and_then(Value::as_array);
        list.into_iter().flatten()
    };
    let volume = |volume: &Value| {
        let size: Bytes = volume.get("capacity")?.as_str()?.parse().ok()?;
        Some((volume.get("name")?.as_str()?.into(), amount(size)))
    };
    let allocated = |card: &Value| {
        let name = card.get("name")?.as_str()?;
        let addresses = card.get("allocatedAddresses")?.as_array()?.iter();
        let addresses = addresses.filter_map(|address| address.as_str()?.parse().ok());
        Some(addresses.map(|address| (name.into(), address)).collect())
    };
    let change = |change: &Value| {
        let text = |key: &str| change.get(key).and_then(Value::as_str);
        Some((text("field")?.into(), text("current")?.into()))
    };
    Ok(Status {
        volumes: ["volumes", "keptVolumes"]
            .into_iter()
            .flat_map(list)
            .filter_map(volume)
            .collect(),
        allocated: list("networkInterfaces")
            .filter_map(allocated)
            .flat_map(|of_card: Vec<_>| of_card)
            .take(GUEST_ADDRESSES_MAX)
            .collect(),
        pending: list("pendingChanges").filter_map(change).collect(),
        observed_generation: status.get("observedGeneration").and_then(Value::as_i64),
        is_unknown: list("conditions").any(|it| it["type"] == "Ready" && it["status"] == "Unknown"),
    })
}
