//! The firmware and the CPU model that the guest reports, and its watchdog. EFI needs more memory than a BIOS to unpack a
//! kernel.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use lab::{objects::HOST, wait};

use crate::environment::{self, Environment, root};

#[tokio::test]
async fn the_guest_has_the_requested_firmware_cpu_model_and_watchdog() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let firmware = [("efi", false), ("secure", true)];
    for (name, secure) in firmware {
        let spec = json!({
            "resources": {"cpu": {"cores": 1, "model": "Nehalem"}, "memory": {"size": "512Mi"}},
            "domain": {"firmware": {"bootloader": {"efi": true, "secureBoot": secure}}},
            "watchdog": {"action": "PowerOff"},
        });
        env.apply(name, &spec).await;
    }
    for (name, secure) in firmware {
        env.until(name, "to run", |it| it["status"]["phase"] == "Running")
            .await;
        let report = env.until_report(name, "its firmware", |_| true).await;
        assert_eq!(report.firmware, "efi", "{name}");
        assert_eq!(report.secure_boot, u8::from(secure), "{name}");
        assert!(report.cpu.contains("Nehalem"), "{report:?}");
        let live = env.virsh(&["dumpxml", &env.domain(name).await]).await;
        let watchdog = "<watchdog model='i6300esb' action='poweroff'>";
        assert!(live.contains(watchdog), "{live}");
        let machine = env.machines().get(name).await.unwrap();
        assert_eq!(machine["status"]["pendingChanges"], Value::Null);
    }
    // Another model and action are written into the definition, and the guest has them from its next start on.
    let other = json!({
        "resources": {"cpu": {"cores": 1, "model": "Westmere"}, "memory": {"size": "512Mi"}},
        "domain": {"firmware": {"bootloader": {"efi": true, "secureBoot": false}}},
        "watchdog": {"action": "Reset"},
    });
    env.apply("efi", &other).await;
    let changes = json!([
        {"field": "cpu.model", "current": "Nehalem", "desired": "Westmere", "action": "Restart"},
        {"field": "watchdog", "current": "PowerOff", "desired": "Reset", "action": "Restart"},
    ]);
    env.until("efi", "to have both pending", |it| {
        it["status"]["pendingChanges"] == changes
    })
    .await;
    // Deleting a Machine deletes its NVRAM file, so that another Machine of that name does not get it.
    let nvram = env.libvirt.path("lib/qemu/nvram");
    assert_eq!(fs::read_dir(&nvram).unwrap().count(), 2);
    for (name, _) in firmware {
        env.delete(name).await;
    }
    assert_eq!(fs::read_dir(&nvram).unwrap().count(), 0);
}

/// The files below a folder with their contents, sorted; the folder of a domain is named for its uuid.
fn files_below(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else if path.extension().is_some_and(|end| end == "permall") {
            files.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}

/// The guest's kernel has no driver of a TPM, so the files of swtpm are compared.
#[tokio::test]
async fn efi_variables_and_the_tpm_survive_a_stop_and_stay_with_a_disk_that_is_kept() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let spec = |power: &str| {
        json!({
            "resources": {"cpu": {"cores": 1}, "memory": {"size": "512Mi"}},
            "powerState": power,
            "disks": [root(), {"name": "data", "size": "1Gi", "storageClass": "local", "reclaimPolicy": "Retain"}],
            "domain": {
                "clock": {"timezone": "Europe/Oslo"},
                "devices": {"tpm": {"persistent": true}},
                "firmware": {"bootloader": {"efi": true}},
            },
        })
    };
    env.apply("state", &spec("Running")).await;
    env.until_report("state", "its firmware", |report| report.firmware == "efi")
        .await;
    let nvram = env.libvirt.path("lib/qemu/nvram");
    let swtpm = env.libvirt.path("lib/swtpm");
    let variables = || fs::read_dir(&nvram).unwrap().count();
    assert_eq!(variables(), 1);
    env.apply("state", &spec("Stopped")).await;
    env.until("state", "to stop", |it| it["status"]["phase"] == "Stopped")
        .await;
    let tpm = files_below(&swtpm);
    assert_eq!(tpm.len(), 1, "swtpm has written its state");
    assert_eq!(variables(), 1);

    env.apply("state", &spec("Running")).await;
    env.until_report("state", "to have booted again", |report| report.boots > 1)
        .await;
    let again = files_below(&swtpm);
    assert_eq!(again[0].0, tpm[0].0, "the TPM is the same one");
    env.delete("state").await;
    assert_eq!((variables(), files_below(&swtpm).len()), (1, 1));
}

#[tokio::test]
async fn hardware_that_no_host_has_is_refused_with_what_hosts_have() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let here = env.lab.objects(HOST, "").get("here").await.unwrap();
    let models = here["status"]["cpuModels"].as_array().unwrap();
    for model in ["Nehalem", "host-model"] {
        assert!(models.contains(&model.into()), "{models:?}");
    }
    // The lab emulates, and its host reserves no huge pages.
    assert!(!models.contains(&"host-passthrough".into()), "{models:?}");
    let sizes = here["status"]["hugepages"].as_array().unwrap();
    if sizes.contains(&"1Gi".into()) {
        return lab::skip("the host has huge pages of 1Gi");
    }
    let spec = json!({"resources": {
        "cpu": {"model": "Nehalm"},
        "memory": {"hugepages": "1Gi", "size": "1Gi"},
    }});
    let lacking = environment::machine("lacking", &spec);
    wait::until("the webhook to know what the host has", async || {
        let answer = env.lab.kubectl().apply(&lacking).await?.refused()?;
        let model = "spec.resources.cpu.model: Invalid value: \"Nehalm\": did you mean 'Nehalem'?";
        let pages = "no LibvirtHost has huge pages of 1Gi";
        let is_known = answer.contains(model) && answer.contains(pages);
        Ok(if is_known { Ok(()) } else { Err(answer) })
    })
    .await
    .unwrap();
}
