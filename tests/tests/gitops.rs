//! `docs/gitops.md`: its recipes are applied unchanged, and its quotes are compared with the answers of the API server.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeSet;

use kube::{
    Error,
    api::{Patch, PatchParams},
    core::Status,
};
use lab::{
    Lab, Output, ProgramUnderTest, install,
    objects::namespace,
    pages::{Quotes, blocks, page},
};
use serde_json::{Value, json};

mod machines;

const MANAGER: &str = "kustomize-controller";

/// The objects of our kinds in the recipes, in the order of the page, without repetitions.
fn recipes(document: &str) -> Vec<Value> {
    let yaml = blocks(document, "yaml").join("---\n");
    let mut objects = install::parse(&yaml).unwrap();
    let mut seen = BTreeSet::new();
    objects.retain(|object| {
        let ours = object["apiVersion"] == "vitistack.io/v1alpha1";
        let name = object["metadata"]["name"].to_string();
        ours && seen.insert((object["kind"].to_string(), name))
    });
    objects
}

/// Sends a server-side dry run, as Flux does before it applies anything.
async fn dry_run(lab: &Lab, object: &Value) -> Result<Value, Box<Status>> {
    let machines = machines::api_in(
        lab.client(),
        "Machine",
        object["metadata"]["namespace"].as_str().unwrap(),
    );
    let parameters = PatchParams::apply(MANAGER).force().dry_run();
    let name = object["metadata"]["name"].as_str().unwrap();
    match machines
        .patch(name, &parameters, &Patch::Apply(object))
        .await
    {
        Ok(object) => Ok(serde_json::to_value(object).unwrap()),
        Err(Error::Api(status)) => Err(status),
        Err(error) => panic!("{error}"),
    }
}

/// Fails for an answer to which tools with `force` react by deleting the object.
fn assert_keeps_the_object(status: &Status) {
    assert!(![409, 422].contains(&status.code), "{status:?}");
    assert!(!status.message.contains("is immutable"), "{status:?}");
    assert!(!status.message.contains("immutable field"), "{status:?}");
}

const CLIENT_SIDE: &[&str] = &["-f", "-"];
const SERVER_SIDE: &[&str] = &["--server-side", "--field-manager", MANAGER, "-f", "-"];

async fn kubectl(lab: &Lab, verb: &str, options: &[&str], object: &Value) -> Output {
    let arguments: Vec<_> = [verb].iter().chain(options).copied().collect();
    let output = lab
        .kubectl()
        .run_with(&arguments, object.to_string())
        .await
        .unwrap();
    assert_eq!(output.code, 0, "{output}");
    output
}

/// The object with another value at a JSON pointer.
fn with(object: &Value, pointer: &str, value: Value) -> Value {
    let mut object = object.clone();
    *object.pointer_mut(pointer).unwrap() = value;
    object
}

async fn lab() -> (Lab, ProgramUnderTest) {
    let (lab, webhook) = machines::lab(&[]).await;
    for name in ["team-a", "team-b"] {
        lab.apply(&namespace(name, &json!({}))).await.unwrap();
    }
    (lab, webhook)
}

#[tokio::test]
async fn recipes_of_the_page_work_and_its_quotes_are_the_answers_of_the_api_server() {
    let document = page("gitops").unwrap();
    let (lab, mut webhook) = lab().await;
    let mut quotes = Quotes::of(&document);
    let mut answered = |text: &str| quotes.produced(text).unwrap();

    let commands = blocks(&document, "console");
    let [label] = commands
        .iter()
        .map(|text| text.trim())
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let arguments: Vec<_> = label.split(' ').skip(1).collect();
    let labelled = lab.kubectl().run(&arguments).await.unwrap();
    labelled.ok().unwrap();

    let objects = recipes(&document);
    let [template, network, machine] = &objects[..] else {
        panic!("{objects:?}");
    };
    // The API server applies the label once its own watch has reported it.
    let refused = lab::wait::until("both references to be refused", async || {
        let refused = dry_run(&lab, machine).await.unwrap_err();
        let faults = refused
            .details
            .as_ref()
            .map_or(0, |details| details.causes.len());
        Ok(if faults == 2 {
            Ok(refused)
        } else {
            Err(refused)
        })
    })
    .await
    .unwrap();
    assert_eq!(refused.code, 422);
    answered(&refused.message);

    kubectl(&lab, "apply", CLIENT_SIDE, template).await;
    let elsewhere = with(machine, "/metadata/namespace", json!("team-b"));
    answered(&kubectl(&lab, "apply", CLIENT_SIDE, &elsewhere).await.stderr);
    kubectl(&lab, "apply", CLIENT_SIDE, network).await;
    dry_run(&lab, machine).await.unwrap();
    let output = kubectl(&lab, "apply", SERVER_SIDE, machine).await;
    assert!(!output.stderr.contains("NotFound"), "{output}");
    let stored = machines::api_in(lab.client(), "Machine", "team-a")
        .get("web")
        .await;
    let stored = stored.unwrap().data["spec"].take();

    // A changed template causes no drift.
    let template = with(template, "/spec/resources/memory/size", json!("8Gi"));
    kubectl(&lab, "apply", CLIENT_SIDE, &template).await;
    assert_eq!(dry_run(&lab, machine).await.unwrap()["spec"], stored);
    kubectl(&lab, "diff", SERVER_SIDE, machine).await;
    kubectl(&lab, "diff", CLIENT_SIDE, &elsewhere).await;

    let refused = dry_run(&lab, &with(machine, "/spec/template", json!("wbe")))
        .await
        .unwrap_err();
    assert_eq!(refused.code, 403);
    assert_keeps_the_object(&refused);
    answered(&refused.message);
    // Refused by the schema, before a webhook is called.
    let wrong = with(machine, "/spec/template", json!({"name": "web"}));
    assert_keeps_the_object(&dry_run(&lab, &wrong).await.unwrap_err());

    let mut copied = machine.clone();
    copied["spec"]["normalized"] = stored["normalized"].clone();
    assert_eq!(dry_run(&lab, &copied).await.unwrap()["spec"], stored);
    let edited = with(&copied, "/spec/normalized/cpu/cores", json!(8));
    let refused = dry_run(&lab, &edited).await.unwrap_err();
    assert_keeps_the_object(&refused);
    answered(&refused.message);
    copied["spec"]["resources"] = json!({"cpu": {"cores": 4}});
    let copied = with(&copied, "/spec/normalized/cpu/cores", json!(8));
    answered(&kubectl(&lab, "apply", SERVER_SIDE, &copied).await.stderr);

    webhook.kill();
    let unanswered = dry_run(&lab, &with(machine, "/spec/template", json!("small")))
        .await
        .unwrap_err();
    assert_keeps_the_object(&unanswered);
    let start = "Internal error occurred: failed calling webhook";
    assert!(
        unanswered.code == 500 && unanswered.message.starts_with(start),
        "{unanswered:?}"
    );
    quotes.finish().unwrap();
}
