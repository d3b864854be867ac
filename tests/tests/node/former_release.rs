//! The upgrade from release 0.1.0, with its chart and its programs, and the way back of docs/upgrade.md.

use lab::{
    node::{Cluster, FormerRelease, IMAGE_VERSIONS},
    objects::MACHINE,
    reviews,
};
use serde_json::{Value, json};

use crate::{calls, releases::run_image};

/// The version of the block that release 0.1.0 writes.
const FORMER_BLOCK: u64 = 1;

/// No write fails while the programs and the definitions are replaced, and no Machine is rewritten. The former programs serve
/// with the newer definitions.
pub(crate) async fn is_upgraded_and_comes_back(cluster: &mut Cluster) {
    let former = FormerRelease::ensure().await.unwrap().ok().unwrap();
    let chart = former.chart();
    let archive = cluster.lab.path("former-release.tar");
    let version = former.write_image(&archive).await.unwrap();
    cluster.node.import(&archive).await.unwrap();
    cluster.install_chart(&chart, version, &[]).await.unwrap();
    let cluster = &*cluster;
    run_image(cluster, version).await;

    let machines = cluster.lab.objects(MACHINE, "default");
    let machine = reviews::machine("kept", &json!({"template": "small"}));
    cluster.lab.apply_when_admitted(&machine).await.unwrap();
    let managed = machines.until("kept", "the finalizer", |machine: &Value| {
        let finalizers = machine["metadata"]["finalizers"].as_array();
        finalizers.is_some_and(|it| !it.is_empty())
    });
    let stored = managed.await.unwrap();
    assert_eq!(stored["spec"]["normalized"]["version"], FORMER_BLOCK);

    let images =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vm-images"}});
    cluster.lab.apply(&images).await.unwrap();
    let upgrade = calls::during(&cluster.lab, async {
        // A value that release 0.1.0 does not have.
        let values = [
            "--reset-then-reuse-values",
            "--set=controller.imageNamespace=vm-images",
        ];
        let upgraded = cluster.install(IMAGE_VERSIONS[0], &values).await;
        upgraded.unwrap();
        run_image(cluster, IMAGE_VERSIONS[0]).await;
    });
    upgrade.await.all_answered("the upgrade from 0.1.0");
    cluster.helm(&["test", "kubevirt-operator"]).await.unwrap();
    let kept = machines.get("kept").await.unwrap();
    assert_eq!(kept["spec"], stored["spec"], "no Machine is rewritten");
    cluster.lab.apply(&machine).await.unwrap();
    let again = machines.get("kept").await.unwrap();
    assert_eq!(again["spec"], stored["spec"], "nor by its manifest");
    let newer = reviews::machine("newer", &json!({"template": "small"}));
    cluster.lab.apply(&newer).await.unwrap();
    let newer = machines.get("newer").await.unwrap();
    assert_ne!(newer["spec"]["normalized"]["version"], FORMER_BLOCK);

    let back = calls::during(&cluster.lab, async {
        let unset = "--set=controller.imageNamespace=null";
        let values = [
            "--reset-then-reuse-values",
            "--set=crds.install=false",
            unset,
        ];
        let former = cluster.install_chart(&chart, version, &values).await;
        former.unwrap();
        run_image(cluster, version).await;
    });
    back.await.all_answered("the way back to 0.1.0");
    for before in [stored, newer] {
        let name = before["metadata"]["name"].as_str().unwrap();
        let now = machines.get(name).await.unwrap();
        assert_eq!(now["spec"], before["spec"], "{name}");
    }

    let values = ["--reset-then-reuse-values", "--set=crds.install=true"];
    let upgraded = cluster.install(IMAGE_VERSIONS[0], &values).await;
    upgraded.unwrap();
    run_image(cluster, IMAGE_VERSIONS[0]).await;
}
