//! CPU and memory of a Machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::HugepageSize;
use crate::api::{cel, schema};
use crate::bounds;

/// CPU and memory of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// CPU topology. The machine has cores × threads × sockets vCPUs, at most 255.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Guest memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// CPU topology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.maxSockets) || !has(self.sockets) || self.maxSockets >= self.sockets",
        "message": "maxSockets must be at least sockets"
    },
    {
        "rule": "!has(self.maxCores) || !has(self.maxSockets)",
        "message": "maxCores and maxSockets exclude each other"
    },
    {
        "rule": "!has(self.maxCores) || !has(self.sockets) || self.sockets <= 1",
        "message": "with maxCores each core is a socket: leave sockets out"
    },
    {
        "rule": "!has(self.maxCores) || !has(self.dedicated) || !self.dedicated",
        "message": "dedicated CPUs cannot grow: leave maxCores out"
    },
    {
        "rule": "!has(self.maxCores) || !has(self.cores) || self.maxCores >= self.cores",
        "message": "maxCores must be at least cores"
    },
    {
        "rule": "!has(self.dedicated) || !self.dedicated || !has(self.threads) || self.threads <= 2",
        "message": "a core of dedicated CPUs has at most two threads"
    },
    {
        "rule": "(has(self.cores) ? self.cores : 1) * (has(self.threads) ? self.threads : 1) * (has(self.sockets) ? self.sockets : 1) <= 255 && (has(self.cores) ? self.cores : 1) * (has(self.threads) ? self.threads : 1) * (has(self.maxSockets) ? self.maxSockets : 1) <= 255 && (has(self.maxCores) ? self.maxCores : 1) * (has(self.threads) ? self.threads : 1) <= 255",
        "message": "cores × threads × sockets must be at most 255"
    }
]))]
pub struct Cpu {
    /// Cores per socket, from 1; with maxCores all cores, each of which is a socket. Default: the template's value,
    /// else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub cores: Option<i64>,
    /// Whether each vCPU has a processor of the node or host for itself; at most two threads per core. Default: the
    /// template's value, else false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedicated: Option<bool>,
    /// Largest number of cores that the running machine can get without a restart, if the backend supports it; at least
    /// cores. Each core is then a socket with its threads. Not beside maxSockets, more than one of sockets, or dedicated.
    /// Default: the template's value, else the number of cores does not change without a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub max_cores: Option<i64>,
    /// Largest number of sockets that the running machine can get without a restart, if the backend
    /// supports it; at least sockets. Default: sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub max_sockets: Option<i64>,
    /// Model of the CPU that the guest sees: host-model, host-passthrough, or a model of libvirt such as
    /// Skylake-Server. Default: the template's value, else the choice of the backend: host-model on KubeVirt unless the
    /// administrator changed it, host-passthrough on libvirt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::CpuModelName>")]
    pub model: Option<String>,
    /// Number of sockets, from 1; with maxCores at most 1, because the cores are the sockets. Default: the template's value, else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub sockets: Option<i64>,
    /// Threads per core, from 1. Default: the template's value, else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub threads: Option<i64>,
}

/// Guest memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::memory()))]
pub struct Memory {
    /// Size of the huge pages that the memory consists of on its node or host: 2Mi or 1Gi. It divides size and maxSize.
    /// Default: the template's value, else ordinary pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HugepageSize>")]
    pub hugepages: Option<String>,
    /// Largest memory that the running machine can get without a restart, if the backend supports it:
    /// a quantity in bytes, from size to 12Ti. If it is more than size, both must be multiples of 2Mi.
    /// Default: size.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub max_size: Option<String>,
    /// Memory of the guest: a quantity in bytes such as 2Gi, from 32Mi to 12Ti. Required here or in
    /// the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub size: Option<String>,
}
