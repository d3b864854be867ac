//! Machines as tests of admission write and read them, and the lab they are sent to.
#![allow(dead_code, reason = "every test file takes what it needs")]

use kube::{
    Api, Client,
    api::{DynamicObject, GroupVersionKind},
    core::ApiResource,
};
use lab::{Lab, Options, ProgramUnderTest};

/// A lab with everything that admission needs, without a controller.
pub(crate) async fn lab(settings: &[(&str, &str)]) -> (Lab, ProgramUnderTest) {
    let mut lab = Lab::with(Options {
        controller_manager: false,
        ..Options::default()
    })
    .await
    .unwrap();
    let webhook = lab.webhook(settings).await.unwrap();
    (lab, webhook)
}

/// A Machine as a user writes it; every line of `spec` is one of its fields.
pub(crate) fn machine(name: &str, spec: &str) -> String {
    let spec = spec.replace('\n', "\n  ");
    format!(
        "apiVersion: vitistack.io/v1alpha1\nkind: Machine\nmetadata:\n  name: {name}\n  namespace: default\nspec:\n  {spec}\n"
    )
}

/// The API of one of our kinds in the namespace `default`.
pub(crate) fn api(client: &Client, kind: &str) -> Api<DynamicObject> {
    api_in(client, kind, "default")
}

/// The API of one of our kinds in a namespace.
pub(crate) fn api_in(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("vitistack.io", "v1alpha1", kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}
