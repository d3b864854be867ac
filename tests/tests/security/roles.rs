//! What users may do with the roles that the installation adds to those of Kubernetes.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{Api, api::PostParams};
use lab::{Lab, Options, wait};
use serde_json::json;

/// A user with one ClusterRole in the namespace `default`.
const USERS: [(&str, &str); 4] = [
    ("viewer", "view"),
    ("editor", "edit"),
    ("owner", "admin"),
    ("networker", "machine-network-editor"),
];

/// Whether a user may do this to a resource of ours in a namespace.
async fn may(lab: &Lab, user: &str, verb: &str, resource: &str, namespace: &str) -> bool {
    let reviews: Api<SubjectAccessReview> = Api::all(lab.client().clone());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.into()),
            groups: Some(vec!["system:authenticated".into()]),
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(namespace.into()),
                verb: Some(verb.into()),
                group: Some("vitistack.io".into()),
                resource: Some(resource.into()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = reviews.create(&PostParams::default(), &review).await;
    answer.unwrap().status.unwrap().allowed
}

#[tokio::test]
async fn the_roles_of_kubernetes_include_machines_and_only_reading_of_networks() {
    let options = Options {
        operator: true,
        // It aggregates the roles.
        controller_manager: true,
        ..Options::bare()
    };
    let lab = Lab::with(options).await.unwrap();
    for (user, role) in USERS {
        let subject =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user});
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": user, "namespace": "default"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        });
        lab.apply(&binding).await.unwrap();
    }
    wait::until("the roles to be aggregated", async || {
        let aggregated = may(&lab, "owner", "create", "machines", "default").await;
        Ok(if aggregated { Ok(()) } else { Err("not yet") })
    })
    .await
    .unwrap();

    let (read, write) = (
        ["get", "list", "watch"],
        ["create", "update", "patch", "delete", "deletecollection"],
    );
    // User, and whether it may read and write Machines, and read and write networks.
    for (user, machines, networks) in [
        ("viewer", (true, false), (true, false)),
        ("editor", (true, true), (true, false)),
        ("owner", (true, true), (true, false)),
        ("networker", (false, false), (true, true)),
        ("nobody", (false, false), (false, false)),
    ] {
        for (resource, (reads, writes)) in
            [("machines", machines), ("networkconfigurations", networks)]
        {
            for (verbs, expected) in [(&read[..], reads), (&write[..], writes)] {
                for verb in verbs {
                    let found = may(&lab, user, verb, resource, "default").await;
                    assert_eq!(found, expected, "{user}: {verb} {resource}");
                    assert!(!may(&lab, user, verb, resource, "another").await, "{user}");
                }
            }
        }
        // Templates and images are for everybody to read; hosts, and all that the controller reports, for nobody to write.
        for verb in read {
            assert!(may(&lab, user, verb, "machinetemplates", "").await);
            assert!(may(&lab, user, verb, "machineimages", "").await);
            assert!(!may(&lab, user, verb, "libvirthosts", "").await);
        }
        for verb in write {
            for resource in [
                "machinetemplates",
                "machineimages",
                "libvirthosts",
                "machines/status",
            ] {
                assert!(!may(&lab, user, verb, resource, "default").await, "{user}");
            }
        }
    }
}
