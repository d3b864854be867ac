//! A NetworkAttachmentDefinition of Multus, with only the fields that the controller reads.

use controller_core::objects::{lenient, metadata};
use controller_core::{cacheable, resource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// A NetworkAttachmentDefinition of Multus.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Attachment {
    #[serde(default, deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) spec: AttachmentSpec,
}
resource!(
    Attachment,
    "NetworkAttachmentDefinition",
    "k8s.cni.cncf.io",
    "v1",
    "network-attachment-definitions",
    NamespaceResourceScope
);
cacheable!(Attachment);

/// Desired state of a NetworkAttachmentDefinition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AttachmentSpec {
    pub(crate) config: String,
}
