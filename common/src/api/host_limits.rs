//! Limits that a libvirt host sets for its guests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bounds;

/// Limits of each guest on a libvirt host. A guest gets changed ones at its next start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostLimits {
    /// Reads and writes of each disk per second, together, 1 to 1000000. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::DISK_IOPS_MAX))]
    pub disk_iops: Option<u32>,
    /// Megabytes (10⁶ bytes) that each disk reads and writes per second, together, 1 to 100000. Default:
    /// no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::DISK_MEGABYTES_MAX))]
    pub disk_megabytes_per_second: Option<u32>,
    /// Megabits that each network card receives per second, and as many that it sends, 1 to 1000000.
    /// Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::NETWORK_MEGABITS_MAX))]
    pub network_megabits_per_second: Option<u32>,
    /// Whether each vCPU gets at most the time of one CPU, and QEMU's other threads together that of one
    /// more. The host needs the cgroup controller cpu, or no guest starts. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu_quota: Option<bool>,
}
