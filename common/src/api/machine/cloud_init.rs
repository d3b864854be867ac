//! cloud-init data of a Machine.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::schema;
use crate::bounds;

/// Data that cloud-init reads inside the guest. The controller passes it on unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudInit {
    /// cloud-init user data, at most 262144 characters. Everyone who can read the Machine can read it:
    /// put passwords and keys into a Secret and name it in secretRef.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::UserData>")]
    pub user_data: Option<String>,
    /// cloud-init network configuration, version 1 or 2, at most 262144 characters. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::UserData>")]
    pub network_data: Option<String>,
    /// cloud-init instance metadata: at most 64 entries, values of at most 1024 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::FreeText>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub meta_data: Option<BTreeMap<String, String>>,
    /// Secret that holds the user data. Not read if userData is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeyRef>,
    /// Secret that holds the network configuration. Not read if networkData is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_data_secret_ref: Option<SecretKeyRef>,
}

/// A key of a Secret in the Machine's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret in the Machine's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>", required)]
    pub name: Option<String>,
    /// Key in the Secret. Default: userdata in secretRef, networkdata in networkDataSecretRef.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::SecretKey>")]
    pub key: Option<String>,
}
