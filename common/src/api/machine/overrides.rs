//! Fields of a backend's own object that a Machine sets beside its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cloud_init::OpenObject;
use crate::api::schema;

/// Fields of the object that a backend makes of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendOverrides {
    /// Fields of the VirtualMachine of KubeVirt, such as spec.template.spec.domain.ioThreadsPolicy, as a JSON merge patch
    /// that removes nothing: at most 64 values. A MachinePolicy of the namespace must name each field. Fields that the
    /// machine itself has are refused. Everyone who can read the Machine can read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::OverridesObject>")]
    pub kubevirt: Option<OpenObject>,
}
