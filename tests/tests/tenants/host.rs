//! Attacks on the domains, the room and the volumes of the shared host.

use std::{fs, io::Write as _};

use lab::{objects::condition, wait};
use serde_json::{Value, json};

use crate::{
    blue::{ARCHIVE, LEDGER, uid},
    red::{Red, USER, binding},
    tenants::{SHARED, Tenants, local},
};

fn is_ready(machine: &Value) -> bool {
    condition(machine, "Ready")["status"] == "True"
}

/// The names of the domains that contain this.
async fn domains(tenants: &Tenants, part: &str) -> Vec<String> {
    let list = ["list", "--all", "--name"];
    let all = tenants.virsh().virsh(&list).await.unwrap().ok().unwrap();
    let names = all.lines().filter(|name| name.contains(part));
    names.map(str::to_owned).collect()
}

/// A Machine with the name of blue's, and with every mark that a user can give it.
pub(crate) async fn a_machine_of_the_same_name(tenants: &Tenants) {
    let mut attack = local("red", LEDGER, "128Mi");
    attack["metadata"]["annotations"] = json!({
        "machine.vitistack.io/machine-uid": uid(&tenants.lab, LEDGER).await,
        "machine.vitistack.io/retained-from": "blue/ledger",
    });
    attack["metadata"]["labels"] = json!({"vitistack.io/machine": LEDGER});
    tenants.red.create(&attack).await;
    let machines = Red::machines(&tenants.lab);
    machines.until(LEDGER, "to run", is_ready).await.unwrap();
    assert_eq!(domains(tenants, LEDGER).await.len(), 2);
    tenants.delete("red", LEDGER).await;
    assert_eq!(domains(tenants, LEDGER).await.len(), 1, "blue's");
}

/// The host has 4Gi for all Machines.
pub(crate) async fn growing_beyond_the_host(tenants: &Tenants) {
    let (red, machines) = (&tenants.red, Red::machines(&tenants.lab));
    red.create(&local("red", "greedy", "512Mi")).await;
    machines.until("greedy", "to run", is_ready).await.unwrap();
    let larger = local("red", "greedy", "12Ti");
    red.refused(&larger, "[LargerThanHosts]").await;
    // More than others leave is accepted and not granted.
    red.create(&local("red", "greedy", "4Gi")).await;
    let has_no_room = |machine: &Value| condition(machine, "Scheduled")["reason"] == "NoRoom";
    let greedy = machines.until("greedy", "to get no room", has_no_room);
    assert!(is_ready(&greedy.await.unwrap()));
    // Blue gets what it asks for.
    let newcomer = local("blue", "newcomer", "1Gi");
    let applied = tenants.lab.apply_when_admitted(&newcomer).await;
    applied.unwrap();
    let theirs = tenants.machines("blue");
    theirs.until("newcomer", "to run", is_ready).await.unwrap();
    tenants.delete("blue", "newcomer").await;
}

/// The annotation releases volumes of former Machines of the name, in the namespace of the Machine.
pub(crate) async fn releasing_the_kept_volume_of_another_namespace(tenants: &Tenants) {
    let (red, machines) = (&tenants.red, Red::machines(&tenants.lab));
    red.create(&local("red", ARCHIVE, "128Mi")).await;
    machines.until(ARCHIVE, "to run", is_ready).await.unwrap();
    let key = "machine.vitistack.io/release-volume";
    let value = format!("{key}=papers");
    let annotate = ["annotate", "machine", ARCHIVE, &value];
    red.run(&annotate).await.ok().unwrap();
    let is_done = |machine: &Value| machine["metadata"]["annotations"][key].is_null();
    let done = machines.until(ARCHIVE, "to have no annotation any more", is_done);
    done.await.unwrap();
    let host = tenants.hosts().get(SHARED).await.unwrap();
    let kept = host["status"]["keptVolumes"].as_array().unwrap();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(kept[0]["machine"], format!("blue/{ARCHIVE}"));
}

/// The header of a qcow2 image of 4Ei whose backing file is blue's disk, in the raw disk of a guest: what libvirt
/// reports of the volume is then what red wrote.
pub(crate) async fn a_header_in_a_raw_disk(tenants: &Tenants) {
    let (red, machines) = (&tenants.red, Red::machines(&tenants.lab));
    red.create(&local("red", "web", "128Mi")).await;
    machines.until("web", "to run", is_ready).await.unwrap();
    let mut header = vec![0; 1 << 16];
    header[..4].copy_from_slice(b"QFI\xfb");
    header[4..8].copy_from_slice(&2_u32.to_be_bytes());
    let theirs = tenants.blue.volumes().remove(0).display().to_string();
    header[8..16].copy_from_slice(&512_u64.to_be_bytes());
    header[16..20].copy_from_slice(&u32::try_from(theirs.len()).unwrap().to_be_bytes());
    header[20..24].copy_from_slice(&16_u32.to_be_bytes());
    header[24..32].copy_from_slice(&(1_u64 << 62).to_be_bytes());
    header[512..512 + theirs.len()].copy_from_slice(theirs.as_bytes());
    let files = fs::read_dir(&tenants.pools[1]).unwrap().flatten();
    let mut disks = files.map(|file| file.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("red-web-") && name.contains(".root.")
    });
    let disk = fs::OpenOptions::new()
        .write(true)
        .open(disks.next().unwrap());
    disk.unwrap().write_all(&header).unwrap();
    let refresh = tenants.virsh().virsh(&["pool-refresh", "volumes"]).await;
    refresh.unwrap().ok().unwrap();
    // Blue has room, and so has red's own Machine.
    let newcomer = local("blue", "newcomer", "128Mi");
    let applied = tenants.lab.apply_when_admitted(&newcomer).await;
    applied.unwrap();
    let blue = tenants.machines("blue");
    blue.until("newcomer", "to run", is_ready).await.unwrap();
    tenants.delete("blue", "newcomer").await;
    tenants.delete("red", "web").await;
}

/// The shipped roles do not include the status. An administrator who grants it gives away nothing of others.
pub(crate) async fn forging_the_status(tenants: &Tenants) {
    let (red, machines) = (&tenants.red, Red::machines(&tenants.lab));
    red.create(&local("red", "web", "128Mi")).await;
    machines.until("web", "to run", is_ready).await.unwrap();
    let theirs = tenants.blue.volumes();
    let theirs = theirs
        .iter()
        .map(|file| file.file_name().unwrap().to_str().unwrap());
    let volumes = theirs.map(|name| json!({"name": "root", "claimName": name, "phase": "Bound"}));
    let volumes: Vec<_> = volumes.take(1).collect();
    let domain = domains(tenants, LEDGER).await.remove(0);
    let forged = json!({"status": {
        "host": null, "vmName": domain, "volumes": volumes, "phase": "Stopped",
        "lastRestart": {"request": "now", "replaces": uid(&tenants.lab, LEDGER).await},
    }})
    .to_string();
    let patch = [
        "patch",
        "machine",
        "web",
        "--subresource=status",
        "--type=merge",
        "-p",
        &forged,
    ];
    let text = red.run(&patch).await.refused().unwrap();
    assert!(text.contains(&format!("User \"{USER}\" cannot")), "{text}");

    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "status", "namespace": "red"},
        "rules": [{
            "apiGroups": ["vitistack.io"], "resources": ["machines/status"], "verbs": ["get", "patch"],
        }],
    });
    tenants.lab.apply(&role).await.unwrap();
    let granted = binding("status", "Role", "status");
    tenants.lab.apply(&granted).await.unwrap();
    wait::until("the role to be in effect", async || {
        let output = red.run(&patch).await;
        Ok((output.code == 0).then_some(()).ok_or(output))
    })
    .await
    .unwrap();
    let is_corrected = |web: &Value| {
        let status = &web["status"];
        let volume = status["volumes"][0]["claimName"].as_str();
        status["host"] == SHARED
            && status["phase"] == "Running"
            && volume.is_some_and(|name| name.starts_with("red-web-"))
            && status["vmName"] != domain.as_str()
    };
    let corrected = machines.until("web", "to have its own status", is_corrected);
    corrected.await.unwrap();
    assert_eq!(domains(tenants, "red-web-").await.len(), 1);
    // Deleted right after the status was forged again: what it names stays.
    red.run(&patch).await.ok().unwrap();
    tenants.delete("red", "web").await;
    assert_eq!(domains(tenants, "red-web-").await, [""; 0]);
    let revoke = ["delete", "rolebinding", "status", "-n", "red"];
    let revoked = tenants.lab.kubectl().run(&revoke).await;
    revoked.unwrap().ok().unwrap();
}
