//! Policies and quotas, also of reviews that come together.

use std::sync::atomic::Ordering;

use axum::Router;
use common::api::MachinePolicy;
use common::violation::Reference;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};
use webhook::catalog::{Cache, Found, LiveRow, Lookup};
use webhook::watch::WatchSink as _;

use crate::harness::{app_with, cache};
use crate::{Live, create, denied, send_review};

/// A cache with a policy for the tenants' namespaces.
fn cache_with_policy(rules: &Value) -> Cache {
    let mut policy = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachinePolicy",
        "metadata": {"name": "tenants"},
        "spec": {"namespaceSelector": {"matchLabels": {"tenancy": "shared"}}},
    });
    for (field, value) in rules.as_object().unwrap() {
        policy["spec"][field] = value.clone();
    }
    let policy: MachinePolicy = serde_json::from_value(policy).unwrap();
    let cache = cache();
    cache.policies.apply(policy);
    cache
}

/// The labels of a tenant's namespace, as a live read finds them.
fn tenant() -> Live {
    let labels = [("tenancy".to_owned(), "shared".to_owned())].into();
    let live = Live::default();
    let found = (Reference::Namespace, LiveRow::Namespace(labels));
    live.found.lock().unwrap().push(found);
    live
}

#[tokio::test]
async fn a_review_in_a_namespace_whose_labels_cannot_be_read_is_refused_as_unavailable() {
    let rules = json!({"templates": {"allow": ["large"]}});
    let review = create(&json!({"template": "small"}));
    let app = app_with(cache_with_policy(&rules), Live::default());
    let answer = send_review(app, "/mutate", &review).await;
    let status = &answer["response"]["status"];
    assert_eq!(
        (&status["code"], &status["message"]),
        (
            &json!(503),
            &json!("the labels of the namespace could not be read; try again")
        ),
        "{answer}"
    );
    let app = app_with(cache_with_policy(&rules), tenant());
    let answer = send_review(app, "/mutate", &review).await;
    assert_eq!(denied(&answer), ["spec.template"]);
    // Without a policy the labels are not needed.
    let live = Live::default();
    let answer = send_review(app_with(cache(), live.clone()), "/mutate", &review).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    assert_eq!(live.reads.load(Ordering::Relaxed), 0);
}

/// The review of a new Machine of this name with the block that the mutating stage writes.
async fn normalized(app: &Router, name: &str, cores: u32) -> Value {
    let spec = json!({"template": "small", "resources": {"cpu": {"cores": cores}}});
    let mut review = create(&spec);
    review["request"]["name"] = json!(name);
    review["request"]["object"]["metadata"]["name"] = json!(name);
    let answer = send_review(app.clone(), "/mutate", &review).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    let block = answer["response"]["patch"][0]["value"].clone();
    review["request"]["object"]["spec"]["normalized"] = block;
    review
}

#[tokio::test]
async fn machines_that_were_admitted_a_moment_ago_count_against_the_quota_except_in_dry_runs() {
    let rules = json!({"quota": {"cpu": 10}});
    let app = app_with(cache_with_policy(&rules), tenant());
    let validate = async |review: &Value| send_review(app.clone(), "/validate", review).await;
    let (first, second) = (
        normalized(&app, "first", 6).await,
        normalized(&app, "second", 6).await,
    );
    let mut dry = first.clone();
    dry["request"]["dryRun"] = json!(true);
    assert_eq!(validate(&dry).await["response"]["allowed"], true);
    assert_eq!(validate(&second).await["response"]["allowed"], true);
    assert_eq!(
        denied(&validate(&first).await),
        ["spec.resources.cpu.cores"]
    );
    // The same Machine again: its own share does not count twice.
    assert_eq!(validate(&second).await["response"]["allowed"], true);
    let third = normalized(&app, "third", 4).await;
    assert_eq!(validate(&third).await["response"]["allowed"], true);
}

/// No object exists, and that is answered only once two reviews wait for it.
struct Together {
    both_wait: tokio::sync::Barrier,
}

impl Lookup for Together {
    fn find<'a>(&'a self, _: &'a str, _: &'a Reference) -> BoxFuture<'a, Found> {
        Box::pin(async {
            self.both_wait.wait().await;
            Ok(None)
        })
    }
}

#[tokio::test]
async fn machines_that_are_reviewed_at_the_same_time_do_not_exceed_the_quota_together() {
    let cache = || {
        let cache = cache_with_policy(&json!({"quota": {"cpu": 10}}));
        let namespace = json!({"metadata": {"name": "default", "labels": {"tenancy": "shared"}}});
        let namespace: PartialObjectMeta<Namespace> = serde_json::from_value(namespace).unwrap();
        cache.namespaces.apply(namespace);
        cache
    };
    let plain = app_with(cache(), Live::default());
    let reviews = [
        normalized(&plain, "first", 6),
        normalized(&plain, "second", 6),
    ];
    let [mut first, mut second] = futures::future::join_all(reviews).await.try_into().unwrap();
    for review in [&mut first, &mut second] {
        // A network that does not exist is a warning; it is looked up after the comparison with the quota.
        let spec = &mut review["request"]["object"]["spec"];
        spec["networks"] = json!([{"name": "eth0", "networkName": "missing"}]);
        spec.as_object_mut().unwrap().remove("normalized");
        let answer = send_review(plain.clone(), "/mutate", review).await;
        let block = answer["response"]["patch"][0]["value"].clone();
        review["request"]["object"]["spec"]["normalized"] = block;
    }
    let both_wait = tokio::sync::Barrier::new(2);
    let app = app_with(cache(), Together { both_wait });
    let (first, second) = tokio::join!(
        send_review(app.clone(), "/validate", &first),
        send_review(app.clone(), "/validate", &second),
    );
    let allowed = [&first, &second].map(|answer| answer["response"]["allowed"] == true);
    assert_eq!(allowed.iter().filter(|allowed| **allowed).count(), 1);
    let refused = if allowed[0] { &second } else { &first };
    assert_eq!(denied(refused), ["spec.resources.cpu.cores"]);
}
