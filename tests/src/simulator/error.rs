//! What fails while the simulator reads or writes.

#[derive(Debug, thiserror::Error)]
pub(super) enum SimulatorError {
    #[error("the API server: {0}")]
    Api(#[from] kube::Error),
    #[error("invalid JSON of an object: {0}")]
    Json(#[from] serde_json::Error),
}
