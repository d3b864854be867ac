//! The claims of `docs/security.md` about permissions, secrets and tests.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod admission_policies;
mod configurations;
#[path = "../environment/mod.rs"]
mod environment;
mod lifecycle;
mod permissions;
mod roles;
mod secrets;
mod threats;
mod tokens;

/// One test for both, because the lifecycle takes long.
#[tokio::test]
async fn the_lifecycle_of_machines_uses_every_permission_and_discloses_no_secret() {
    let (mut env, start) = lifecycle::env().await;
    lifecycle::run(&env).await;
    permissions::assert_used(&env, start).await;
    secrets::assert_not_disclosed(&mut env, start).await;
}
