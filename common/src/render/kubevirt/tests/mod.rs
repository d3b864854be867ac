//! Every combination that matters is rendered once and held against what KubeVirt accepts.

mod fixtures;
mod matrix;
mod schema;
mod snapshots;
