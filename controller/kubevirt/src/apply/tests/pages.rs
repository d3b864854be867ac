//! Lists of claims, which anybody can label and fill up.

use common::names;
use controller_core::client::GuardedClient;
use controller_core::fixtures::{block, machine};
use controller_core::lease::LeaseGuard;
use serde_json::json;

use super::{Api, CLAIMS};
use crate::apply::live;

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
