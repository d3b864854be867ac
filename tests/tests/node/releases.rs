//! Images, an upgrade, a rollback and the removal of the release.

use std::fs;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use lab::{
    Binary, OPERATOR_NAMESPACE,
    image::{Image, Reference},
    node::{self, Cluster, IMAGE, IMAGE_VERSIONS},
    pages, wait,
};

use crate::{calls, pods::all_ready};

/// An archive that is cut off is no image: nothing of it is imported.
pub(crate) async fn need_a_whole_archive(cluster: &mut Cluster) {
    let mut image = Image::read(&node::archive().unwrap()).unwrap();
    image.name = Reference::new(IMAGE, "cut-off").unwrap();
    let path = cluster.lab.path("cut-off.tar");
    image.write(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let error = cluster.node.import(&path).await.unwrap_err();
    let error = format!("{error:#}");
    for part in ["cut-off.tar", "make it again", "unexpected EOF"] {
        assert!(error.contains(part), "{error}");
    }
    let (cut, name) = (
        image.name.to_string(),
        format!("{IMAGE}:{}", IMAGE_VERSIONS[0]),
    );
    assert!(!cluster.node.has_image(&cut).await.unwrap());
    assert!(cluster.node.has_image(&name).await.unwrap());
}

/// An upgrade to an image that is nowhere ends with the reason.
pub(crate) async fn survive_a_wrong_tag(cluster: &mut Cluster) {
    fails("absent", &[], &["ErrImagePull", ":absent"], cluster).await;
}

/// An upgrade to one replica more of the webhook than the nodes have the memory for ends with the reason.
pub(crate) async fn survive_pods_that_do_not_fit(cluster: &mut Cluster) {
    let nodes: Api<Node> = Api::all(cluster.lab.client().clone());
    let nodes = nodes.list(&ListParams::default()).await.unwrap();
    let all: Vec<u64> = nodes.iter().map(allocatable_memory).collect();
    // Each node has room for one.
    let most = all.iter().max().unwrap() * 6 / 10;
    let memory = format!("webhook.resources.requests.memory={most}Ki");
    let limit = format!("webhook.resources.limits.memory={most}Ki");
    let replicas = format!("webhook.replicaCount={}", all.len() + 1);
    let values = format!("--set={memory},{limit},{replicas}");
    let reason = ["Insufficient memory", "FailedScheduling"];
    fails(IMAGE_VERSIONS[0], &[&values], &reason, cluster).await;
}

/// In KiB.
fn allocatable_memory(node: &Node) -> u64 {
    let allocatable = node.status.as_ref().unwrap().allocatable.as_ref().unwrap();
    let memory = allocatable["memory"].0.strip_suffix("Ki").unwrap();
    memory.parse().unwrap()
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

    let calls = calls::during(&here.lab, async {
        here.install(IMAGE_VERSIONS[1], &[]).await.unwrap();
        run_image(here, IMAGE_VERSIONS[1]).await;
        undo(here).await;
        run_image(here, IMAGE_VERSIONS[0]).await;
    })
    .await;
    calls.all_answered("upgrade and undone rollouts");

    let uninstall = ["uninstall", "kubevirt-operator", "--wait", "--timeout=10m"];
    here.helm(&uninstall).await.unwrap();
    have_processes([0, 0]).await;
    let machine = lab::reviews::machine("unreviewed", &serde_json::json!({"template": "small"}));
    here.lab.apply(&machine).await.unwrap();
}

/// Runs the commands of docs/upgrade.md for an installation with kustomize. To the Deployments it is the same.
async fn undo(cluster: &Cluster) {
    let page = pages::page("upgrade").unwrap();
    let start = format!("kubectl -n {OPERATOR_NAMESPACE} ");
    let commands = page.lines().filter_map(|line| line.strip_prefix(&start));
    let commands: Vec<_> = commands
        .filter(|it| it.starts_with("rollout undo"))
        .collect();
    assert_eq!(commands.len(), 2);
    for command in commands {
        let words: Vec<_> = command.split(' ').collect();
        cluster.kubectl(&words).await.unwrap();
    }
}

/// Goes back to the release before, which had the first image.
async fn roll_back(cluster: &Cluster) {
    let rollback = ["rollback", "kubevirt-operator", "--wait", "--timeout=10m"];
    cluster.helm(&rollback).await.unwrap();
    run_image(cluster, IMAGE_VERSIONS[0]).await;
}

pub(crate) async fn run_image(cluster: &Cluster, version: &str) {
    // The API server may ask a replica of the release before until it has ended.
    have_processes([2, 1]).await;
    for (binary, count) in [(Binary::Webhook, 2), (Binary::Controller, 1)] {
        for pod in all_ready(cluster, binary, count).await {
            let image = &pod["spec"]["containers"][0]["image"];
            assert_eq!(*image, format!("{IMAGE}:{version}"));
        }
    }
}

/// Waits until the nodes run so many processes of the webhook and of the controller.
async fn have_processes(expected: [usize; 2]) {
    wait::until("the programs to start and to end", async || {
        let [webhook, controller] = [Binary::Webhook, Binary::Controller].map(Cluster::processes);
        let running = [webhook?.len(), controller?.len()];
        Ok((running == expected).then_some(()).ok_or(running))
    })
    .await
    .unwrap();
}
