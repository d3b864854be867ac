//! The firmware that the guest reports. EFI needs more memory than a BIOS to unpack a kernel.

use serde_json::json;

use crate::environment::Environment;

#[tokio::test]
async fn the_guest_reports_the_requested_firmware() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let firmware = [("efi", false), ("secure", true)];
    for (name, secure) in firmware {
        let spec = json!({
            "resources": {"cpu": {"cores": 1}, "memory": {"size": "512Mi"}},
            "domain": {"firmware": {"bootloader": {"efi": true, "secureBoot": secure}}},
        });
        env.apply(name, &spec).await;
    }
    for (name, secure) in firmware {
        env.until(name, "to run", |it| it["status"]["phase"] == "Running")
            .await;
        let report = env.until_report(name, "its firmware", |_| true).await;
        assert_eq!(report.firmware, "efi", "{name}");
        assert_eq!(report.secure_boot, u8::from(secure), "{name}");
    }
    // Deleting a Machine deletes its NVRAM file, so that another Machine of that name does not get it.
    let nvram = env.libvirt.path("lib/qemu/nvram");
    assert_eq!(std::fs::read_dir(&nvram).unwrap().count(), 2);
    for (name, _) in firmware {
        env.delete(name).await;
    }
    assert_eq!(std::fs::read_dir(&nvram).unwrap().count(), 0);
}
