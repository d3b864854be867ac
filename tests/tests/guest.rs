//! The guest of a Machine: what KubeVirt says of it, and what is asked of it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod stage;

use common::render::kubevirt::PRINTABLE_STATUSES;
use lab::{
    Script,
    objects::{EVENT, INSTANCE, VM, condition},
    wait,
};
use serde_json::{Value, json};

use stage::{Stage, machine, summaries};

/// Type, reason and how often, of the events about an object.
async fn events(stage: &Stage, name: &str) -> Vec<(Value, Value, String)> {
    let events = stage.objects(EVENT).list().await.unwrap();
    let about = events
        .into_iter()
        .filter(|event| event["regarding"]["name"] == name);
    about
        .map(|event| {
            let note = event["note"].as_str().unwrap_or_default().to_owned();
            (event["type"].clone(), event["reason"].clone(), note)
        })
        .collect()
}

/// Waits for an event; gives its note.
async fn told(stage: &Stage, name: &str, kind: &str, reason: &str) -> String {
    wait::until(&format!("the event {reason} about {name}"), async || {
        let all = events(stage, name).await;
        let found = all.iter().find(|(k, r, _)| (k == kind) && (r == reason));
        let note = found.map(|(_, _, note)| note.clone());
        Ok(note.ok_or(all))
    })
    .await
    .unwrap()
}

/// A guest that KubeVirt shows as each of its words, and one it may have some day.
#[tokio::test]
async fn every_word_of_kubevirt_is_understood() {
    let stage = Stage::new().await;
    let machines = stage.machines();
    stage
        .apply(&machine("web", &json!({"template": "small"})))
        .await;
    machines.in_phase("web", "Running").await.unwrap();
    for word in PRINTABLE_STATUSES.into_iter().chain(["NewInSomeVersion"]) {
        let (phase, status, reason, kind) = match word {
            "Running" | "Stopping" | "Terminating" | "Migrating" | "NewInSomeVersion" => {
                ("Running", "True", "Running", "Normal")
            }
            "Paused" => ("Running", "False", "GuestPaused", "Warning"),
            "Unknown" => ("Running", "Unknown", "Unknown", "Warning"),
            "ErrorUnschedulable" => ("Creating", "False", "InsufficientResources", "Warning"),
            "Stopped"
            | "Provisioning"
            | "Starting"
            | "WaitingForVolumeBinding"
            | "WaitingForReceiver" => ("Creating", "False", "Creating", "Normal"),
            _ => ("Failed", "False", "VMFailed", "Warning"),
        };
        stage.simulator.set("default", "web", Script::Shows(word));
        let shows = |vm: &Value| vm["status"]["printableStatus"] == word;
        stage.objects(VM).until("web", word, shows).await.unwrap();
        let web = machines.told("web", "Ready", status, reason).await.unwrap();
        assert_eq!(web["status"]["phase"], phase, "{word}");
        told(&stage, "web", kind, reason).await;
        if phase == "Failed" {
            machines
                .until("web", "to tell the word", |web| {
                    condition(web, "VirtualMachineReady")["message"]
                        == format!("KubeVirt says {word}")
                })
                .await
                .unwrap();
        }
        stage.simulator.set("default", "web", Script::Happy);
        machines
            .told("web", "Ready", "True", "Running")
            .await
            .unwrap();
    }
    // What is said again is counted, and each failure is told in its own words.
    wait::until("an event for each failure", async || {
        let all = events(&stage, "web").await;
        let notes = |wanted: &str| {
            let told = all.iter().filter(|(_, reason, _)| reason == wanted);
            let mut notes: Vec<_> = told.map(|(_, _, note)| note.clone()).collect();
            notes.sort();
            notes
        };
        let failures = [
            "CrashLoopBackOff",
            "DataVolumeError",
            "ErrImagePull",
            "ErrorPvcNotFound",
            "ImagePullBackOff",
        ];
        let failures = failures.map(|word| format!("KubeVirt says {word}"));
        let expected = notes("VMFailed") == failures && notes("Running") == ["the guest runs"];
        Ok(if expected { Ok(()) } else { Err(all) })
    })
    .await
    .unwrap();
    // It was the same guest all the time.
    let web = machines.get("web").await.unwrap();
    assert_eq!(web["status"]["lastRestart"], Value::Null);
}

async fn ask(stage: &Stage, name: &str, text: &str) {
    let text = format!("machine.vitistack.io/restart-requested={text}");
    let annotate = ["annotate", "--overwrite", "machine", name, &text];
    stage
        .lab
        .kubectl()
        .run(&annotate)
        .await
        .unwrap()
        .ok()
        .unwrap();
}

fn done(machine: &Value, request: &str) -> bool {
    machine["status"]["lastRestart"] == json!({"request": request})
}

#[tokio::test]
async fn a_restart_that_is_asked_for_comes_once() {
    let mut stage = Stage::new().await;
    let (machines, instances) = (stage.machines(), stage.objects(INSTANCE));
    // One that KubeVirt starts again by itself, and one that it leaves down.
    for (name, stops, strategy) in [("web", false, "Always"), ("db", true, "RerunOnFailure")] {
        let spec = json!({"template": "small", "guestShutdownStops": stops});
        stage.apply(&machine(name, &spec)).await;
        machines.in_phase(name, "Running").await.unwrap();
        let before = instances.get(name).await.unwrap()["metadata"]["uid"].clone();
        let cores = json!({"spec": {"resources": {"cpu": {"cores": 4}}}});
        machines.merge(name, &cores).await.unwrap();
        let required = machines.told(name, "RestartRequired", "True", "RestartRequired");
        required.await.unwrap();

        ask(&stage, name, "kernel-update").await;
        let again = machines.until(name, "to run again", |machine| {
            done(machine, "kernel-update") && condition(machine, "Ready")["reason"] == "Running"
        });
        let again = again.await.unwrap();
        assert_eq!(again["status"]["pendingChanges"], Value::Null);
        assert_eq!(condition(&again, "RestartRequired"), &Value::Null);
        let instance = instances.get(name).await.unwrap();
        assert_ne!(instance["metadata"]["uid"], before);
        assert_eq!(instance["spec"]["domain"]["cpu"]["cores"], 4);
        let vm = stage.objects(VM).get(name).await.unwrap();
        assert_eq!(vm["spec"]["runStrategy"], strategy);
        let note = told(&stage, name, "Normal", "Restarted").await;
        assert_eq!(note, "the guest was restarted, as was asked: kernel-update");
    }

    // Asked for while nobody is there, after a guest that goes on shutting down: still once.
    let uid = async || instances.get("web").await.unwrap()["metadata"]["uid"].clone();
    let before = uid().await;
    let mark = stage.lab.mark().await.unwrap();
    stage.simulator.set("default", "web", Script::Stuck);
    ask(&stage, "web", "second").await;
    let going = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
    instances.until("web", "to shut down", going).await.unwrap();
    stage.controller.kill();
    stage.controller.start_again().unwrap();
    stage.controller.ready().await.unwrap();
    stage.barrier("later").await;
    assert_eq!(uid().await, before);
    let waits = machines.get("web").await.unwrap();
    assert_eq!(condition(&waits, "Ready")["reason"], "Restarting");
    stage.simulator.set("default", "web", Script::Happy);
    let again = machines.until("web", "to run again", |machine| {
        done(machine, "second") && condition(machine, "Ready")["reason"] == "Running"
    });
    again.await.unwrap();
    let after = uid().await;
    assert_ne!(after, before);
    stage.controller.kill();
    stage.controller.start_again().unwrap();
    stage.controller.ready().await.unwrap();
    stage.barrier("last").await;
    assert_eq!(uid().await, after);
    let deleted = stage.writes_since(mark).await;
    let deleted: Vec<_> = deleted
        .into_iter()
        .filter(|event| event.verb == "delete")
        .collect();
    assert_eq!(deleted.len(), 1, "{:?}", summaries(&deleted));

    wait::until("both restarts of web to be told", async || {
        let all = events(&stage, "web").await;
        let told = all.iter().filter(|(_, reason, _)| reason == "Restarted");
        let mut told: Vec<_> = told.map(|(_, _, note)| note.clone()).collect();
        told.sort();
        let note = |text: &str| format!("the guest was restarted, as was asked: {text}");
        let expected = [note("kernel-update"), note("second")];
        Ok(if told == expected { Ok(()) } else { Err(told) })
    })
    .await
    .unwrap();

    // Off: nothing to do, and nothing is left to do when it is switched on.
    let power = |state: &str| json!({"spec": {"powerState": state}});
    machines.merge("db", &power("Stopped")).await.unwrap();
    machines
        .told("db", "Ready", "True", "Stopped")
        .await
        .unwrap();
    ask(&stage, "db", "second").await;
    let noted = machines.until("db", "to have noted it", |db| done(db, "second"));
    noted.await.unwrap();
    machines.merge("db", &power("Running")).await.unwrap();
    machines
        .told("db", "Ready", "True", "Running")
        .await
        .unwrap();
    let restarts = events(&stage, "db").await;
    let restarts = restarts
        .iter()
        .filter(|(_, reason, _)| reason == "Restarted");
    assert_eq!(restarts.count(), 1);
}

#[tokio::test]
async fn what_the_guest_agent_tells_is_in_the_status() {
    let stage = Stage::with_best_crds().await;
    let machines = stage.machines();
    stage
        .apply(&machine("web", &json!({"template": "small"})))
        .await;
    let web = machines.in_phase("web", "Running").await.unwrap();
    let address = web["status"]["ipAddresses"][0].clone();
    assert_eq!(web["status"]["guestOS"], Value::Null);

    stage.simulator.guest_agent("default", "web").await.unwrap();
    let web = machines.told("web", "AgentConnected", "True", "AgentConnected");
    let web = web.await.unwrap();
    let status = &web["status"];
    assert_eq!(status["ipAddresses"], json!([address, "2001:db8::1"]));
    assert_eq!(
        status["networkInterfaces"],
        json!([{
            "name": "default",
            "macAddress": status["networkInterfaces"][0]["macAddress"],
            "ipAddresses": [address, "2001:db8::1", "fe80::1"],
        }])
    );
    assert_eq!(
        status["guestOS"],
        json!({
            "name": "Fedora Linux", "version": "40 (Cloud Edition)",
            "kernel": "6.8.5-301.fc40.x86_64",
        })
    );
}
