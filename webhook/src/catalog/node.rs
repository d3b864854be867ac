//! A node as the watch decodes it: its labels and what it offers.

use std::collections::BTreeMap;

use common::catalog::NodeRow;
use k8s_openapi::api::core::v1::Node as FullNode;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

/// A node: its labels, and the amounts of resources that its pods can have.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = FullNode)]
pub struct Node {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    allocatable: BTreeMap<String, Quantity>,
}

impl Node {
    /// The row of the node.
    pub(super) fn row(self) -> NodeRow {
        let labels = self.metadata.labels.unwrap_or_default();
        let allocatable = self.status.allocatable.into_iter();
        NodeRow::new(&labels, allocatable.map(|(name, amount)| (name, amount.0)))
    }
}
