//! The shipped webhook in front of a real API server.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod certificates;
mod process;
mod readiness;

use std::net::SocketAddr;

use lab::http::{self, Connection};
use lab::{Lab, Options, Shipped, reviews, wait};
use serde_json::{Value, json};

/// The product, storage classes for the rules, and nothing else.
pub(crate) async fn lab() -> Lab {
    let options = Options {
        operator: true,
        storage_classes: true,
        ..Options::bare()
    };
    Lab::with(options).await.unwrap()
}

/// Waits until `/readyz` answers 500 with this.
pub(crate) async fn unready(webhook: &mut Shipped, expected: impl Fn(&str) -> bool) {
    let address = webhook.health_address().await.unwrap();
    wait::until("the reason for being unready", async || {
        let answer = http::get(address, "/readyz").await?;
        let told = answer.status == 500 && expected(&answer.text());
        Ok(if told {
            Ok(())
        } else {
            Err((answer.status, answer.text()))
        })
    })
    .await
    .unwrap();
}

pub(crate) fn review() -> Value {
    let machine = reviews::machine("web", &json!({"template": "small"}));
    reviews::creation("6f2d8a4e-1111-4222-8333-444455556666", &machine)
}

/// Asks the webhook at `address` as an API server that trusts `ca`.
pub(crate) async fn asked(address: SocketAddr, ca: &str) -> anyhow::Result<Value> {
    let mut connection = Connection::tls(address, ca.as_bytes()).await?;
    let answer = connection
        .post("/validate?timeout=3s", review().to_string())
        .await?;
    anyhow::ensure!(answer.status == 200, "{}", answer.text());
    Ok(answer.json()?["response"]["uid"].clone())
}

/// The API server has the webhook write the block of a Machine, without keeping it.
pub(crate) async fn reviewed(lab: &Lab) -> anyhow::Result<()> {
    let machine = reviews::machine("web", &json!({"template": "small"}));
    let file = lab.path("web.json");
    std::fs::write(&file, machine.to_string())?;
    let file = file.display().to_string();
    let create = ["create", "--dry-run=server", "-o", "json", "-f", &file];
    let machine: Value = serde_json::from_str(&lab.kubectl().run(&create).await?.ok()?)?;
    anyhow::ensure!(
        machine["spec"]["normalized"]["disks"].is_array(),
        "{machine}"
    );
    Ok(())
}
