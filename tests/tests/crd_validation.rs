//! Faults that the API server refuses by the CRDs alone: every case of the rule tables is sent to one without a
//! webhook.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeMap;

use common::code::{Code, CrdCoverage, Severity};
use kube::{
    Api, Error, ResourceExt as _,
    api::{DeleteParams, DynamicObject, GroupVersionKind, PostParams},
    core::ApiResource,
};
use lab::{
    Lab, Options,
    tables::{self, Case},
};
use serde_json::{Value, json};

/// Codes without a case that can be sent: an unreadable object, and a difference between the two stages of a review.
const CANNOT_BE_SENT: [Code; 2] = [Code::Unreadable, Code::NormalizedMismatch];

/// The message with which the API server refuses the case, if it does.
async fn refusal(lab: &Lab, case: &Case) -> Option<String> {
    let gvk = GroupVersionKind::gvk("vitistack.io", "v1alpha1", &case.kind);
    let resource = ApiResource::from_gvk(&gvk);
    let api: Api<DynamicObject> = if tables::is_cluster_scoped(&case.kind) {
        Api::all_with(lab.client().clone(), &resource)
    } else {
        Api::namespaced_with(lab.client().clone(), "default", &resource)
    };
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let parse = |value: Value| serde_json::from_value::<DynamicObject>(value);
    let old = case.old_with_block().unwrap();
    let mut new = case.object_with_block(old.as_ref()).unwrap();
    let answer = match old {
        None => match parse(new) {
            Ok(object) => api.create(&dry_run, &object).await,
            Err(error) => return Some(error.to_string()),
        },
        Some(old) => {
            let old = parse(old).unwrap();
            // If the old object cannot be stored, the update cannot be sent.
            let stored = match api.create(&PostParams::default(), &old).await {
                Ok(stored) => stored,
                Err(Error::Api(status)) => return Some(status.message),
                Err(other) => panic!("{}: {other}", case.name),
            };
            new["metadata"]["resourceVersion"] = json!(stored.resource_version());
            let name = stored.name_any();
            new["metadata"]["name"] = json!(name);
            let answer = api.replace(&name, &dry_run, &parse(new).unwrap()).await;
            api.delete(&name, &DeleteParams::default()).await.unwrap();
            answer
        }
    };
    match answer {
        Ok(_) => None,
        Err(Error::Api(status)) => Some(status.message),
        Err(other) => panic!("{}: {other}", case.name),
    }
}

#[tokio::test]
async fn without_the_webhook_the_api_server_refuses_what_the_reference_states() {
    let lab = Lab::with(Options {
        controller_manager: false,
        ..Options::default()
    })
    .await
    .unwrap();
    let mut refused: BTreeMap<Code, [usize; 2]> = BTreeMap::new();
    let mut too_strict = vec![];
    let codes = common::rules::codes();
    for family in common::rules::FAMILIES {
        for case in tables::table(family).unwrap() {
            if !case.can_be_sent() {
                continue;
            }
            let answer = refusal(&lab, &case).await;
            for code in &codes {
                let is_reported = |line: &&String| line.ends_with(&format!("[{code}]"));
                let reported = case.refuses.iter().filter(is_reported).count();
                if reported > 0 && case.refuses.len() == reported {
                    refused.entry(*code).or_default()[usize::from(answer.is_some())] += 1;
                }
            }
            if let Some(message) = answer.filter(|_| case.refuses.is_empty()) {
                too_strict.push(format!("{}: {message}", case.name));
            }
        }
    }
    assert_eq!(
        too_strict,
        Vec::<String>::new(),
        "the CRDs refuse what the rules accept"
    );
    let mut wrong = vec![];
    for code in codes
        .iter()
        .filter(|code| code.severity() != Severity::Warn)
    {
        let found = match refused.get(code) {
            None if CANNOT_BE_SENT.contains(code) => CrdCoverage::Nothing,
            None => {
                wrong.push(format!("no case is refused for {code} alone"));
                continue;
            }
            Some([0, _]) => CrdCoverage::All,
            Some([_, 0]) => CrdCoverage::Nothing,
            Some(_) => CrdCoverage::Some,
        };
        if code.crd_coverage() != found {
            wrong.push(format!(
                "{code}: {found:?} {:?}, not {:?}",
                refused[code],
                code.crd_coverage()
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}
