//! Two controllers: the older one is frozen, loses the Lease while it works on the host, and continues after the newer
//! one has acted.

use std::{fs, os::unix::fs::MetadataExt as _};

use lab::{ProgramUnderTest, image_server::ImageServer, libvirt::image, objects::HOST, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::environment::Environment;

/// Path of the image at the server.
const PATH: &str = "guest.raw";

fn signal(program: &mut ProgramUnderTest, signal: Signal) {
    let id = i32::try_from(program.process().id()).unwrap();
    kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
}

/// Continues a frozen controller, and waits until it reports that it is no longer the leader.
async fn thaw(program: &mut ProgramUnderTest) {
    let losses = |log: &str| log.matches("the Lease is lost").count();
    let before = losses(&program.log());
    signal(program, Signal::CONT);
    wait::until("the older controller to notice", async || {
        let log = program.log();
        Ok((losses(&log) > before).then_some(()).ok_or("not yet"))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_controller_that_continues_after_its_lease_overwrites_deletes_and_starts_nothing() {
    let Some(mut env) = Environment::new().await else {
        return;
    };
    let monitor = env.monitor();
    let server = ImageServer::start().unwrap();
    let url = server.serve_half(PATH, fs::read(image().await.unwrap()).unwrap());
    let sources = json!({"spec": {"imageSources": [server.url("")]}});
    let hosts = env.lab.objects(HOST, "");
    hosts.merge("here", &sources).await.unwrap();
    let disk =
        json!({"name": "root", "size": "1Gi", "storageClass": "local", "image": {"url": url}});
    let spec = json!({"disks": [disk]});

    // The older one uploads the first half of the image, and waits for the second.
    env.apply("vm", &spec).await;
    let images = env.volumes.with_file_name("images");
    wait::until("a part of the image to be uploaded", async || {
        let files = fs::read_dir(&images)?.flatten();
        let mut written = files.filter(|it| {
            it.file_name()
                .as_encoded_bytes()
                .starts_with(b"vitistack-image-")
        });
        let begun = written.any(|it| it.metadata().is_ok_and(|it| it.blocks() > 0));
        Ok(begun.then_some(()).ok_or("no volume with content"))
    })
    .await
    .unwrap();
    signal(&mut env.controller, Signal::STOP);
    let mut newer = env.lab.controller(&[]).await.unwrap();
    env.until_reachable("vm").await;
    let first = env.until_report("vm", "its boot", |it| it.boots == 1).await;
    assert_eq!(server.requests(PATH), 2, "one fetch of each controller");
    server.resume();
    thaw(&mut env.controller).await;
    env.assert_same_run(&first).await;

    // The newer one is frozen while it deletes the Machine; the older one deletes it, and makes another one.
    env.machines().delete("vm").await.unwrap();
    let domain = env.domain("vm").await;
    wait::until("the guest to be off", async || {
        let state = env.libvirt.virsh(&["domstate", &domain]).await?;
        // If the domain is undefined already, only its volumes are left.
        let is_off = state.code != 0 || state.stdout.trim() == "shut off";
        Ok(is_off.then_some(()).ok_or(state.stdout))
    })
    .await
    .unwrap();
    signal(&mut newer, Signal::STOP);
    let machines = env.machines();
    machines.until_gone("vm").await.unwrap();
    env.apply("vm", &spec).await;
    env.until_reachable("vm").await;
    let second = env.until_report("vm", "its boot", |it| it.boots == 1).await;
    assert_ne!(second.boot, first.boot);
    thaw(&mut newer).await;
    env.assert_same_run(&second).await;
    assert_eq!(server.requests(PATH), 2, "the image is still there");
    assert_eq!(monitor.finish().unwrap(), [""; 0]);
}
