//! A CustomResourceDefinition as the watches decode it: of its schemas what is asked for, and nothing else.
//!
//! In the API's own types every field of a schema is a structure of hundreds of bytes: the definition of Machines took
//! three megabytes, which a process that starts keeps, and KubeVirt's of VirtualMachines takes several times as much.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

/// A CustomResourceDefinition whose schemas are decoded as `S`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Crd<S> {
    metadata: ObjectMeta,
    spec: Spec<S>,
    #[serde(default)]
    status: Option<CustomResourceDefinitionStatus>,
}

#[derive(Clone, Debug, Deserialize)]
struct Spec<S> {
    versions: Vec<Version<S>>,
}

/// A version of the kind.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Version<S> {
    pub(crate) name: String,
    pub(crate) served: bool,
    pub(crate) storage: bool,
    schema: Option<Validation<S>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Validation<S> {
    #[serde(rename = "openAPIV3Schema")]
    open_api_v3_schema: Option<S>,
}

impl<S> Crd<S> {
    /// Its versions.
    pub(crate) fn into_versions(self) -> Vec<Version<S>> {
        self.spec.versions
    }

    /// Whether the API server serves it.
    pub(crate) fn is_established(&self) -> bool {
        let conditions = self.status.iter();
        let mut conditions = conditions.flat_map(|status| status.conditions.iter().flatten());
        conditions.any(|it| it.type_ == "Established" && it.status == "True")
    }
}

impl<S> Version<S> {
    /// The schema of its objects.
    pub(crate) fn into_schema(self) -> Option<S> {
        self.schema?.open_api_v3_schema
    }
}

impl<S> Resource for Crd<S> {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        CustomResourceDefinition::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        CustomResourceDefinition::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        CustomResourceDefinition::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        CustomResourceDefinition::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The names of fields in a schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Fields {
    pub(crate) properties: BTreeMap<String, Self>,
    /// The schema of the items of a list.
    pub(crate) items: Option<Box<Self>>,
    additional_properties: Option<Values>,
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    pub(crate) preserves_unknown: bool,
}

/// The values of a map.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Values {
    /// Whether there may be any.
    Allowed(bool),
    Schema(Box<Fields>),
}

impl Fields {
    /// The schema of the values of a map.
    pub(crate) fn values(&self) -> Option<&Self> {
        match self.additional_properties.as_ref()? {
            Values::Schema(schema) => Some(schema),
            Values::Allowed(_) => None,
        }
    }
}
