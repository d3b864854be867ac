//! What a guest on KubeVirt gets from its Machine beside the fields of the spec: labels, annotations that a policy
//! names, and fields of the VirtualMachine that a policy names.
mod environment;

use lab::{
    KubevirtCrds,
    objects::{INSTANCE, Kind, POD, VM},
    wait::until,
};
use serde_json::{Value, json};

use environment::{Environment, machine};

#[tokio::test]
async fn labels_of_a_machine_reach_its_guest_with_the_next_start() {
    let env = Environment::new().await;
    let (machines, kubectl) = (env.machines(), env.lab.kubectl());
    let mut web = machine("web", &json!({"template": "small"}));
    web["metadata"]["labels"] = json!({
        "app": "web", "app.kubernetes.io/name": "shop", "argocd.argoproj.io/instance": "shop",
    });
    env.apply(&web).await;
    let runs = async || {
        let ready = machines.until_condition("web", "Ready", "True", "Running");
        ready.await.unwrap();
    };
    runs().await;
    let label = async |kind: Kind, name: &str, key: &str| {
        let object = env.objects(kind).get(name).await.unwrap();
        object["metadata"]["labels"][key].clone()
    };
    let pod = env.objects(POD).list().await.unwrap().remove(0);
    let pod = pod["metadata"]["name"].as_str().unwrap().to_owned();
    for (kind, name) in [(VM, "web"), (INSTANCE, "web"), (POD, &*pod)] {
        assert_eq!(label(kind, name, "app").await, "web", "{kind:?}");
        for key in ["app.kubernetes.io/name", "argocd.argoproj.io/instance"] {
            assert!(label(kind, name, key).await.is_null(), "{kind:?} {key}");
        }
    }

    let change = [
        "label",
        "--overwrite",
        "machine",
        "web",
        "app=api",
        "tier=front",
    ];
    kubectl.run(&change).await.unwrap().ok().unwrap();
    let expected = json!([{
        "field": "metadata.labels", "current": "app=web", "desired": "app=api,tier=front",
        "action": "Restart",
    }]);
    let is_pending = |web: &Value| web["status"]["pendingChanges"] == expected;
    machines
        .until("web", "to have the labels pending", is_pending)
        .await
        .unwrap();
    assert_eq!(label(VM, "web", "app").await, "api");
    assert_eq!(label(INSTANCE, "web", "app").await, "web");

    env.restart("web", "labels").await;
    runs().await;
    assert_eq!(label(INSTANCE, "web", "tier").await, "front");
    let web = machines.get("web").await.unwrap();
    assert!(web["status"]["pendingChanges"].is_null());

    let remove = ["label", "machine", "web", "app-", "tier-"];
    kubectl.run(&remove).await.unwrap().ok().unwrap();
    let is_bare = |vm: &Value| {
        let labels = &vm["metadata"]["labels"];
        labels["app"].is_null() && labels["vitistack.io/machine"] == "web"
    };
    let vms = env.objects(VM);
    vms.until("web", "to have lost the labels", is_bare)
        .await
        .unwrap();
}

#[tokio::test]
async fn annotations_that_a_policy_names_reach_the_guest_with_the_next_start() {
    const OF_GUEST: &str = "/spec/template/metadata";
    let mut env = Environment::new().await;
    let (machines, kubectl) = (env.machines(), env.lab.kubectl());
    let policy = |keys: Value| {
        json!({
            "apiVersion": "vitistack.io/v1alpha1", "kind": "MachinePolicy", "metadata": {"name": "annotations"},
            "spec": {"namespaceSelector": {}, "annotations": {"allow": keys}},
        })
    };
    let crossing = policy(json!(["hooks.kubevirt.io/hookSidecars"]));
    let refused = kubectl.apply(&crossing).await.unwrap().refused().unwrap();
    let expected = "spec.annotations.allow[0]: Forbidden: \"hooks.kubevirt.io/hookSidecars\": the cluster or this operator acts on annotations of this key, so guests never have it from a Machine; take it out of the list [AnnotationNotCarried]";
    assert!(refused.contains(expected), "{refused}");
    env.apply(&policy(json!(["example.com/*"]))).await;

    let mut web = machine("web", &json!({"template": "small"}));
    web["metadata"]["annotations"] = json!({
        "example.com/team": "a", "other.example.org/note": "b", "hooks.kubevirt.io/hookSidecars": "[]",
    });
    until("the webhook to know the policy", async || {
        let dry_run = ["apply", "--dry-run=server", "-o", "json", "-f", "-"];
        let answer = kubectl.run_with(&dry_run, web.to_string()).await?.ok()?;
        let answer: Value = serde_json::from_str(&answer)?;
        let keys = answer["spec"]["normalized"]["annotationKeys"].clone();
        Ok((keys == json!(["example.com/*"]))
            .then_some(())
            .ok_or(keys.to_string()))
    })
    .await
    .unwrap();
    env.apply(&web).await;
    let runs = async || {
        let ready = machines.until_condition("web", "Ready", "True", "Running");
        ready.await.unwrap();
    };
    runs().await;
    let annotations = async |kind: Kind, name: &str, place: &str| {
        let object = env.lab.objects(kind, "default").get(name).await.unwrap();
        let metadata = object.pointer(place).unwrap();
        metadata["annotations"].clone()
    };
    let pod = env.objects(POD).list().await.unwrap().remove(0);
    let pod = pod["metadata"]["name"].as_str().unwrap().to_owned();
    for (kind, name, place) in [
        (VM, "web", OF_GUEST),
        (INSTANCE, "web", "/metadata"),
        (POD, &*pod, "/metadata"),
    ] {
        let annotations = annotations(kind, name, place).await;
        assert_eq!(annotations["example.com/team"], "a", "{kind:?}");
        for key in ["other.example.org/note", "hooks.kubevirt.io/hookSidecars"] {
            assert!(annotations[key].is_null(), "{kind:?} {key}");
        }
    }

    // No webhook is asked of it.
    env.webhook.stop().await.unwrap();
    let annotate = [
        "annotate",
        "--overwrite",
        "machine",
        "web",
        "example.com/team=b",
    ];
    kubectl.run(&annotate).await.unwrap().ok().unwrap();
    let expected = json!({
        "field": "metadata.annotations", "current": "as it was", "desired": "as it is now",
        "action": "Restart",
    });
    let is_pending = |web: &Value| {
        let pending = web["status"]["pendingChanges"].as_array();
        pending.is_some_and(|pending| pending.contains(&expected))
    };
    machines
        .until("web", "to have the annotation pending", is_pending)
        .await
        .unwrap();
    assert_eq!(
        annotations(VM, "web", OF_GUEST).await["example.com/team"],
        "b"
    );
    assert_eq!(
        annotations(INSTANCE, "web", "/metadata").await["example.com/team"],
        "a"
    );

    env.restart("web", "annotations").await;
    runs().await;
    assert_eq!(
        annotations(INSTANCE, "web", "/metadata").await["example.com/team"],
        "b"
    );
    let web = machines.get("web").await.unwrap();
    assert!(web["status"]["pendingChanges"].is_null());
}

#[tokio::test]
async fn a_field_of_the_virtual_machine_that_a_policy_names_can_be_set() {
    let env = Environment::with_best_crds().await;
    let (machines, kubectl) = (env.machines(), env.lab.kubectl());
    let overriding = |domain: Value| {
        let patch = json!({"spec": {"template": {"spec": {"domain": domain}}}});
        machine(
            "web",
            &json!({"template": "small", "backendOverrides": {"kubevirt": patch}}),
        )
    };
    let apply = async |machine: Value| kubectl.apply(&machine).await.unwrap();
    let refused = apply(overriding(json!({"ioThreadsPolicy": "auto"}))).await;
    let refused = refused.refused().unwrap();
    assert!(refused.contains("[OverrideNotAllowed]"), "{refused}");
    let policy = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachinePolicy", "metadata": {"name": "io"},
        "spec": {"namespaceSelector": {}, "hardware": {"overrides": [
            "spec.template.spec.domain.ioThreadsPolicy", "spec.template.spec.domain.ioThreads",
        ]}},
    });
    env.apply(&policy).await;
    until("the override to be allowed", async || {
        let allowed = overriding(json!({"ioThreadsPolicy": "auto"}));
        let answer = kubectl.apply(&allowed).await?;
        Ok((answer.code == 0).then_some(()).ok_or(answer.stderr))
    })
    .await
    .unwrap();
    machines.until_phase("web", "Running").await.unwrap();
    let instance = env.objects(INSTANCE).get("web").await.unwrap();
    assert_eq!(instance["spec"]["domain"]["ioThreadsPolicy"], "auto");
    if KubevirtCrds::best() == KubevirtCrds::Real {
        let misspelled = json!({"ioThreads": {"supplementalPoolThread": 4}});
        let refused = apply(overriding(misspelled)).await.refused().unwrap();
        let fix = "did you mean 'supplementalPoolThreadCount'?";
        assert!(refused.contains(fix), "{refused}");
    }

    let changed = apply(overriding(json!({"ioThreadsPolicy": "shared"}))).await;
    assert_eq!(
        changed.stderr.matches("[RestartRequired]").count(),
        1,
        "{}",
        changed.stderr
    );
    let expected = json!([{
        "field": "backendOverrides", "current": "as it was", "desired": "as it is now", "action": "Restart",
    }]);
    machines
        .until("web", "to have the override pending", |web| {
            web["status"]["pendingChanges"] == expected
        })
        .await
        .unwrap();
    let vm = env.objects(VM).get("web").await.unwrap();
    assert_eq!(
        vm["spec"]["template"]["spec"]["domain"]["ioThreadsPolicy"],
        "shared"
    );

    // A field that is overridden no longer is the cluster's own again.
    apply(machine("web", &json!({"template": "small"})))
        .await
        .ok()
        .unwrap();
    let is_bare =
        |vm: &Value| vm["spec"]["template"]["spec"]["domain"]["ioThreadsPolicy"].is_null();
    env.objects(VM)
        .until("web", "to have lost the override", is_bare)
        .await
        .unwrap();
}
