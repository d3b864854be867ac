//! The lab's own libvirt and its guest, which the other tests use.

use anyhow::{Context as _, Result};
use lab::{libvirt::image, wait};

use crate::environment;

/// A minimal domain, emulated by QEMU (TCG).
fn domain(name: &str, disk: &str) -> String {
    format!(
        "<domain type='qemu'><name>{name}</name><memory unit='MiB'>256</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>
<devices>
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{disk}'/><target dev='vda' bus='virtio'/></disk>
<interface type='network'><source network='default'/><mac address='52:54:00:00:00:01'/><model type='virtio'/></interface>
<serial type='pty'/><channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
</devices></domain>"
    )
}

#[tokio::test]
async fn the_tiny_guest_boots_and_reacts_to_the_power_button() -> Result<()> {
    let Some(libvirt) = environment::libvirt().await else {
        return Ok(());
    };
    let pool = libvirt.pool("own").await?;
    let disk = libvirt.volume(&pool, "disk.raw", &image().await?).await?;
    let file = libvirt.path("domain.xml");
    std::fs::write(&file, domain("tiny", &disk.display().to_string()))?;
    let define = ["define", "--validate", &file.display().to_string()];
    libvirt.virsh(&define).await?.ok()?;
    libvirt.virsh(&["start", "tiny"]).await?.ok()?;

    let report = libvirt
        .wait_for_report("tiny", "an address", |report| {
            report.nics.values().any(|nic| !nic.address.is_empty())
        })
        .await?;
    assert_eq!((report.boots, report.firmware.as_str()), (1, "bios"));
    assert_eq!(report.disks["vda"], std::fs::metadata(&disk)?.len());
    let nic = &report.nics["eth0"];
    assert_eq!(nic.mac, "52:54:00:00:00:01");
    let leases = libvirt.virsh(&["net-dhcp-leases", "default"]).await?.ok()?;
    let lease = leases.lines().find(|line| line.contains(&nic.mac));
    assert!(lease.context("a lease")?.contains(&nic.address), "{leases}");
    wait::until("the guest's agent", async || {
        let command = ["domifaddr", "tiny", "--source", "agent"];
        let answer = libvirt.virsh(&command).await?;
        let knows = answer.stdout.contains(&nic.address);
        Ok(knows.then_some(()).ok_or_else(|| answer.to_string()))
    })
    .await?;

    libvirt
        .virsh(&["shutdown", "tiny", "--mode", "acpi"])
        .await?
        .ok()?;
    wait::until("the guest to shut down", async || {
        let state = libvirt.virsh(&["domstate", "tiny"]).await?.ok()?;
        Ok((state.trim() == "shut off").then_some(()).ok_or(state))
    })
    .await
}
