//! A Machine's life, from kubectl to a running guest: real API server, the shipped programs, and
//! the simulator in KubeVirt's part.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use lab::{
    KubevirtCrds, Lab, Options, Script,
    objects::{CLAIM, MACHINE, VM},
    paths,
};
use serde_json::json;

/// With KubeVirt's own CRDs where they are at hand.
async fn start() -> Lab {
    let kubevirt = KubevirtCrds::best();
    if kubevirt == KubevirtCrds::Thin {
        eprintln!("KubeVirt's own CRDs are not beside the repository: thin ones are used");
    }
    Lab::with(Options {
        kubevirt,
        ..Options::default()
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn the_examples_run() {
    let mut lab = start().await;
    let _webhook = lab.webhook(&[]).await.unwrap();
    let _controller = lab.controller(&[]).await.unwrap();
    let _simulator = lab.simulator(Script::Happy).await.unwrap();

    let examples = paths::repository().join("manifests/examples");
    let kubectl = lab.kubectl();
    let apply = ["apply", "-f", examples.to_str().unwrap()];
    kubectl.run(&apply).await.unwrap().ok().unwrap();

    let machines = lab.objects(MACHINE, "default");
    for name in ["basic-vm", "cloud-init-vm", "custom-vm", "networked-vm"] {
        let machine = machines.in_phase(name, "Running").await.unwrap();
        println!(
            "{}",
            serde_json::to_string_pretty(&machine["status"]).unwrap()
        );
    }
    let vm = lab.objects(VM, "default").get("custom-vm").await.unwrap();
    let domain = &vm["spec"]["template"]["spec"]["domain"];
    assert_eq!(domain["cpu"]["cores"], 4);
    assert_eq!(domain["memory"]["guest"], "8Gi");
    let claims = lab.objects(CLAIM, "default");
    for (name, size, class) in [
        ("custom-vm-root", "20Gi", "standard"),
        ("custom-vm-data", "100Gi", "fast-ssd"),
    ] {
        let claim = claims.get(name).await.unwrap();
        assert_eq!(
            claim["spec"]["resources"]["requests"],
            json!({"storage": size})
        );
        assert_eq!(claim["spec"]["storageClassName"], class);
    }
}
