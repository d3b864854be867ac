//! The lab itself: its control plane works, its audit log is complete, and its processes end.

use std::{path::Path, thread};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use lab::{Lab, Options, User, objects::namespace, wait};
use serde_json::json;

fn config_map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

fn running(ids: &[u32]) -> Vec<u32> {
    let alive = |id: &&u32| Path::new(&format!("/proc/{id}")).exists();
    ids.iter().filter(alive).copied().collect()
}

#[tokio::test]
async fn a_dropped_lab_leaves_no_process_and_no_file() {
    let lab = Lab::with(Options::bare()).await.unwrap();
    let (ids, folder) = (lab.process_ids(), lab.path(""));
    assert_eq!(running(&ids).len(), 2);
    drop(lab);
    assert_eq!(running(&ids), [0; 0]);
    assert!(!folder.exists());
}

#[test]
fn a_panic_leaves_no_process_and_no_file() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let outcome = thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let lab = Lab::with(Options::bare()).await.unwrap();
            sender.send((lab.process_ids(), lab.path(""))).unwrap();
            panic!("on purpose");
        });
    })
    .join();
    assert!(outcome.is_err());
    let (ids, folder) = receiver.recv().unwrap();
    assert_eq!(running(&ids), [0; 0]);
    assert!(!folder.exists());
}

/// Both start with the same data of etcd.
#[tokio::test]
async fn each_lab_is_a_cluster_of_its_own_with_the_objects_installed() {
    let mut clusters = Vec::new();
    for _ in 0..2 {
        let options = Options {
            operator: true,
            ..Options::bare()
        };
        let lab = Lab::with(options).await.unwrap();
        let namespaces = Api::<Namespace>::all(lab.client().clone());
        let system = wait::until("kube-system to exist", async || {
            let found = namespaces.get_opt("kube-system").await?;
            Ok(found.ok_or("it does not"))
        });
        clusters.push(system.await.unwrap().metadata.uid.unwrap());
        let kubectl = lab.kubectl();
        let machines = kubectl.run(&["get", "machines", "-A"]).await.unwrap();
        assert!(machines.ok().is_ok());
    }
    assert_ne!(clusters[0], clusters[1]);
}

#[tokio::test]
async fn the_control_plane_has_the_pinned_versions() {
    let lab = Lab::with(Options::bare()).await.unwrap();
    let version = lab.kubectl().run(&["version"]).await.unwrap().ok().unwrap();
    assert!(version.contains("Client Version: v1.36"), "{version}");
    assert!(version.contains("Server Version: v1.36"), "{version}");
}

#[tokio::test]
async fn the_audit_log_has_each_request_after_its_position() {
    let lab = Lab::with(Options::bare()).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(lab.client().clone());
    let create = PostParams::default();
    maps.create(&create, &config_map("before")).await.unwrap();

    let mark = lab.log_position().await.unwrap();
    assert_eq!(lab.requests_since(mark).await.unwrap().len(), 0);
    maps.create(&create, &config_map("after")).await.unwrap();
    maps.create(&create, &config_map("after"))
        .await
        .unwrap_err();
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    maps.create(&dry, &config_map("dry")).await.unwrap();
    maps.list(&ListParams::default()).await.unwrap();

    let events = lab.requests_since(mark).await.unwrap();
    let wrote: Vec<_> = events.iter().filter(|event| event.wrote()).collect();
    assert_eq!(wrote.len(), 1, "{events:?}");
    assert_eq!(wrote[0].summary(), "create configmaps default/after");
    assert_eq!(wrote[0].user, "admin");
    assert_eq!(events.len(), 4, "{events:?}");
}

#[tokio::test]
async fn roles_are_enforced() {
    let lab = Lab::with(Options::bare()).await.unwrap();
    let refusal = lab
        .kubectl_as(User::Developer)
        .unwrap()
        .run(&["get", "configmaps"])
        .await
        .unwrap()
        .refused()
        .unwrap();
    assert!(
        refusal.contains(r#"User "developer" cannot list resource "configmaps""#),
        "{refusal}"
    );
    let accounts = lab.kubectl();
    let create = ["create", "serviceaccount", "plain"];
    accounts.run(&create).await.unwrap().ok().unwrap();
    let client = lab.account_client("default", "plain").await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let error = maps.list(&ListParams::default()).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("system:serviceaccount:default:plain"),
        "{error}"
    );
}

#[tokio::test]
async fn a_restarted_api_server_has_its_data() {
    let mut lab = Lab::with(Options::bare()).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(lab.client().clone());
    let create = PostParams::default();
    maps.create(&create, &config_map("kept")).await.unwrap();
    lab.stop_api_server();
    assert!(maps.get("kept").await.is_err());
    lab.start_api_server().await.unwrap();
    maps.get("kept").await.unwrap();
}

#[tokio::test]
async fn deletion_ends_with_the_controller_manager() {
    let options = Options {
        controller_manager: true,
        ..Options::bare()
    };
    let lab = Lab::with(options).await.unwrap();
    lab.apply(&namespace("gone", &json!({}))).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(lab.client().clone());
    namespaces
        .delete("gone", &DeleteParams::default())
        .await
        .unwrap();
    wait::until("the namespace to be gone", async || {
        Ok(match namespaces.get_opt("gone").await? {
            None => Ok(()),
            Some(namespace) => Err(namespace.status),
        })
    })
    .await
    .unwrap();
}
