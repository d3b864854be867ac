//! Causes that KubeVirt and the storage report: each reaches the Machine, none is invented, and few writes are needed.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use std::collections::BTreeMap;

use lab::{
    Scenario,
    objects::{CLAIM, DATA_VOLUME, EVENT, INSTANCE, SECRET, VM, condition},
    wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine};

/// Status, reason and message of a condition.
fn verdict<'a>(machine: &'a Value, kind: &str) -> (&'a str, &'a str, &'a str) {
    let found = condition(machine, kind);
    let text = |field: &str| found[field].as_str().unwrap_or_default();
    (text("status"), text("reason"), text("message"))
}

/// Waits until a condition of a Machine has this reason and a message with this part.
async fn says(env: &Environment, name: &str, reason: &str, part: &str) -> Value {
    let what = format!("to say {reason}: {part}");
    let is_said = |machine: &Value| {
        let (status, found, message) = verdict(machine, "Ready");
        status == "False" && found == reason && message.contains(part)
    };
    env.machines().until(name, &what, is_said).await.unwrap()
}

#[tokio::test]
async fn every_cause_of_a_guest_that_does_not_start_reaches_the_machine() {
    let env = Environment::with_best_crds().await;
    let small = json!({"template": "small"});
    let causes = [
        (
            "over-quota",
            Scenario::PodOverQuota,
            "exceeded quota: compute",
            "raise the ResourceQuota",
        ),
        (
            "restricted",
            Scenario::PodNotAllowed,
            "violates PodSecurity",
            "enforce=privileged",
        ),
        (
            "denied",
            Scenario::PodDenied,
            "\"validate.policy.example.com\" denied the request",
            "what the admission webhook asks for",
        ),
        (
            "refused",
            Scenario::InstanceRefused,
            "exceeded quota: guests",
            "raise the ResourceQuota",
        ),
        (
            "no-image",
            Scenario::ImagePull,
            "Back-off pulling image",
            "registry of KubeVirt's images",
        ),
        // KubeVirt says nothing of it.
        (
            "no-mount",
            Scenario::MountFails,
            "FailedMount: MountVolume.SetUp failed for volume \"cloudinit\"",
            "the Secrets it mounts exist",
        ),
    ];
    for (name, scenario, ..) in causes {
        env.simulator.set("default", name, scenario);
        env.apply(&machine(name, &small)).await;
    }
    for (name, _, cause, remedy) in causes {
        let failed = says(&env, name, "VMFailed", cause).await;
        assert!(verdict(&failed, "Ready").2.contains(remedy), "{name}");
        assert_eq!(failed["status"]["phase"], "Failed", "{name}");
    }
    // KubeVirt counts the guests that end before they run.
    env.apply(&machine("crashes", &small)).await;
    let machines = env.machines();
    machines.until_phase("crashes", "Running").await.unwrap();
    let script = Scenario::Shows("CrashLoopBackOff");
    env.simulator.set("default", "crashes", script);
    let shows = |vm: &Value| vm["status"]["printableStatus"] == "CrashLoopBackOff";
    let vms = env.objects(VM);
    vms.until("crashes", "to crash", shows).await.unwrap();
    let failure = json!({
        "consecutiveFailCount": 4, "retryAfterTimestamp": "2026-01-01T00:02:40Z",
    });
    let status = json!({"status": {"startFailure": failure}});
    vms.merge_status("crashes", &status).await.unwrap();
    let text = "ended 4 times before it ran; KubeVirt starts it again at 2026-01-01T00:02:40Z";
    says(&env, "crashes", "VMFailed", text).await;

    env.simulator.set_all(Scenario::Happy);
    for name in causes.map(|(name, ..)| name).iter().chain(&["crashes"]) {
        let ready = machines.until_condition(name, "Ready", "True", "Running");
        ready.await.unwrap();
    }
}

/// The kubelet waits for the Secret, and the VirtualMachine does not show it.
#[tokio::test]
async fn a_secret_that_was_deleted_is_named_when_the_guest_cannot_start_without_it() {
    let env = Environment::new().await;
    let (machines, secrets) = (env.machines(), env.objects(SECRET));
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "init", "namespace": "default"},
        "stringData": {"userdata": "#cloud-config\n"},
    });
    env.apply(&secret).await;
    let spec = |power: &str| {
        let init = json!({"secretRef": {"name": "init"}});
        machine(
            "web",
            &json!({"template": "small", "powerState": power, "cloudInit": init}),
        )
    };
    env.apply(&spec("Running")).await;
    machines.until_phase("web", "Running").await.unwrap();
    env.apply(&spec("Stopped")).await;
    machines.until_phase("web", "Stopped").await.unwrap();
    secrets.delete("init").await.unwrap();
    env.apply(&spec("Running")).await;
    says(&env, "web", "CloudInitSecretNotFound", "Secret 'init'").await;
    env.apply(&secret).await;
    let ready = machines.until_condition("web", "Ready", "True", "Running");
    ready.await.unwrap();
}

/// Each guest is unschedulable until its claim is bound, as on every class that binds immediately.
#[tokio::test]
async fn a_hundred_machines_start_without_a_false_warning() {
    const MANY: usize = 100;
    let env = Environment::new().await;
    let start = env.lab.log_position().await.unwrap();
    env.simulator.set_all(Scenario::PvcPending);
    env.fleet(MANY, &json!({"template": "small"})).await;
    let all = async |what: &str, is: &dyn Fn(&Value) -> bool| {
        wait::until(what, async || {
            let machines = env.machines().list().await?;
            let others = machines.iter().filter(|machine| !is(machine)).count();
            Ok(if machines.len() == MANY && others == 0 {
                Ok(())
            } else {
                Err(others)
            })
        })
        .await
        .unwrap();
    };
    wait::until("every guest to be unschedulable", async || {
        let vms = env.objects(VM).list().await?;
        let blocked = vms
            .iter()
            .filter(|vm| vm["status"]["printableStatus"] == "ErrorUnschedulable");
        let count = blocked.count();
        Ok(if count == MANY { Ok(()) } else { Err(count) })
    })
    .await
    .unwrap();
    all("all to wait for their claims", &|machine| {
        let (status, reason, _) = verdict(machine, "Ready");
        status == "False" && reason == "PVCPending"
    })
    .await;
    env.simulator.set_all(Scenario::Happy);
    all("all to run", &|machine| {
        verdict(machine, "Ready").0 == "True" && machine["status"]["nodeName"].is_string()
    })
    .await;

    // Events are published in their order: when the event of a last guest is there, no other is to come.
    env.apply(&machine("last", &json!({"template": "small"})))
        .await;
    let events = wait::until("the event of the last guest", async || {
        let events = env.objects(EVENT).list().await?;
        let runs =
            |event: &Value| event["reason"] == "Running" && event["regarding"]["name"] == "last";
        Ok(if events.iter().any(runs) {
            Ok(events)
        } else {
            Err(events.len())
        })
    })
    .await
    .unwrap();
    // The API server reports warnings about its own objects in this namespace, too.
    let warns_of_machine =
        |event: &&Value| event["type"] == "Warning" && event["regarding"]["kind"] == "Machine";
    let warnings: Vec<_> = events.iter().filter(warns_of_machine).collect();
    assert!(warnings.is_empty(), "{} {warnings:?}", warnings.len());

    // An event that the API server does not take in time is dropped. Each is made of a status that was written, and of
    // those none is missing.
    let mut written: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for event in env.writes_since(start).await {
        let is_status = event.resource == "machines" && event.subresource == "status";
        if !is_status {
            continue;
        }
        let of_machine = written.entry(event.name).or_default();
        let runs = |status: &Value| status["phase"] == "Running";
        if !of_machine.last().is_some_and(runs) {
            of_machine.push(event.content["status"].clone());
        }
    }
    let fleet = written
        .iter()
        .filter(|(name, _)| name.starts_with("fleet-"));
    let fleet: Vec<_> = fleet.collect();
    if fleet.len() != MANY {
        let mut requests = env.lab.requests_since(start).await.unwrap();
        requests.retain(|it| it.resource == "machines" && !written.contains_key(&it.name));
        let requests = requests
            .iter()
            .map(|it| format!("{} by {}: {}", it.summary(), it.user, it.code));
        let requests: Vec<_> = requests.collect();
        panic!(
            "the statuses of {} Machines were written; of the others: {requests:#?}",
            fleet.len()
        );
    }
    // What a write combines depends on when KubeVirt's reports come, so a Machine of a busy fleet may need one more.
    let writes: usize = fleet.iter().map(|(_, statuses)| statuses.len()).sum();
    assert!(writes <= 3 * MANY, "{writes} writes of statuses");
    for (name, statuses) in fleet {
        for status in statuses {
            let machine = json!({"status": status});
            let (ready, reason, _) = verdict(&machine, "Ready");
            let is_progress = matches!(reason, "Creating" | "PVCPending" | "Running");
            assert!(is_progress, "{name}: {ready} {reason}");
            assert_ne!(status["phase"], "Failed", "{name}");
        }
    }
}

/// With two seconds between the steps, so that none is coalesced with the next.
#[tokio::test]
async fn a_machine_takes_three_status_writes_until_it_runs() {
    let env = Environment::new().await;
    let start = env.lab.log_position().await.unwrap();
    env.simulator.set_all(Scenario::Slow);
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    env.machines().until_phase("web", "Running").await.unwrap();
    let runs = |status: &Value| status["phase"] == "Running";
    let written = wait::until("the log to have every write", async || {
        let mut written: Vec<Value> = Vec::new();
        for event in env.writes_since(start).await {
            let is_status = event.resource == "machines" && event.subresource == "status";
            if is_status && !written.last().is_some_and(runs) {
                written.push(event.content["status"].clone());
            }
        }
        Ok(if written.last().is_some_and(runs) {
            Ok(written)
        } else {
            Err(written.len())
        })
    })
    .await
    .unwrap();
    assert!(written.len() <= 3, "{written:#?}");
}

#[tokio::test]
async fn a_disk_whose_claim_vanished_is_not_made_anew_before_the_user_confirms() {
    let env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    let spec = |power: &str| {
        let data = json!({"name": "data", "size": "10Gi"});
        machine(
            "web",
            &json!({"template": "small", "powerState": power, "disks": [data]}),
        )
    };
    env.apply(&spec("Running")).await;
    machines.until_phase("web", "Running").await.unwrap();

    // Deleted under the running guest. There are no pods here, so a finalizer of ours keeps the claim instead of that
    // which protects claims in use.
    let hold = json!({"metadata": {"finalizers": ["lab.example.com/in-use"]}});
    claims.merge("web-data", &hold).await.unwrap();
    claims.delete("web-data").await.unwrap();
    let reported = says(&env, "web", "PVCDeleting", "all its content is lost").await;
    let volume = claims.get("web-data").await.unwrap()["spec"]["volumeName"].clone();
    let keep = format!("kubectl patch pv {}", volume.as_str().unwrap());
    let message = verdict(&reported, "StorageReady").2;
    assert!(message.contains(&keep), "{message}");
    assert_eq!(reported["status"]["phase"], "Running");

    env.apply(&spec("Stopped")).await;
    env.objects(INSTANCE).until_gone("web").await.unwrap();
    let release = json!({"metadata": {"finalizers": null}});
    claims.merge("web-data", &release).await.unwrap();
    let lost = says(&env, "web", "PVCLost", "recreate-volume=data").await;
    // A start makes nothing, either.
    env.apply(&spec("Running")).await;
    let shows = |vm: &Value| vm["status"]["printableStatus"] == "ErrorPvcNotFound";
    let vms = env.objects(VM);
    vms.until("web", "to miss its claim", shows).await.unwrap();
    says(&env, "web", "PVCLost", "web-data").await;
    assert!(claims.find("web-data").await.unwrap().is_none());

    // The command of the message.
    let message = verdict(&lost, "Ready").2;
    let (_, command) = message.rsplit_once("kubectl ").unwrap();
    let words: Vec<_> = command.split(' ').collect();
    env.lab.kubectl().run(&words).await.unwrap().ok().unwrap();
    let ready = machines.until_condition("web", "Ready", "True", "Running");
    let web = ready.await.unwrap();
    let annotations = &web["metadata"]["annotations"];
    assert_eq!(
        annotations["machine.vitistack.io/recreate-volume"],
        Value::Null
    );
    claims.get("web-data").await.unwrap();
}

#[tokio::test]
async fn an_image_can_be_corrected_until_it_is_imported() {
    let env = Environment::new().await;
    let machines = env.machines();
    let with = |name: &str, url: &str| {
        let disk = |name: &str| json!({"name": name, "size": "20Gi", "image": {"url": url}});
        let disks = json!([disk("root"), disk("data")]);
        machine(name, &json!({"template": "small", "disks": disks}))
    };
    // CDI writes it for each class, and knows nothing of most provisioners.
    let profile = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "StorageProfile",
        "metadata": {"name": "standard"}, "spec": {}, "status": {},
    });
    env.apply(&profile).await;
    env.simulator.set("default", "new", Scenario::ImportHangs);
    env.apply(&with("new", "https://images.example.com/new"))
        .await;
    let text = "the StorageProfile 'standard' of CDI names no access mode";
    says(&env, "new", "ImageImporting", text).await;
    let known = json!([{"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"}]);
    let mut profile = profile;
    profile["status"]["claimPropertySets"] = known;
    env.apply(&profile).await;
    let is_known = |machine: &Value| {
        let (_, reason, message) = verdict(machine, "Ready");
        reason == "ImageImporting" && !message.contains("StorageProfile")
    };
    let known = machines.until("new", "to say no more of the profile", is_known);
    known.await.unwrap();

    let (wrong, right) = (
        "https://images.example.com/wrong",
        "https://images.example.com/right",
    );
    // On storage that binds for the first consumer, the VirtualMachine exists during the import.
    for (name, fails, works, has_guest) in [
        ("web", Scenario::ImportFails, Scenario::Happy, false),
        (
            "late",
            Scenario::FirstConsumerImportFails,
            Scenario::FirstConsumer,
            true,
        ),
    ] {
        env.simulator.set("default", name, fails);
        env.apply(&with(name, wrong)).await;
        says(&env, name, "ImageImportFailed", "404").await;
        let reported = machines.until(name, "to list both imports", |machine| {
            let volumes = machine["status"]["volumes"].as_array();
            volumes.is_some_and(|all| all.iter().all(|it| it["progress"].is_string()))
        });
        reported.await.unwrap();
        let vms = env.objects(VM);
        assert_eq!(vms.find(name).await.unwrap().is_some(), has_guest);
        env.apply(&with(name, right)).await;
        for disk in ["root", "data"] {
            let imports = env.objects(DATA_VOLUME);
            let is_right =
                |import: &Value| import["spec"]["source"]["http"]["url"].as_str() == Some(right);
            let import = format!("{name}-{disk}");
            let corrected = imports.until(&import, "to have the right image", is_right);
            corrected.await.unwrap();
        }
        env.simulator.set("default", name, works);
        machines.until_phase(name, "Running").await.unwrap();
    }

    let late = with("web", "https://images.example.com/late").to_string();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    let refused = env.lab.kubectl().run_with(&apply, late).await.unwrap();
    assert_eq!(refused.code, 1, "{refused}");
    assert!(refused.stderr.contains("DiskChanged"), "{refused}");
}
