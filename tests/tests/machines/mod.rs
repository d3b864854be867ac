//! Machines as tests write and read them.

use kube::{
    Api, Client,
    api::{DynamicObject, GroupVersionKind},
    core::ApiResource,
};

/// A Machine as a user writes it; every line of `spec` is one of its fields.
pub(crate) fn machine(name: &str, spec: &str) -> String {
    let spec = spec.replace('\n', "\n  ");
    format!(
        "apiVersion: vitistack.io/v1alpha1\nkind: Machine\nmetadata:\n  name: {name}\n  namespace: default\nspec:\n  {spec}\n"
    )
}

/// The API of one of our kinds in the namespace `default`.
pub(crate) fn api(client: &Client, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("vitistack.io", "v1alpha1", kind));
    Api::namespaced_with(client.clone(), "default", &resource)
}
