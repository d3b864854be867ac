//! cloud-init data of a Machine.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::display::LocalSecretRef;
use crate::api::{cel, schema};
use crate::bounds;

/// A document of cloud-init as an object. The API server stores it as it is, nulls included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenObject(pub Map<String, Value>);

/// Data that cloud-init, or Windows Setup, reads inside the guest. The controller passes it on unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("allOf" = cel::given_once(), "x-kubernetes-validations" = [cel::sysprep_alone()]))]
pub struct CloudInit {
    /// User data as an object, a cloud-config: the guest gets the line #cloud-config and the object as JSON,
    /// which is YAML. At most 262144 bytes as JSON, 10000 values and 32 levels. Not beside userData.
    /// Everyone who can read the Machine can read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::CloudInitObject>")]
    pub cloud_config: Option<OpenObject>,
    /// Network configuration as an object, version 1 or 2: the guest gets it as JSON, which is YAML. At most
    /// 262144 bytes as JSON, 10000 values and 32 levels. Not beside networkData. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::CloudInitObject>")]
    pub network_config: Option<OpenObject>,
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
    /// Secret that holds the user data. Not read if userData or cloudConfig is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeyRef>,
    /// Secret that holds the network configuration. Not read if networkData or networkConfig is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_data_secret_ref: Option<SecretKeyRef>,
    /// Answer file of Windows Setup, in place of all other fields. Needs os: windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysprep: Option<Sysprep>,
}

/// Answer file of Windows Setup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sysprep {
    /// Secret with the answer file under the key autounattend.xml.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LocalSecretRef>", required)]
    pub secret_ref: Option<LocalSecretRef>,
}

/// Data for cloud-init in a template: without references to Secrets, which are objects of one namespace. The block of
/// each Machine of the template holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("allOf" = cel::given_once()))]
pub struct TemplateCloudInit {
    /// User data as an object, a cloud-config: at most 16384 bytes as JSON, 10000 values and 32 levels. Not
    /// beside userData. A Machine with user data of its own in any form does not get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::CloudInitObject>")]
    pub cloud_config: Option<OpenObject>,
    /// cloud-init instance metadata: at most 64 entries, values of at most 1024 characters. An entry of a Machine
    /// replaces the entry of the same key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::FreeText>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub meta_data: Option<BTreeMap<String, String>>,
    /// Network configuration as an object, version 1 or 2: at most 16384 bytes as JSON, 10000 values and 32
    /// levels. Not beside networkData. A Machine with a network configuration of its own in any form does not get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::CloudInitObject>")]
    pub network_config: Option<OpenObject>,
    /// cloud-init network configuration, version 1 or 2, at most 16384 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::TemplateUserData>")]
    pub network_data: Option<String>,
    /// cloud-init user data, at most 16384 characters. Everyone who can read the template or one of its Machines can
    /// read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::TemplateUserData>")]
    pub user_data: Option<String>,
}

impl From<&TemplateCloudInit> for CloudInit {
    fn from(template: &TemplateCloudInit) -> Self {
        let TemplateCloudInit {
            cloud_config,
            meta_data,
            network_config,
            network_data,
            user_data,
        } = template.clone();
        Self {
            cloud_config,
            network_config,
            user_data,
            network_data,
            meta_data,
            secret_ref: None,
            network_data_secret_ref: None,
            sysprep: None,
        }
    }
}

impl CloudInit {
    /// The data of a Machine, if it has any, and of its template, if there is one.
    pub fn merged(own: Option<&Self>, template: Option<&TemplateCloudInit>) -> Option<Self> {
        match (own, template) {
            (Some(own), Some(template)) => Some(own.over(template)),
            (Some(own), None) => Some(own.clone()),
            (None, template) => template.map(Self::from),
        }
    }

    /// The data of a Machine with this data and of its template: user data and network configuration are the Machine's
    /// if it has any in any form, and metadata is merged by key. An answer file is in place of all of them.
    fn over(&self, template: &TemplateCloudInit) -> Self {
        if self.sysprep.is_some() {
            return self.clone();
        }
        let mut merged = Self::from(template);
        if self.has_user_data() || self.secret_ref.is_some() {
            merged.user_data.clone_from(&self.user_data);
            merged.cloud_config.clone_from(&self.cloud_config);
            merged.secret_ref.clone_from(&self.secret_ref);
        }
        if self.has_network_data() || self.network_data_secret_ref.is_some() {
            merged.network_data.clone_from(&self.network_data);
            merged.network_config.clone_from(&self.network_config);
            let secret = &self.network_data_secret_ref;
            merged.network_data_secret_ref.clone_from(secret);
        }
        if let Some(own) = &self.meta_data {
            let entries = own.iter().map(|(key, value)| (key.clone(), value.clone()));
            merged.meta_data.get_or_insert_default().extend(entries);
        }
        merged
    }

    /// Whether there is inline user data. An empty text and an empty object count as absent.
    pub fn has_user_data(&self) -> bool {
        is_text(self.user_data.as_ref()) || is_object(self.cloud_config.as_ref())
    }

    /// Whether there is an inline network configuration, as [`has_user_data`](Self::has_user_data).
    pub fn has_network_data(&self) -> bool {
        is_text(self.network_data.as_ref()) || is_object(self.network_config.as_ref())
    }
}

/// Whether a text counts as present.
pub fn is_text(text: Option<&String>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}

/// Whether an object counts as present.
pub fn is_object(object: Option<&OpenObject>) -> bool {
    object.is_some_and(|OpenObject(fields)| !fields.is_empty())
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_part_of_the_machine_replaces_the_templates_and_metadata_is_merged() {
        let template = json!({
            "cloudConfig": {"hostname": "template"},
            "networkData": "version: 2",
            "metaData": {"role": "web", "rack": "7"},
        });
        for (own, expected) in [
            (json!({}), template.clone()),
            (
                json!({"userData": "", "networkConfig": {}, "metaData": {"role": "db"}}),
                json!({
                    "cloudConfig": {"hostname": "template"},
                    "networkData": "version: 2",
                    "metaData": {"role": "db", "rack": "7"},
                }),
            ),
            (
                json!({"userData": "#!/bin/sh", "networkDataSecretRef": {"name": "a"}}),
                json!({
                    "userData": "#!/bin/sh",
                    "networkDataSecretRef": {"name": "a"},
                    "metaData": {"role": "web", "rack": "7"},
                }),
            ),
            (
                json!({"secretRef": {"name": "a"}, "networkConfig": {"version": 1}}),
                json!({
                    "secretRef": {"name": "a"},
                    "networkConfig": {"version": 1},
                    "metaData": {"role": "web", "rack": "7"},
                }),
            ),
        ] {
            let own: CloudInit = serde_json::from_value(own).unwrap();
            let template: TemplateCloudInit = serde_json::from_value(template.clone()).unwrap();
            let merged = CloudInit::merged(Some(&own), Some(&template));
            assert_eq!(serde_json::to_value(merged).unwrap(), expected);
        }
    }
}
