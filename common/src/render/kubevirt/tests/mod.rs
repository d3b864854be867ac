//! Every relevant combination is rendered once and checked against the rules and the schema of KubeVirt.

mod annotations;
mod cloud_init;
mod display;
mod fixtures;
mod health;
mod matrix;
mod schema;
mod snapshots;
