//! A LibvirtHost as its author wrote it. Every field is optional, and closed sets are texts, so that one
//! review reports all violations.

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HostIntent {
    pub(crate) uri: Option<String>,
    pub(crate) credentials_secret_ref: Option<SecretIntent>,
    pub(crate) virt_type: Option<String>,
    pub(crate) cpu_mode: Option<String>,
    // No rule reads these two; decoding checks their type.
    #[serde(rename = "schedulable")]
    _schedulable: Option<bool>,
    #[serde(rename = "maintenance")]
    _maintenance: Option<bool>,
    pub(crate) overcommit: Option<OvercommitIntent>,
    pub(crate) reserved: Option<Amounts>,
    pub(crate) storage: Option<Vec<StorageIntent>>,
    pub(crate) image_pool: Option<String>,
    pub(crate) console_log_pool: Option<String>,
    pub(crate) existing_volumes: Option<Vec<ExistingVolumesIntent>>,
    pub(crate) image_sources: Option<Vec<String>>,
    pub(crate) networks: Option<Vec<NetworkIntent>>,
    pub(crate) dedicated_cpus: Option<String>,
    pub(crate) devices: Option<Vec<DevicesIntent>>,
    pub(crate) limits: Option<LimitsIntent>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct SecretIntent {
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct OvercommitIntent {
    pub(crate) cpu: Option<String>,
    pub(crate) memory: Option<String>,
    pub(crate) storage: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Amounts {
    pub(crate) cpu: Option<String>,
    pub(crate) memory: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StorageIntent {
    pub(crate) storage_class: Option<String>,
    pub(crate) pool: Option<String>,
    pub(crate) format: Option<String>,
    pub(crate) provisioning: Option<String>,
    pub(crate) shared_as: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct ExistingVolumesIntent {
    pub(crate) namespaces: Option<Vec<String>>,
    pub(crate) pool: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct DevicesIntent {
    pub(crate) addresses: Option<Vec<String>>,
    pub(crate) name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NetworkIntent {
    pub(crate) name: Option<String>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) vlans: Option<Vec<i64>>,
    pub(crate) port_isolation: Option<bool>,
    // No rule reads it; decoding checks its type.
    #[serde(rename = "allowMacSpoofing")]
    _allow_mac_spoofing: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LimitsIntent {
    pub(crate) disk_iops: Option<i64>,
    pub(crate) disk_megabytes_per_second: Option<i64>,
    pub(crate) network_megabits_per_second: Option<i64>,
    // No rule reads it; decoding checks its type.
    #[serde(rename = "vcpuQuota")]
    _vcpu_quota: Option<bool>,
}
