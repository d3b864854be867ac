//! An upgrade, a rollback and the removal of the release.

use lab::{
    Binary,
    node::{Cluster, IMAGE, IMAGE_VERSIONS},
    wait,
};

use crate::{all_ready, calls};

/// No write fails while the pods are replaced; without the release, no write depends on a webhook.
pub(crate) async fn are_upgraded_rolled_back_and_removed(cluster: &mut Cluster) {
    let here = &*cluster;
    let calls = calls::during(&here.lab, async {
        here.install(IMAGE_VERSIONS[1], &[]).await.unwrap();
        run_image(here, IMAGE_VERSIONS[1]).await;
        let rollback = ["rollback", "kubevirt-operator", "--wait", "--timeout=110s"];
        here.helm(&rollback).await.unwrap();
        run_image(here, IMAGE_VERSIONS[0]).await;
    })
    .await;
    eprintln!("upgrade and rollback: {} writes answered", calls.answered);
    assert!(calls.failed.is_empty(), "{:#?}", calls.failed);

    let uninstall = ["uninstall", "kubevirt-operator", "--wait", "--timeout=110s"];
    here.helm(&uninstall).await.unwrap();
    wait::until("the programs to end", async || {
        let processes = [Binary::Webhook, Binary::Controller].map(Cluster::processes);
        let [webhook, controller] = processes;
        let running = webhook?.len() + controller?.len();
        Ok((running == 0).then_some(()).ok_or(running))
    })
    .await
    .unwrap();
    let machine = lab::reviews::machine("unreviewed", &serde_json::json!({"template": "small"}));
    here.lab.apply(&machine).await.unwrap();
}

async fn run_image(cluster: &Cluster, version: &str) {
    for (binary, count) in [(Binary::Webhook, 2), (Binary::Controller, 1)] {
        for pod in all_ready(cluster, binary, count).await {
            let image = &pod["spec"]["containers"][0]["image"];
            assert_eq!(*image, format!("{IMAGE}:{version}"));
        }
    }
}
