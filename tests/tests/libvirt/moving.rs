//! A stopped Machine moves between two libvirtds whose pools have the same folder.

use lab::{
    libvirt::{Libvirt, TlsServer},
    objects::HOST,
    wait,
};
use serde_json::{Value, json};

use crate::environment::{Environment, host, libvirt};

/// The storage class of the shared pool. `shared_as`: `None` if the host does not say that it shares it.
fn storage(shared_as: Option<&str>) -> Value {
    let mut offer = json!({"storageClass": "shared", "pool": "shared", "provisioning": "copy"});
    if let Some(name) = shared_as {
        offer["sharedAs"] = json!(name);
    }
    json!([offer])
}

/// Another libvirtd with a pool on the same folder, registered as the LibvirtHost `there`, which says that it shares
/// nothing.
async fn another_host(env: &Environment, folder: &str) -> Option<(Libvirt, TlsServer)> {
    let there = libvirt().await?;
    there.pool("images").await.unwrap();
    for arguments in [
        &["pool-define-as", "shared", "dir", "--target", folder][..],
        &["pool-start", "shared"],
    ] {
        there.virsh(arguments).await.unwrap().ok().unwrap();
    }
    let server = there.serve_tls("127.0.0.1").await.unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "there", "namespace": "default"},
        "stringData": server.credentials,
    });
    env.lab.apply(&secret).await.unwrap();
    let mut object = host();
    object["metadata"]["name"] = json!("there");
    object["spec"]["uri"] = json!(server.uri);
    object["spec"]["credentialsSecretRef"] = json!({"namespace": "default", "name": "there"});
    object["spec"]["storage"] = storage(None);
    env.lab.apply(&object).await.unwrap();
    let hosts = env.lab.objects(HOST, "");
    let ready = hosts.until_condition("there", "Ready", "True", "Ready");
    ready.await.unwrap();
    Some((there, server))
}

/// A Machine whose root disk is a copy in the shared pool.
fn spec(power: &str) -> Value {
    json!({
        "powerState": power,
        "disks": [{"name": "root", "size": "1Gi", "storageClass": "shared", "image": {"volume": "guest.raw"}}],
    })
}

/// Requests a move with kubectl and these options; returns what it prints.
async fn request(env: &Environment, text: &str, options: &[&str]) -> Result<String, String> {
    let annotation = format!("machine.vitistack.io/migrate-requested={text}");
    let args = ["annotate", "--overwrite", "machine", "vm", &annotation];
    let args = [&args, options].concat();
    let output = env.lab.kubectl().run(&args).await.unwrap();
    if output.code == 0 {
        return Ok(output.stdout);
    }
    Err(output.refused().unwrap())
}

/// Waits until a request is refused with this: the webhook has read the hosts as they are now. Until then a request may be
/// accepted, so none is stored.
async fn until_refused(env: &Environment, text: &str) {
    wait::until("the move to be refused", async || {
        Ok(match request(env, "no", &["--dry-run=server"]).await {
            Err(refused)
                if refused.contains(text) && refused.contains("[MigrationNotPossible]") =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        })
    })
    .await
    .unwrap();
}

async fn until_accepted(env: &Environment, text: &str) {
    wait::until("the move to be accepted", async || {
        Ok(request(env, text, &[]).await)
    })
    .await
    .unwrap();
}

/// Waits until the status has the end of the move that was requested with this text.
async fn until_answered(env: &Environment, text: &str) -> Value {
    env.until("vm", "to have moved or not", |machine| {
        let last = &machine["status"]["lastMigration"];
        last["request"] == text && last["result"].is_string()
    })
    .await
}

#[tokio::test]
async fn a_stopped_machine_moves_to_a_host_that_shares_its_pool() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let folder = env.libvirt.pool("shared").await.unwrap();
    let hosts = env.lab.objects(HOST, "");
    let shared = json!({"spec": {"storage": storage(Some("nfs"))}});
    hosts.merge("here", &shared).await.unwrap();
    env.apply("vm", &spec("Running")).await;
    let first = env.until_report("vm", "its first boot", |_| true).await;
    assert_eq!(first.boots, 1);
    until_refused(
        &env,
        "the guest runs, and on libvirt a Machine is moved while it is stopped",
    )
    .await;
    env.apply("vm", &spec("Stopped")).await;
    env.until("vm", "to stop", |it| it["status"]["phase"] == "Stopped")
        .await;
    let disks = || {
        let files = std::fs::read_dir(&folder).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut disks: Vec<_> = names.filter(|name| name.contains(".root.")).collect();
        disks.sort();
        disks
    };
    let before = disks();
    assert_eq!(before.len(), 2, "the copy and its marker: {before:?}");

    until_refused(&env, "there is no other LibvirtHost").await;
    let folder = folder.display().to_string();
    let Some((there, _server)) = another_host(&env, &folder).await else {
        return;
    };
    until_refused(&env, "there does not share the storage of class 'shared'").await;
    let full = json!({"spec": {"storage": storage(Some("nfs")), "reserved": {"memory": "999Ti"}}});
    hosts.merge("there", &full).await.unwrap();
    until_refused(&env, "there has 0 of 0 memory left").await;
    let free = json!({"spec": {"reserved": null}});
    hosts.merge("there", &free).await.unwrap();

    // What libvirt has of the guest beside its definition would be lost: the move is given up.
    let domain = env.domain("vm").await;
    env.virsh(&["snapshot-create-as", &domain, "before"]).await;
    until_accepted(&env, "snapshot").await;
    let failed = until_answered(&env, "snapshot").await;
    let last = &failed["status"]["lastMigration"];
    assert_eq!(last["result"], "Failed", "{last}");
    let text = last["message"].as_str().unwrap();
    assert!(text.contains("the Machine is where it was"), "{text}");
    assert!(text.contains("snapshot"), "{text}");
    assert_eq!(failed["status"]["host"], "here");
    assert_eq!(last["from"], Value::Null);
    env.virsh(&["snapshot-delete", &domain, "before"]).await;

    until_accepted(&env, "yes").await;
    let moved = until_answered(&env, "yes").await;
    let status = &moved["status"];
    assert_eq!(status["lastMigration"]["result"], "Succeeded", "{status}");
    assert_eq!(
        (&status["host"], &status["phase"]),
        (&json!("there"), &json!("Stopped"))
    );
    assert_eq!(env.domains().await.len(), 0);
    let all = there
        .virsh(&["list", "--all", "--name"])
        .await
        .unwrap()
        .ok()
        .unwrap();
    assert_eq!(all.trim(), domain);
    assert_eq!(disks(), before);

    // The disk has counted the first boot.
    env.apply("vm", &spec("Running")).await;
    let report = there.wait_for_report(&domain, "its second boot", |_| true);
    assert_eq!(report.await.unwrap().boots, 2);
    env.delete("vm").await;
    assert_eq!(disks(), [""; 0]);
}
