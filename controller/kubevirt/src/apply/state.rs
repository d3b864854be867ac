//! Keeps a claim in which KubeVirt has the state of a guest.

use common::names;
use controller_core::client::{ApiError, GuardedClient};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::writes::Written;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::objects::Claim;
use crate::plan::state::KeptState;

/// Sends the changes of the claim, unless it has changed since it was observed.
pub(super) async fn keep(
    api: &GuardedClient,
    machine: &Machine,
    claim: &KeptState,
) -> Result<Written, ApiError> {
    let exact = claim.exact();
    let mut body = claim.patch();
    body["metadata"]["uid"] = json!(exact.uid());
    body["metadata"]["resourceVersion"] = json!(exact.version());
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let claims: Api<Claim> = Api::namespaced(api.client(), machine.namespace());
    let body = Patch::Strategic(&body);
    let call = claims.patch(exact.name(), &params, &body);
    Ok(Written::of(&api.write(call).await?))
}
