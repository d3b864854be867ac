//! Reads from the API server, for decisions that must not use a cache.

use common::names;
use controller_core::client::{ApiError, GuardedClient};
use controller_core::machine::Machine;
use controller_core::objects::{Cacheable, Meta};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Api;
use kube::api::ListParams;
use kube::core::{ObjectList, Request};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use crate::objects::Claim;

/// Objects per page of a live list. Most have some 5 KiB, but a tenant can fill one up to the 1.5 MiB that etcd stores. A
/// page is in memory twice, as the body of the response and as its text, which is 60 MiB. With [`LISTS_MAX`] it is
/// 120 MiB, of the 512 MiB that the controller has as installed. A Machine that has no more disks needs one page of claims.
const PAGE: u32 = 20;

/// Most pages that are in memory at a time: the passes over the Machines of a tenant run at the same time.
const LISTS_MAX: usize = 2;

static LISTS: Semaphore = Semaphore::const_new(LISTS_MAX);

/// The object of this name; `None` if it certainly does not exist.
///
/// A 404 alone does not say that: an API server that has not loaded a CRD yet answers 404, too. So either the
/// answer names the object, or the kind's CRD does not exist.
pub(super) async fn find<K>(
    api: &GuardedClient,
    namespace: &str,
    name: &str,
) -> Result<Option<K>, ApiError>
where
    K: Meta<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let objects = Api::<K>::namespaced(api.client(), namespace);
    match api.read(objects.get(name)).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if !error.is_not_found() => Err(error),
        Err(error) if names_object(&error, name) => Ok(None),
        Err(_) => absent::<K>(api).await.map(|()| None),
    }
}

/// The first object of kind `K` in the namespace that `matches`, decoded as `T`. Kubernetes lists from a consistent
/// state: what was created before the call is in it.
///
/// One object of a page is decoded at a time: decoded without a schema, one takes some ten times the memory of its JSON.
pub(super) async fn first<K, T>(
    api: &GuardedClient,
    namespace: &str,
    matches: impl Fn(&T) -> bool,
) -> Result<Option<T>, ApiError>
where
    K: kube::Resource<DynamicType = ()>,
    T: DeserializeOwned,
{
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let _permit = LISTS.acquire().await;
        let request = Request::new(K::url_path(&(), Some(namespace)))
            .list(&params)
            .map_err(|error| ApiError::Refused(kube::Error::BuildRequest(error)))?;
        let client = api.client();
        let page: ObjectList<Box<RawValue>> = match api.read(client.request(request)).await {
            Err(error) if error.is_not_found() => return absent::<K>(api).await.map(|()| None),
            page => page?,
        };
        for item in page.items {
            let item = serde_json::from_str(item.get())
                .map_err(|error| ApiError::Refused(kube::Error::SerdeError(error)))?;
            if matches(&item) {
                return Ok(Some(item));
            }
        }
        params.continue_token = next(page.metadata);
        if params.continue_token.is_none() {
            return Ok(None);
        }
    }
}

/// Whether a claim exists that several nodes can mount and write at a time.
pub(super) async fn is_shared(
    api: &GuardedClient,
    namespace: &str,
    claim: &str,
) -> Result<bool, ApiError> {
    let claims: Api<Claim> = Api::namespaced(api.client(), namespace);
    let params = ListParams::default().fields(&format!("metadata.name={claim}"));
    let found = api.read(claims.list(&params)).await?.items;
    Ok(found.iter().any(Claim::is_shared))
}

/// The claims with the label of the Machine.
pub(super) async fn claims(api: &GuardedClient, machine: &Machine) -> Result<Vec<Claim>, ApiError> {
    labelled(api, machine, names::LABEL_MACHINE).await
}

/// The claims that KubeVirt made for the state of the VirtualMachine of the Machine's name.
pub(crate) async fn state_claims(
    api: &GuardedClient,
    machine: &Machine,
) -> Result<Vec<Claim>, ApiError> {
    labelled(api, machine, names::LABEL_STATE).await
}

/// The claims that have the Machine's name in this label, pruned as those of the cache.
async fn labelled(
    api: &GuardedClient,
    machine: &Machine,
    label: &str,
) -> Result<Vec<Claim>, ApiError> {
    let claims: Api<Claim> = Api::namespaced(api.client(), machine.namespace());
    let label = format!("{label}={}", machine.name());
    let labelled = ListParams::default().labels(&label);
    let mut found = Vec::new();
    for_each(api, &claims, labelled, |mut claim| {
        claim.prune();
        found.push(claim);
    })
    .await?;
    Ok(found)
}

/// Calls `visit` with each object that the parameters select; one page is in memory at a time.
pub(crate) async fn for_each<K>(
    api: &GuardedClient,
    objects: &Api<K>,
    selected: ListParams,
    mut visit: impl FnMut(K),
) -> Result<(), ApiError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = selected.limit(PAGE);
    loop {
        let _permit = LISTS.acquire().await;
        let page = api.read(objects.list(&params)).await?;
        page.items.into_iter().for_each(&mut visit);
        params.continue_token = next(page.metadata);
        if params.continue_token.is_none() {
            return Ok(());
        }
    }
}

/// The token of the next page; `None` after the last one.
fn next(list: ListMeta) -> Option<String> {
    list.continue_.filter(|token| !token.is_empty())
}

/// Fails unless the kind's CRD does not exist.
async fn absent<K: kube::Resource<DynamicType = ()>>(api: &GuardedClient) -> Result<(), ApiError> {
    let crds: Api<CustomResourceDefinition> = Api::all(api.client());
    let crd = format!("{}.{}", K::plural(&()), K::group(&()));
    // Decoded, the schema of a VirtualMachine takes many megabytes.
    match api.read(crds.get_metadata_opt(&crd)).await? {
        None => Ok(()),
        Some(_) => Err(ApiError::StaleCache(format!(
            "the API server has {crd} and does not serve it yet"
        ))),
    }
}

/// Whether a 404 is about the object and not about its kind.
fn names_object(error: &ApiError, name: &str) -> bool {
    matches!(error, ApiError::Refused(kube::Error::Api(status))
        if status.details.as_ref().is_some_and(|details| details.name == name))
}
