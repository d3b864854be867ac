//! What a stolen token can do: the permissions that the API server reports for each ServiceAccount are those that
//! `docs/security.md` lists.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::authorization::v1::{
    ResourceRule, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use lab::{
    Binary, Lab, OPERATOR_NAMESPACE, Options,
    pages::{page, rows, section},
};

/// The order in which verbs are listed.
const VERBS: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

/// Groups that every authenticated user may ask about itself.
const OF_EVERYBODY: [&str; 2] = ["authentication.k8s.io", "authorization.k8s.io"];

/// Resource with its group, and the names of its objects, empty for all of them; and the verbs.
type Rules = BTreeMap<(String, String), BTreeSet<usize>>;

/// The permissions of a client in a namespace, those in all namespaces included.
async fn rules(client: &Client, namespace: &str) -> Rules {
    let reviews: Api<SelfSubjectRulesReview> = Api::all(client.clone());
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some(namespace.to_owned()),
        },
        ..SelfSubjectRulesReview::default()
    };
    let answer = reviews.create(&PostParams::default(), &review).await;
    let status = answer.unwrap().status.unwrap();
    assert!(!status.incomplete, "{status:?}");
    let mut rules = Rules::new();
    for rule in status.resource_rules {
        let ResourceRule {
            api_groups,
            resource_names,
            resources,
            verbs,
        } = rule;
        let names = resource_names.unwrap_or_default().join(", ");
        for group in api_groups.unwrap_or_default() {
            if OF_EVERYBODY.contains(&group.as_str()) {
                continue;
            }
            for resource in resources.iter().flatten() {
                let resource = match group.as_str() {
                    "" => resource.clone(),
                    group => format!("{resource}.{group}"),
                };
                let known = rules.entry((resource, names.clone())).or_default();
                for verb in &verbs {
                    // A verb that is not listed here fails the test.
                    known.insert(VERBS.iter().position(|known| known == verb).unwrap());
                }
            }
        }
    }
    rules
}

/// The rows of the table, as the page has them.
fn listed(program: &str, scope: &str, rules: Rules) -> impl Iterator<Item = String> {
    rules.into_iter().map(move |((resource, names), verbs)| {
        let verbs: Vec<_> = verbs.into_iter().map(|verb| VERBS[verb]).collect();
        let scope = match names.as_str() {
            "" => scope.to_owned(),
            names => format!("{scope}: `{}`", names.replace(", ", "`, `")),
        };
        format!(
            "| {program} | `{resource}` | {} | {scope} |",
            verbs.join(", ")
        )
    })
}

#[tokio::test]
async fn a_stolen_token_can_do_what_the_page_lists_and_nothing_else() {
    let options = Options {
        operator: true,
        ..Options::bare()
    };
    let lab = Lab::with(options).await.unwrap();
    let mut expected = Vec::new();
    for (binary, program) in [
        (Binary::Webhook, "webhook"),
        (Binary::Controller, "controller"),
    ] {
        let client = lab.account_client(OPERATOR_NAMESPACE, binary.account());
        let client = client.await.unwrap();
        let everywhere = rules(&client, "default").await;
        let mut own = rules(&client, OPERATOR_NAMESPACE).await;
        own.retain(|rule, verbs| everywhere.get(rule) != Some(verbs));
        expected.extend(listed(program, "everywhere", everywhere));
        expected.extend(listed(program, "own namespace", own));
    }
    let page = page("security").unwrap();
    let rows = rows(section(&page, "What a stolen token can do").unwrap());
    // The first row is the header.
    let found: Vec<_> = rows[1..]
        .iter()
        .map(|cells| format!("| {} |", cells.join(" | ")))
        .collect();
    assert!(
        found == expected,
        "the table of docs/security.md should be:\n{}",
        expected.join("\n")
    );
}
