//! Two controllers: the older one is frozen, loses the Lease while it works on the host, and continues after the newer
//! one has acted.

use std::{fs, io::Write as _, os::unix::fs::MetadataExt as _};

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

/// Waits until libvirt has begun to copy the image to a disk, and freezes the controller that had it copied. Returns the
/// name of the copy, which is not complete.
async fn freeze_during_a_copy(env: &mut Environment) -> String {
    let begun = async || {
        let copies = env.files_of(".root.raw.attempt-").into_iter();
        let mut copies = copies.filter(|name| !name.ends_with(".complete"));
        let copy = copies.next();
        if copy.is_some() {
            signal(&mut env.controller, Signal::STOP);
        }
        Ok(copy.ok_or("no copy"))
    };
    let copy = wait::until_at_once("a copy to begin", begun).await.unwrap();
    let marker = format!("{copy}.complete");
    assert_eq!(env.files_of(&marker), [""; 0], "the copy is complete");
    copy
}

#[tokio::test]
async fn a_copy_of_a_controller_that_lost_its_lease_leaves_the_disk_of_the_next_one() {
    let Some(mut env) = Environment::new().await else {
        return;
    };
    let monitor = env.monitor();
    let storage = json!({"spec": {"storage": [
        {"storageClass": "local", "pool": "volumes"},
        {"storageClass": "copied", "pool": "volumes", "provisioning": "copy", "format": "raw"},
    ]}});
    let hosts = env.lab.objects(HOST, "");
    hosts.merge("here", &storage).await.unwrap();
    // So large that the copy takes longer than it takes to see it.
    let large = env.libvirt.path("large.raw");
    fs::copy(image().await.unwrap(), &large).unwrap();
    let mut file = fs::OpenOptions::new().append(true).open(&large).unwrap();
    file.write_all(&vec![7; 512 << 20]).unwrap();
    let images = env.volumes.with_file_name("images");
    let volume = env.libvirt.volume(&images, "large.raw", &large).await;
    volume.unwrap();
    let disk = json!({
        "name": "root", "size": "2Gi", "storageClass": "copied", "image": {"volume": "large.raw"},
    });
    env.apply("vm", &json!({"disks": [disk]})).await;
    let older = freeze_during_a_copy(&mut env).await;
    let _newer = env.lab.controller(&[]).await.unwrap();
    env.until_reachable("vm").await;
    let run = env.until_report("vm", "its boot", |it| it.boots == 1).await;
    let complete = env.files_of(".complete");
    assert!(
        complete.len() == 1 && !complete[0].starts_with(&older),
        "{complete:?}"
    );
    thaw(&mut env.controller).await;
    env.assert_same_run(&run).await;
    assert_eq!(env.files_of(".complete"), complete);
    assert_eq!(monitor.finish().unwrap(), [""; 0]);
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
    env.until_off(&domain).await;
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
