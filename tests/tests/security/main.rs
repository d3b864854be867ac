//! What docs/security.md promises.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod life;
mod permissions;
mod secrets;
#[path = "../stage/mod.rs"]
mod stage;
mod threats;

/// Both at once, because the life takes its time.
#[tokio::test]
async fn a_whole_life_uses_every_permission_and_tells_no_secret() {
    let (mut stage, start) = life::stage().await;
    life::lived(&stage).await;
    permissions::are_used(&stage, start).await;
    secrets::are_told_nowhere(&mut stage, start).await;
}
