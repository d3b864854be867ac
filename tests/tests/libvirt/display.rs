//! The screen of a guest on real QEMU, as an RFB client (RFC 6143) finds it at libvirt's socket, and the log of its
//! console.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

use des::{
    Des,
    cipher::{BlockCipherEncrypt as _, KeyInit as _},
};
use lab::objects::{HOST, SECRET, condition};
use serde_json::{Value, json};

use crate::environment::{BOOT_LIMIT, Environment};

/// Limit of an answer of QEMU, which emulates a guest on busy cores meanwhile.
const ANSWER: Duration = Duration::from_mins(5);
/// The security type "VNC Authentication".
const VNC_AUTHENTICATION: u8 = 2;

/// How QEMU answers a password.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Accepted,
    Refused,
}

/// The key of VNC authentication: 8 bytes, each with its bits in the reverse order.
fn key(password: &str) -> [u8; 8] {
    let mut key = [0; 8];
    for (byte, character) in key.iter_mut().zip(password.bytes()) {
        *byte = character.reverse_bits();
    }
    key
}

/// Tries a password at the screen of a domain. No other way in than VNC authentication is offered.
async fn knock(env: &Environment, domain: &str, password: &str) -> Answer {
    let mut screen = UnixStream::connect(socket(env, domain).await).unwrap();
    screen.set_read_timeout(Some(ANSWER)).unwrap();
    let read = |screen: &mut UnixStream, count: usize| {
        let mut bytes = vec![0; count];
        screen.read_exact(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(read(&mut screen, 12), b"RFB 003.008\n");
    screen.write_all(b"RFB 003.008\n").unwrap();
    let count = read(&mut screen, 1)[0];
    assert_eq!(read(&mut screen, count.into()), [VNC_AUTHENTICATION]);
    screen.write_all(&[VNC_AUTHENTICATION]).unwrap();
    let mut challenge = [0; 16];
    screen.read_exact(&mut challenge).unwrap();
    let cipher = Des::new(&key(password).into());
    for block in challenge.chunks_exact_mut(8) {
        cipher.encrypt_block(block.try_into().unwrap());
    }
    screen.write_all(&challenge).unwrap();
    let mut result = [0; 4];
    screen.read_exact(&mut result).unwrap();
    match u32::from_be_bytes(result) {
        0 => Answer::Accepted,
        _ => Answer::Refused,
    }
}

/// The path of the screen's socket outside libvirt's mount namespace.
async fn socket(env: &Environment, domain: &str) -> PathBuf {
    let live = env.virsh(&["dumpxml", domain]).await;
    let after = live.split("<graphics type='vnc' socket='").nth(1);
    let after = after.unwrap();
    let path = after.split('\'').next().unwrap();
    let inside = path.strip_prefix("/var/lib/libvirt/").unwrap();
    env.libvirt.path("lib").join(inside)
}

async fn set_secret(env: &Environment, password: &str) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"display-password": password},
        "metadata": {"name": "vm-display", "namespace": "default"},
    });
    env.lab.apply(&secret).await.unwrap();
}

async fn until_display(env: &Environment, status: &str, reason: &str) -> Value {
    env.until("vm", &format!("to have DisplayReady {reason}"), |vm| {
        let found = condition(vm, "DisplayReady");
        found["status"] == status && found["reason"] == reason
    })
    .await
}

fn version(machine: &Value) -> String {
    let version = machine["status"]["display"]["passwordVersion"].as_str();
    version.unwrap().to_owned()
}

#[tokio::test]
async fn a_display_password_is_set_rotated_and_removed_while_the_guest_runs() {
    let Some(env) = Environment::new().await else {
        return;
    };
    set_secret(&env, "s3cret").await;
    let display =
        json!({"display": {"passwordSecretRef": {"name": "vm-display"}, "video": "virtio"}});
    env.apply("vm", &display).await;
    let first = version(&until_display(&env, "True", "PasswordSet").await);
    let domain = env.domain("vm").await;
    let id = env.virsh(&["domid", &domain]).await;
    for (password, answer) in [
        ("s3cret", Answer::Accepted),
        ("wrong", Answer::Refused),
        ("", Answer::Refused),
    ] {
        assert_eq!(knock(&env, &domain, password).await, answer, "{password}");
    }
    let secured = ["dumpxml", "--inactive", "--security-info", &domain];
    let defined = env.virsh(&secured).await;
    assert!(!defined.contains("s3cret"), "{defined}");
    assert!(defined.contains("passwd=''"), "{defined}");

    // Rotated.
    set_secret(&env, "other").await;
    env.until("vm", "to have the other password", |vm| {
        condition(vm, "DisplayReady")["status"] == "True" && version(vm) != first
    })
    .await;
    assert_eq!(knock(&env, &domain, "other").await, Answer::Accepted);
    assert_eq!(knock(&env, &domain, "s3cret").await, Answer::Refused);

    // A password that VNC cannot take, and none: nobody gets in.
    set_secret(&env, "ninechars").await;
    let invalid = until_display(&env, "False", "DisplayPasswordInvalid").await;
    assert!(!invalid["status"].to_string().contains("ninechars"));
    for password in ["ninechars", "ninechar", "other", ""] {
        let answer = knock(&env, &domain, password).await;
        assert_eq!(answer, Answer::Refused, "{password}");
    }
    env.lab
        .objects(SECRET, "default")
        .delete("vm-display")
        .await
        .unwrap();
    until_display(&env, "False", "DisplayPasswordSecretNotFound").await;
    assert_eq!(knock(&env, &domain, "").await, Answer::Refused);
    set_secret(&env, "again").await;
    until_display(&env, "True", "PasswordSet").await;
    assert_eq!(knock(&env, &domain, "again").await, Answer::Accepted);

    // Without a password of the user.
    let removed = json!({"spec": {"display": {"passwordSecretRef": null}}});
    env.machines().merge("vm", &removed).await.unwrap();
    env.until("vm", "to have no password", |vm| {
        vm["status"]["display"].is_null() && condition(vm, "DisplayReady").is_null()
    })
    .await;
    for password in ["again", ""] {
        let answer = knock(&env, &domain, password).await;
        assert_eq!(answer, Answer::Refused, "{password}");
    }
    // All of it in one run of the guest.
    assert_eq!(env.virsh(&["domid", &domain]).await, id);
    let vm = env.machines().get("vm").await.unwrap();
    assert_eq!(vm["status"]["pendingChanges"], Value::Null);
}

#[tokio::test]
async fn a_console_is_logged_into_the_pool_of_the_host_until_the_machine_is_deleted() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let logs = env.libvirt.pool("logs").await.unwrap();
    let hosts = env.lab.objects(HOST, "");
    let pool = json!({"spec": {"consoleLogPool": "logs"}});
    hosts.merge("here", &pool).await.unwrap();
    let off = json!({
        "console": {"log": true}, "display": {"type": "none"}, "powerState": "Stopped",
    });
    env.apply("vm", &off).await;
    // The host reports the new pool at its next poll.
    let stopped = |vm: &Value| vm["status"]["phase"] == "Stopped";
    env.until("vm", "to be defined", stopped).await;
    let domain = env.domain("vm").await;
    lab::wait::until("the definition to have a log", async || {
        let defined = env.virsh(&["dumpxml", "--inactive", &domain]).await;
        let has_log = defined.contains(&format!("/{domain}.console.log"));
        Ok(if has_log { Ok(()) } else { Err(defined) })
    })
    .await
    .unwrap();
    let on = json!({"spec": {"powerState": "Running"}});
    env.machines().merge("vm", &on).await.unwrap();
    let file = logs.join(format!("{domain}.console.log"));
    lab::wait::until_within(BOOT_LIMIT, "output in the log", async || {
        let text = fs::read(&file).unwrap_or_default();
        Ok(if text.is_empty() { Err("none") } else { Ok(()) })
    })
    .await
    .unwrap();
    let live = env.virsh(&["dumpxml", &domain]).await;
    assert!(!live.contains("<graphics"), "{live}");
    env.delete("vm").await;
    assert!(!file.exists());
}
