//! An image from a server: downloaded once, verified, and the backing file of two disks.

use std::{fmt::Write as _, fs, path::Path, process::Command};

use lab::{
    image_server::ImageServer,
    libvirt::image,
    objects::{HOST, condition_message},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::environment::{Environment, machine};

/// The path of the image at its server.
pub(crate) const PATH: &str = "guest.qcow2";

fn qemu_img(arguments: &[&str]) {
    let done = Command::new("qemu-img").args(arguments).status().unwrap();
    assert!(done.success(), "qemu-img {arguments:?}");
}

/// Volumes of the image pool that the controller made.
async fn fetched(env: &Environment) -> Vec<String> {
    let all = env.virsh(&["vol-list", "images"]).await;
    let names = all.split_whitespace();
    let ours = names.filter(|word| word.starts_with("vitistack-image-"));
    ours.map(str::to_owned).collect()
}

/// The tiny guest's disk in the format qcow2, in which most images are distributed.
pub(crate) fn qcow2(raw: &Path, to: &Path) -> Vec<u8> {
    let done = Command::new("qemu-img")
        // Compressed, as many images are distributed.
        .args(["convert", "-c", "-O", "qcow2"])
        .args([raw, to])
        .status()
        .unwrap();
    assert!(done.success());
    fs::read(to).unwrap()
}

/// The checksum of a file as an image has it.
pub(crate) fn checksum(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().fold("sha256:".to_owned(), |mut text, byte| {
        text.write_fmt(format_args!("{byte:02x}")).unwrap();
        text
    })
}

fn root(size: &str, url: &str, checksum: &str) -> Value {
    json!({
        "disks": [{
            "name": "root", "size": size, "storageClass": "local",
            "image": {"url": url, "checksum": checksum},
        }],
    })
}

#[tokio::test]
async fn an_image_is_downloaded_once_and_its_checksum_is_verified() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let content = qcow2(&image().await.unwrap(), &env.libvirt.path("guest.qcow2"));
    let checksum = checksum(&content);
    let server = ImageServer::start().unwrap();
    let url = server.serve(PATH, content);
    env.allow(&url).await;
    for name in ["first", "second"] {
        env.apply(name, &root("1Gi", &url, &checksum)).await;
    }
    for name in ["first", "second"] {
        env.until_reachable(name).await;
        let report = env.until_report(name, "its boot", |it| it.boots == 1).await;
        // The disk has the size of the spec, not that of the image.
        assert_eq!(
            report.disks.values().copied().collect::<Vec<_>>(),
            [1 << 30]
        );
    }
    assert_eq!(server.requests(PATH), 1, "one host, one fetch");

    // Its completion marker is lost: the image stays below the running guests, and is fetched again beside it.
    let monitor = env.monitor();
    let all = fetched(&env).await;
    let marker = all.iter().find(|name| name.ends_with(".complete")).unwrap();
    let below = marker.trim_end_matches(".complete").to_owned();
    env.virsh(&["vol-delete", "--pool", "images", marker]).await;
    let mut third = root("1Gi", &url, &checksum);
    third["powerState"] = json!("Stopped");
    env.apply("third", &third).await;
    let is_off = |machine: &Value| {
        machine["status"]["phase"] == "Stopped"
            && machine["status"]["volumes"][0]["phase"] == "Bound"
    };
    env.until("third", "to be off with its disk", is_off).await;
    assert_eq!(server.requests(PATH), 2, "it is fetched again");
    assert!(fetched(&env).await.contains(&below));
    for name in ["first", "second"] {
        env.until_report(name, "the same boot", |it| it.boots == 1)
            .await;
    }
    assert_eq!(monitor.finish().unwrap(), [""; 0]);
    env.delete("third").await;
    assert!(fetched(&env).await.contains(&below));

    // An image with another checksum than the spec's is not booted, and the condition reports it.
    let wrong = format!("sha256:{}", "0".repeat(64));
    env.apply("wrong", &root("1Gi", &url, &wrong)).await;
    let reported = env
        .machines()
        .until_condition("wrong", "StorageReady", "False", "ImageImportFailed")
        .await
        .unwrap();
    let message = reported["status"]["conditions"].to_string();
    assert!(message.contains("correct image.checksum"), "{message}");
    let only = [env.domain("first").await, env.domain("second").await];
    assert_eq!(env.domains().await, only.into());
}

/// A qcow2 whose header names a file of the host would put that file's content on the tenant's disk.
#[tokio::test]
async fn an_image_that_names_a_file_of_the_host_is_refused() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let secret = env.libvirt.path("shadow");
    fs::write(&secret, "root:secret".repeat(1000)).unwrap();
    let secret = secret.to_str().unwrap();
    let overlay = env.libvirt.path("overlay.qcow2");
    let file = overlay.to_str().unwrap();
    qemu_img(&[
        "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", file,
    ]);
    // From a URL.
    let server = ImageServer::start().unwrap();
    let url = server.serve(PATH, fs::read(&overlay).unwrap());
    env.allow(&url).await;
    let image = json!({"url": url});
    let disk = |image: &Value| json!({"disks": [{"name": "root", "size": "1Gi", "storageClass": "local", "image": image}]});
    env.apply("fetched", &disk(&image)).await;
    let machines = env.machines();
    let why = machines
        .until_condition("fetched", "StorageReady", "False", "ImageImportFailed")
        .await
        .unwrap();
    let why = condition_message(&why, "StorageReady").unwrap().to_owned();
    assert!(
        why.contains(&format!("has the backing file '{secret}'")),
        "{why}"
    );
    assert!(server.requests(PATH) >= 1);
    assert_eq!(fetched(&env).await, [""; 0], "nothing of it was uploaded");
    // Put into the image pool by hand: the same, and an external data file, which libvirt does not report.
    let data = env.libvirt.path("data.qcow2");
    let option = format!("data_file={secret},data_file_raw=on");
    qemu_img(&[
        "create",
        "-q",
        "-f",
        "qcow2",
        "-o",
        &option,
        data.to_str().unwrap(),
        "64K",
    ]);
    let pool = env.volumes.parent().unwrap().join("images");
    for (name, file, part) in [
        ("overlay", &overlay, "has the backing file"),
        ("data", &data, "external data file"),
    ] {
        let volume = format!("{name}.qcow2");
        env.libvirt.volume(&pool, &volume, file).await.unwrap();
        let root = disk(&json!({"volume": volume}));
        env.apply(name, &root).await;
        let drive = json!({"cdroms": [{"name": "iso", "image": {"volume": volume}}]});
        let medium = format!("{name}-medium");
        env.apply(&medium, &drive).await;
        for (name, kind, reason) in [
            (name, "StorageReady", "VolumeFailed"),
            (&medium, "VirtualMachineReady", "VMFailed"),
        ] {
            let why = machines.until_condition(name, kind, "False", reason);
            let why = why.await.unwrap();
            let why = condition_message(&why, kind).unwrap();
            assert!(why.contains(part), "{why}");
        }
    }
    let disks: Vec<_> = env
        .files()
        .into_iter()
        .filter(|name| !name.contains("-medium-"))
        .collect();
    assert_eq!(disks, [""; 0], "no disk was made of any of them");
    assert_eq!(env.domains().await, [].into(), "no guest was defined");
}

#[tokio::test]
async fn the_disk_of_another_namespace_is_no_image() {
    let Some(env) = Environment::new().await else {
        return;
    };
    env.apply("victim", &json!({})).await;
    env.until_reachable("victim").await;
    let [disk] = &env.files_of("victim")[..] else {
        panic!("{:?}", env.files());
    };
    // Refused at admission, wherever the volume is.
    let thief = machine(
        "thief",
        &json!({"disks": [{"name": "root", "size": "1Gi", "storageClass": "local", "image": {"volume": disk}}]}),
    );
    let error = format!("{:#}", env.lab.apply(&thief).await.unwrap_err());
    assert!(error.contains("[ImageVolumeReserved]"), "{error}");
    assert_eq!(env.machines().find("thief").await.unwrap(), None);
    // A LibvirtHost cannot have its images beside its disks.
    let patch = json!({"spec": {"imagePool": "volumes"}});
    let error = env
        .lab
        .objects(HOST, "")
        .merge("here", &patch)
        .await
        .unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("[ImagePoolShared]"), "{error}");
}

#[tokio::test]
async fn an_image_from_a_private_address_needs_a_listed_source() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let content = qcow2(&image().await.unwrap(), &env.libvirt.path("guest.qcow2"));
    let server = ImageServer::start().unwrap();
    let url = server.serve(PATH, content);
    let image = |url: &str| json!({"disks": [{"name": "root", "size": "1Gi", "storageClass": "local", "image": {"url": url}}]});
    // A literal address is refused at admission.
    let error = env
        .lab
        .apply(&machine("literal", &image(&url)))
        .await
        .unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("[ImageSourceNotAllowed]"), "{error}");
    assert!(
        error.contains("any server with a public address"),
        "{error}"
    );
    // What it resolves to is known only when it is fetched: this is 127.0.0.1 as one number.
    let number = url.replace("127.0.0.1", "2130706433");
    let secret = number.replace("http://", "http://user:word@") + "?token=1";
    env.apply("resolved", &image(&secret)).await;
    let machines = env.machines();
    let why = machines
        .until_condition("resolved", "StorageReady", "False", "ImageImportFailed")
        .await
        .unwrap();
    let status = why["status"].to_string();
    let why = condition_message(&why, "StorageReady").unwrap();
    assert!(why.contains("is at 2130706433"), "{why}");
    assert!(why.contains("spec.imageSources"), "{why}");
    assert!(
        !status.contains("word") && !status.contains("token"),
        "{status}"
    );
    let events = ["get", "events", "-n", "default", "-o", "json"];
    let events = env.lab.kubectl().run(&events).await.unwrap().ok().unwrap();
    for shown in [env.controller.log(), events] {
        assert!(
            !shown.contains("user:word") && !shown.contains("token=1"),
            "{shown}"
        );
    }
    assert_eq!(server.requests(PATH), 0, "nothing was connected");
    // The administrator lists it, and the Machine starts without another change.
    env.allow(&number).await;
    env.until_reachable("resolved").await;
}
