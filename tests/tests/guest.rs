//! The guest of a Machine: the status that KubeVirt reports, requested restarts, and the guest agent.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use common::render::kubevirt::PRINTABLE_STATUSES;
use lab::{
    Scenario, Subresources,
    objects::{EVENT, INSTANCE, VM, condition},
    wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine, summaries};

/// Type, reason and note of the events about an object.
async fn events(env: &Environment, name: &str) -> Vec<(Value, Value, String)> {
    let events = env.objects(EVENT).list().await.unwrap();
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

/// Waits for an event and returns its note.
async fn reported(env: &Environment, name: &str, kind: &str, reason: &str) -> String {
    wait::until(&format!("the event {reason} about {name}"), async || {
        let all = events(env, name).await;
        let found = all.iter().find(|(k, r, _)| (k == kind) && (r == reason));
        let note = found.map(|(_, _, note)| note.clone());
        Ok(note.ok_or(all))
    })
    .await
    .unwrap()
}

/// Each `printableStatus` of KubeVirt, and one that no version has.
#[tokio::test]
async fn every_printable_status_of_kubevirt_is_mapped() {
    let env = Environment::new().await;
    let machines = env.machines();
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    machines.until_phase("web", "Running").await.unwrap();
    for word in PRINTABLE_STATUSES.into_iter().chain(["NewInSomeVersion"]) {
        let (phase, status, reason, kind) = match word {
            "Running" | "Migrating" | "NewInSomeVersion" => {
                ("Running", "True", "Running", "Normal")
            }
            "Stopping" | "Terminating" => ("Running", "False", "Stopping", "Normal"),
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
        env.simulator.set("default", "web", Scenario::Shows(word));
        let shows = |vm: &Value| vm["status"]["printableStatus"] == word;
        env.objects(VM).until("web", word, shows).await.unwrap();
        if reason == "Running" {
            // Before, it was Ready for the same reason.
            env.barrier(&format!("after-{}", word.to_lowercase())).await;
            let web = machines.get("web").await.unwrap();
            let ready = condition(&web, "Ready");
            assert_eq!(
                (&ready["status"], &ready["reason"]),
                (&json!(status), &json!(reason)),
                "{word}"
            );
        }
        let web = machines
            .until_condition("web", "Ready", status, reason)
            .await
            .unwrap();
        assert_eq!(web["status"]["phase"], phase, "{word}");
        reported(&env, "web", kind, reason).await;
        if phase == "Failed" {
            machines
                .until("web", "to report the printableStatus", |web| {
                    condition(web, "VirtualMachineReady")["message"]
                        == format!("KubeVirt reports {word}")
                })
                .await
                .unwrap();
        }
        env.simulator.set("default", "web", Scenario::Happy);
        machines
            .until_condition("web", "Ready", "True", "Running")
            .await
            .unwrap();
    }
    // A word that is not known says nothing of a guest that has not come up.
    let word = Scenario::Shows("NewInSomeVersion");
    env.simulator.set("default", "later", word);
    env.apply(&machine("later", &json!({"template": "small"})))
        .await;
    let unknown = machines.until_condition("later", "Ready", "Unknown", "Unknown");
    let message = condition(&unknown.await.unwrap(), "Ready")["message"].clone();
    let message = message.as_str().unwrap();
    assert!(message.contains("'NewInSomeVersion', which"), "{message}");
    // A repeated event is counted, and each failure has an event of its own.
    wait::until("an event for each failure", async || {
        let all = events(&env, "web").await;
        let notes = |wanted: &str| {
            let reported = all.iter().filter(|(_, reason, _)| reason == wanted);
            let mut notes: Vec<_> = reported.map(|(_, _, note)| note.clone()).collect();
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
        let failures = failures.map(|word| format!("KubeVirt reports {word}"));
        let expected = notes("VMFailed") == failures && notes("Running") == ["the guest runs"];
        Ok(if expected { Ok(()) } else { Err(all) })
    })
    .await
    .unwrap();
    // The guest was never replaced.
    let web = machines.get("web").await.unwrap();
    assert_eq!(web["status"]["lastRestart"], Value::Null);
}

async fn request_restart(env: &Environment, name: &str, text: &str) {
    let text = format!("machine.vitistack.io/restart-requested={text}");
    let annotate = ["annotate", "--overwrite", "machine", name, &text];
    env.lab
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
async fn a_requested_restart_happens_once() {
    let mut env = Environment::new().await;
    let (machines, instances) = (env.machines(), env.objects(INSTANCE));
    // KubeVirt restarts one of the guests without a request, and not the other one.
    for (name, stops, strategy) in [("web", false, "Always"), ("db", true, "RerunOnFailure")] {
        let spec = json!({"template": "small", "guestShutdownStops": stops});
        env.apply(&machine(name, &spec)).await;
        machines.until_phase(name, "Running").await.unwrap();
        let before = instances.get(name).await.unwrap()["metadata"]["uid"].clone();
        let cores = json!({"spec": {"resources": {"cpu": {"cores": 4}}}});
        machines.merge(name, &cores).await.unwrap();
        let required = machines.until_condition(name, "RestartRequired", "True", "RestartRequired");
        required.await.unwrap();

        request_restart(&env, name, "kernel-update").await;
        let again = machines.until(name, "to run again", |machine| {
            done(machine, "kernel-update") && condition(machine, "Ready")["reason"] == "Running"
        });
        let again = again.await.unwrap();
        assert_eq!(again["status"]["pendingChanges"], Value::Null);
        assert_eq!(condition(&again, "RestartRequired"), &Value::Null);
        let instance = instances.get(name).await.unwrap();
        assert_ne!(instance["metadata"]["uid"], before);
        assert_eq!(instance["spec"]["domain"]["cpu"]["cores"], 4);
        let vm = env.objects(VM).get(name).await.unwrap();
        assert_eq!(vm["spec"]["runStrategy"], strategy);
        let note = reported(&env, name, "Normal", "Restarted").await;
        assert_eq!(note, "the guest was restarted, as requested: kernel-update");
    }

    // Requested while no controller runs, and with a guest that shuts down slowly: it still happens once.
    let uid = async || instances.get("web").await.unwrap()["metadata"]["uid"].clone();
    let before = uid().await;
    let mark = env.lab.log_position().await.unwrap();
    env.simulator.set("default", "web", Scenario::Stuck);
    request_restart(&env, "web", "second").await;
    let going = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
    instances.until("web", "to shut down", going).await.unwrap();
    env.controller.kill();
    env.controller.start_again().unwrap();
    env.controller.ready().await.unwrap();
    env.barrier("later").await;
    assert_eq!(uid().await, before);
    let waits = machines.get("web").await.unwrap();
    assert_eq!(condition(&waits, "Ready")["reason"], "Restarting");
    env.simulator.set("default", "web", Scenario::Happy);
    let again = machines.until("web", "to run again", |machine| {
        done(machine, "second") && condition(machine, "Ready")["reason"] == "Running"
    });
    again.await.unwrap();
    let after = uid().await;
    assert_ne!(after, before);
    // The event is sent after the status was written, and one that is not sent yet is lost with its controller.
    wait::until("both restarts of web to be reported", async || {
        let all = events(&env, "web").await;
        let reported = all.iter().filter(|(_, reason, _)| reason == "Restarted");
        let mut reported: Vec<_> = reported.map(|(_, _, note)| note.clone()).collect();
        reported.sort();
        let note = |text: &str| format!("the guest was restarted, as requested: {text}");
        let expected = [note("kernel-update"), note("second")];
        Ok(if reported == expected {
            Ok(())
        } else {
            Err(reported)
        })
    })
    .await
    .unwrap();
    env.controller.kill();
    env.controller.start_again().unwrap();
    env.controller.ready().await.unwrap();
    env.barrier("last").await;
    assert_eq!(uid().await, after);
    let deleted = env.writes_since(mark).await;
    let deleted: Vec<_> = deleted
        .into_iter()
        .filter(|event| event.verb == "delete")
        .collect();
    assert_eq!(deleted.len(), 1, "{:?}", summaries(&deleted));

    // A request while the Machine is off is recorded as done, and causes no restart when it is switched on.
    let power = |state: &str| json!({"spec": {"powerState": state}});
    machines.merge("db", &power("Stopped")).await.unwrap();
    machines
        .until_condition("db", "Ready", "True", "Stopped")
        .await
        .unwrap();
    request_restart(&env, "db", "second").await;
    let done_while_off = machines.until("db", "to have recorded the request", |db| {
        done(db, "second")
    });
    done_while_off.await.unwrap();
    machines.merge("db", &power("Running")).await.unwrap();
    machines
        .until_condition("db", "Ready", "True", "Running")
        .await
        .unwrap();
    let restarts = events(&env, "db").await;
    let restarts = restarts
        .iter()
        .filter(|(_, reason, _)| reason == "Restarted");
    assert_eq!(restarts.count(), 1);
}

/// A restart that no node can carry out is not reported as done.
#[tokio::test]
async fn a_restart_is_reported_when_the_new_guest_has_come_up() {
    let env = Environment::new().await;
    let machines = env.machines();
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    machines.until_phase("web", "Running").await.unwrap();
    env.simulator.set("default", "web", Scenario::Unschedulable);
    request_restart(&env, "web", "once").await;
    let waits = machines.until_condition("web", "Ready", "False", "InsufficientResources");
    let waits = waits.await.unwrap();
    assert!(!done(&waits, "once"), "{}", waits["status"]);
    let sent = events(&env, "web").await;
    assert!(sent.iter().all(|(_, reason, _)| reason != "Restarted"));
    // The other reasons of this Machine were published before.
    reported(&env, "web", "Warning", "InsufficientResources").await;
    let sent = events(&env, "web").await;
    assert!(sent.iter().all(|(_, reason, _)| reason != "Restarted"));

    env.simulator.set("default", "web", Scenario::Happy);
    reported(&env, "web", "Normal", "Restarted").await;
    let up = machines.until("web", "to have restarted", |web| done(web, "once"));
    assert_eq!(condition(&up.await.unwrap(), "Ready")["reason"], "Running");
}

#[tokio::test]
async fn guest_agent_data_is_in_the_status() {
    let env = Environment::with_best_crds().await;
    let machines = env.machines();
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    let web = machines.until_phase("web", "Running").await.unwrap();
    let address = web["status"]["ipAddresses"][0].clone();
    assert_eq!(web["status"]["guestOS"], Value::Null);

    env.simulator.guest_agent("default", "web").await.unwrap();
    let web = machines.until_condition("web", "AgentConnected", "True", "AgentConnected");
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

#[tokio::test]
async fn a_watchdog_and_probes_are_in_the_guest_and_others_wait_for_a_restart() {
    let env = Environment::with_best_crds().await;
    let (machines, kubectl) = (env.machines(), env.lab.kubectl());
    let healthy = |action: &str, liveness: Value| {
        machine(
            "web",
            &json!({
                "template": "small",
                "watchdog": {"action": action},
                "probes": {"readiness": {"httpGet": {"port": 80}}, "liveness": liveness},
            }),
        )
    };
    let apply = async |machine: Value| kubectl.apply(&machine).await.unwrap();
    let both = json!({"guestAgentPing": {}, "tcpSocket": {"port": 22}});
    let refused = apply(healthy("PowerOff", both)).await.refused().unwrap();
    let fault = "spec.probes.liveness.tcpSocket: Forbidden: a probe is made in one way";
    assert!(refused.contains(fault), "{refused}");

    env.apply(&healthy("PowerOff", json!({"guestAgentPing": {}})))
        .await;
    machines.until_phase("web", "Running").await.unwrap();
    let instance = env.objects(INSTANCE).get("web").await.unwrap();
    let spec = &instance["spec"];
    let watchdog = json!({"name": "watchdog", "i6300esb": {"action": "poweroff"}});
    assert_eq!(spec["domain"]["devices"]["watchdog"], watchdog);
    let request = json!({"path": "/", "port": 80, "scheme": "HTTP"});
    assert_eq!(spec["readinessProbe"]["httpGet"], request);
    assert_eq!(spec["livenessProbe"]["guestAgentPing"], json!({}));
    assert_eq!(spec["livenessProbe"]["periodSeconds"], 10);

    // What admission announces is what is pending.
    let other = json!({"guestAgentPing": {}, "periodSeconds": 60});
    let changed = apply(healthy("Shutdown", other)).await;
    let announced = changed.stderr.matches("[RestartRequired]").count();
    assert_eq!(announced, 2, "{}", changed.stderr);
    let expected = json!([
        {"field": "watchdog", "current": "PowerOff", "desired": "Shutdown", "action": "Restart"},
        {"field": "probes.liveness", "current": "as it was", "desired": "as it is now", "action": "Restart"},
    ]);
    machines
        .until("web", "to have both changes pending", |web| {
            web["status"]["pendingChanges"] == expected
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_guest_is_reset_once_for_each_request_if_it_runs_and_kubevirt_can() {
    let env = Environment::new().await;
    let (machines, kubectl) = (env.machines(), env.lab.kubectl());
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    machines.until_phase("web", "Running").await.unwrap();
    let request = async |text: &str| {
        let annotation = format!("machine.vitistack.io/reset-requested={text}");
        let annotate = ["annotate", "--overwrite", "machine", "web", &annotation];
        kubectl.run(&annotate).await.unwrap().ok().unwrap();
        let is_answered = |web: &Value| web["status"]["lastReset"]["request"] == text;
        let web = machines.until("web", "to have its answer", is_answered);
        web.await.unwrap()["status"]["lastReset"].take()
    };
    let refused = |last: &Value, why: &str| {
        assert_eq!(last["result"], "Refused", "{last}");
        assert!(last["message"].as_str().unwrap().contains(why), "{last}");
    };
    refused(&request("too-old").await, "that needs version 1.7 or later");
    let note = reported(&env, "web", "Warning", "ResetRefused").await;
    assert!(note.contains("1.7"), "{note}");

    let kubevirt = Subresources::start(env.lab.client()).await.unwrap();
    let before = env.objects(INSTANCE).get("web").await.unwrap();
    let last = request("hangs").await;
    assert_eq!(last, json!({"request": "hangs", "result": "Done"}));
    let note = reported(&env, "web", "Normal", "Reset").await;
    assert!(note.contains("hangs"), "{note}");
    env.barrier("later").await;
    assert_eq!(kubevirt.resets("default", "web"), 1);
    let after = env.objects(INSTANCE).get("web").await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);

    let stop = json!({"spec": {"powerState": "Stopped"}});
    machines.merge("web", &stop).await.unwrap();
    machines.until_phase("web", "Stopped").await.unwrap();
    refused(&request("off").await, "does not run");
    assert_eq!(kubevirt.resets("default", "web"), 1);
}
