//! What the API server refuses by itself, when no webhook stands before it: every case of the tables of
//! rules is sent to one that has the CRDs alone.
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

/// No object at all, and what is between the two stages of a review.
const CANNOT_BE_SENT: [Code; 2] = [Code::Unreadable, Code::NormalizedMismatch];

/// Whether the API server refuses the case, and with what.
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
            // What cannot be stored cannot be changed.
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
async fn a_bypassed_webhook_leaves_what_the_reference_says() {
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
                let is_told = |line: &&String| line.ends_with(&format!("[{code}]"));
                let told = case.refuses.iter().filter(is_told).count();
                if told > 0 && case.refuses.len() == told {
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
            None => panic!("no case is refused for {code} alone"),
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
