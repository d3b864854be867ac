//! Images, an upgrade, a rollback and the removal of the release.

use std::fs;

use lab::{
    Binary,
    node::{self, Cluster, IMAGE, IMAGE_VERSIONS},
    wait,
};

use crate::{all_ready, calls};

/// An archive that is cut off is no image: nothing of it is installed.
pub(crate) async fn need_a_whole_archive(cluster: &mut Cluster) {
    let whole = fs::read(node::archive().unwrap()).unwrap();
    let cut = cluster.lab.path("cut-off.tar");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let error = cluster.node.import(&cut).await.unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("cut-off.tar") && error.contains("unexpected EOF"),
        "{error}"
    );
}

/// An upgrade to an image that is nowhere ends with the reason.
pub(crate) async fn survive_a_wrong_tag(cluster: &mut Cluster) {
    fails("absent", &[], &["ErrImagePull", ":absent"], cluster).await;
}

/// An upgrade to pods for which no node has the memory ends with the reason.
pub(crate) async fn survive_pods_that_do_not_fit(cluster: &mut Cluster) {
    let memory = "--set=resources.requests.memory=1Ti,resources.limits.memory=1Ti";
    let reason = ["Insufficient memory", "FailedScheduling"];
    fails(IMAGE_VERSIONS[0], &[memory], &reason, cluster).await;
}

/// An upgrade fails with a message that contains these texts; the pods of the release before answer every write.
async fn fails(version: &str, values: &[&str], texts: &[&str], cluster: &Cluster) {
    let calls = calls::during(&cluster.lab, async {
        let values = [values, &["--timeout=20s"]].concat();
        let error = cluster.install(version, &values).await;
        let error = format!("{:#}", error.unwrap_err());
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
        roll_back(cluster).await;
    })
    .await;
    calls.all_answered(texts[0]);
}

/// No write fails while the pods are replaced; without the release, no write depends on a webhook.
pub(crate) async fn are_upgraded_rolled_back_and_removed(cluster: &mut Cluster) {
    let here = &*cluster;
    let calls = calls::during(&here.lab, async {
        here.install(IMAGE_VERSIONS[1], &[]).await.unwrap();
        run_image(here, IMAGE_VERSIONS[1]).await;
        roll_back(here).await;
    })
    .await;
    calls.all_answered("upgrade and rollback");

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

/// Goes back to the release before, which had the first image.
async fn roll_back(cluster: &Cluster) {
    let rollback = ["rollback", "kubevirt-operator", "--wait", "--timeout=110s"];
    cluster.helm(&rollback).await.unwrap();
    run_image(cluster, IMAGE_VERSIONS[0]).await;
}

async fn run_image(cluster: &Cluster, version: &str) {
    for (binary, count) in [(Binary::Webhook, 2), (Binary::Controller, 1)] {
        for pod in all_ready(cluster, binary, count).await {
            let image = &pod["spec"]["containers"][0]["image"];
            assert_eq!(*image, format!("{IMAGE}:{version}"));
        }
    }
}
