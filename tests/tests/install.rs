//! What the manifests install, as the API server takes it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use lab::{Binary, Lab, OPERATOR_NAMESPACE, Options, WEBHOOK_CONFIGURATION, paths};

async fn lab() -> Lab {
    let options = Options {
        operator: true,
        ..Options::bare()
    };
    Lab::with(options).await.unwrap()
}

#[tokio::test]
async fn everything_is_accepted_by_the_api_server() {
    let lab = Lab::with(Options::bare()).await.unwrap();
    let folder = paths::repository().join("manifests/install");
    let kubectl = lab.kubectl();
    // The namespace first: without it a dry run of what goes into it is refused.
    let namespace = folder.join("namespace.yaml").display().to_string();
    let create = ["create", "-f", namespace.as_str()];
    kubectl.run(&create).await.unwrap().ok().unwrap();
    let folder = folder.display().to_string();
    let dry = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-k",
        &folder,
    ];
    let output = kubectl.run(&dry).await.unwrap();
    assert_eq!(output.code, 0, "{output}");
    assert_eq!(output.stderr, "");
    let lines: Vec<_> = output.stdout.lines().collect();
    assert!(lines.contains(&"deployment.apps/machine-webhook serverside-applied (server dry run)"));
}

#[tokio::test]
async fn both_webhooks_are_registered_alike() {
    let lab = lab().await;
    lab.register_webhooks().await.unwrap();
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(lab.client().clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(lab.client().clone());
    let mutating = mutating.get(WEBHOOK_CONFIGURATION).await.unwrap();
    let validating = validating.get(WEBHOOK_CONFIGURATION).await.unwrap();
    let [mutating] = mutating.webhooks.unwrap().try_into().unwrap();
    let [validating] = validating.webhooks.unwrap().try_into().unwrap();

    assert_eq!(mutating.name, "mutate.machines.vitistack.io");
    assert_eq!(validating.name, "validate.machines.vitistack.io");
    assert_eq!(mutating.match_conditions, validating.match_conditions);
    assert_eq!(mutating.match_conditions.unwrap().len(), 2);
    assert_eq!(mutating.rules, validating.rules);
    for policy in [mutating.failure_policy, validating.failure_policy] {
        assert_eq!(policy.as_deref(), Some("Fail"));
    }
    for timeout in [mutating.timeout_seconds, validating.timeout_seconds] {
        assert_eq!(timeout, Some(3));
    }
    assert_eq!(mutating.reinvocation_policy.as_deref(), Some("IfNeeded"));
    assert!(mutating.client_config.ca_bundle.is_none());
}

async fn may(client: &Client, verb: &str, group: &str, resource: &str, name: &str) -> bool {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(OPERATOR_NAMESPACE.into()),
                verb: Some(verb.into()),
                group: Some(group.into()),
                resource: Some(resource.into()),
                subresource: Some(subresource.into()),
                name: Some(name.into()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = reviews
        .create(&PostParams::default(), &review)
        .await
        .unwrap();
    answer.status.unwrap().allowed
}

#[tokio::test]
async fn each_program_may_do_its_own_work_only() {
    let lab = lab().await;
    let account = async |binary: Binary| {
        lab.account_client(OPERATOR_NAMESPACE, binary.account())
            .await
            .unwrap()
    };
    let webhook = account(Binary::Webhook).await;
    assert!(may(&webhook, "get", "", "secrets", "machine-webhook-ca").await);
    assert!(may(&webhook, "watch", "vitistack.io", "machinetemplates", "").await);
    assert!(!may(&webhook, "get", "", "secrets", "another").await);
    assert!(!may(&webhook, "patch", "vitistack.io", "machines", "web").await);
    let group = "admissionregistration.k8s.io";
    let mutating = "mutatingwebhookconfigurations";
    assert!(may(&webhook, "patch", group, mutating, WEBHOOK_CONFIGURATION).await);
    assert!(!may(&webhook, "patch", group, mutating, "another").await);

    let controller = account(Binary::Controller).await;
    assert!(
        may(
            &controller,
            "patch",
            "vitistack.io",
            "machines/status",
            "web"
        )
        .await
    );
    assert!(
        may(
            &controller,
            "delete",
            "kubevirt.io",
            "virtualmachines",
            "web"
        )
        .await
    );
    assert!(!may(&controller, "create", "vitistack.io", "machines", "").await);
    assert!(!may(&controller, "delete", "vitistack.io", "machines", "web").await);
    assert!(!may(&controller, "patch", group, mutating, WEBHOOK_CONFIGURATION).await);
}
