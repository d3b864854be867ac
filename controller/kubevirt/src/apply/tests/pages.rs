//! Live lists of objects that anybody can make and fill up.

use common::names;
use controller_core::client::GuardedClient;
use controller_core::fixtures::{block, machine};
use controller_core::lease::LeaseGuard;
use serde_json::json;

use super::{Api, CLAIMS, VMS};
use crate::apply::claim_user::ClaimUser;
use crate::apply::live;
use crate::objects::VirtualMachine;

#[tokio::test]
async fn claims_are_read_in_small_pages_and_without_what_nobody_reads() {
    let api = Api::new(|call, query| {
        assert_eq!(call, CLAIMS);
        assert!(query.contains("limit=20"), "{query}");
        let is_second = query.contains("continue=second");
        let (name, next) = if is_second {
            ("web-data", "")
        } else {
            ("web-root", "second")
        };
        let claim = json!({"metadata": {"name": name, "annotations": {
            "x.vitistack.io/a": "x".repeat(1 << 20), names::ANNOTATION_MACHINE_UID: "uid-of-web",
        }}});
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"continue": next}, "items": [claim]});
        (200, list)
    });
    let client = GuardedClient::new(api.client.clone(), LeaseGuard::Always);
    let machine = machine(block());
    let claims = live::claims(&client, &machine).await.unwrap();
    let states = live::state_claims(&client, &machine).await.unwrap();
    for claims in [claims, states] {
        let metadata: Vec<_> = claims.iter().map(|claim| json!(claim.metadata)).collect();
        let annotations = json!({names::ANNOTATION_MACHINE_UID: "uid-of-web"});
        let expected = ["web-root", "web-data"]
            .map(|name| json!({"name": name, "labels": {}, "annotations": annotations}));
        assert_eq!(metadata, expected);
    }
}

#[tokio::test]
async fn an_object_is_found_on_any_page_and_the_pages_are_small() {
    let api = Api::new(|call, query| {
        assert_eq!(call, VMS);
        assert!(query.contains("limit=20"), "{query}");
        let is_second = query.contains("continue=second");
        let (name, next) = if is_second {
            ("web", "")
        } else {
            ("db", "second")
        };
        let guest = json!({"metadata": {"name": name, "labels": {"x": "x"}}, "spec": {"a": [1]}});
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"continue": next}, "items": [guest]});
        (200, list)
    });
    let client = GuardedClient::new(api.client.clone(), LeaseGuard::Always);
    for (name, is_found) in [("db", true), ("web", true), ("mail", false)] {
        let is_named = |user: &ClaimUser| user.is_named(name);
        let found = live::first::<VirtualMachine, _>(&client, "default", is_named);
        assert_eq!(found.await.unwrap().is_some(), is_found, "{name}");
    }
}
