//! The screen of a guest: locked at its start, with the password of a Secret while it runs, and as an earlier release
//! defined it until its next start.

use common::api::choice::{DisplayType, PowerState, VideoModel};
use common::api::normalized::{NormalizedConsole, NormalizedDisplay, NormalizedSecretRef};
use common::render::SecretValue;

use super::{UID, reported, state, times};
use crate::access::State;
use crate::environment::{Environment, block};
use crate::observed::Password;
use crate::plan::action::Action;
use common::render::libvirt::domain_uuid;
use controller_core::fixtures::annotate;
use controller_core::plan::{Refusal, Subject};

pub(super) fn with_password() -> Environment {
    let mut block = block();
    block.display = Some(NormalizedDisplay {
        password_secret_ref: Some(NormalizedSecretRef {
            name: "web-display".into(),
        }),
        kind: DisplayType::Vnc,
        video: None,
    });
    Environment::new(block)
}

fn secret(version: &str, content: &[u8]) -> Password {
    Password::Read(Some(SecretValue::new("uid", version, content.to_vec())))
}

fn definitions(env: &Environment) -> (String, String) {
    let state = env.host.state();
    let domain = &state.domains[&domain_uuid(UID)];
    (
        domain.inactive.clone(),
        domain.live.clone().unwrap_or_default(),
    )
}

fn version(env: &Environment) -> Option<String> {
    let display = env.machine().status.display.clone();
    display.and_then(|display| display.password_version)
}

#[test]
fn a_guest_starts_locked_and_gets_the_password_while_it_runs() {
    let mut env = with_password();
    env.password = secret("7", b"s3cret");
    env.settle();
    let (inactive, live) = definitions(&env);
    assert!(!inactive.contains("s3cret"), "{inactive}");
    assert!(inactive.contains("passwd=''"), "{inactive}");
    assert!(live.contains("passwd='s3cret'"), "{live}");
    assert_eq!(reported(&env, "DisplayReady"), ("True", "PasswordSet"));
    assert_eq!(version(&env).as_deref(), Some("7"));
    assert_eq!(env.settle(), [""; 0]);

    // Rotated, without a restart.
    env.password = secret("9", b"other");
    assert_eq!(
        env.settle(),
        ["set the display's password of Secret web-display, resourceVersion 9"]
    );
    assert!(definitions(&env).1.contains("passwd='other'"));
    assert_eq!(version(&env).as_deref(), Some("9"));
    assert_eq!(times(&env, "start"), 1);

    // The record ends with the guest, so the password is set again after each start.
    annotate(
        env.machine_mut(),
        common::names::ANNOTATION_RESTART_REQUESTED,
        "now",
    );
    env.settle();
    assert_eq!(times(&env, "start"), 2);
    assert!(definitions(&env).1.contains("passwd='other'"));
    assert_eq!(times(&env, "set_display_password"), 3);

    // Removed.
    env.edit(|block| block.display = None);
    env.password = Password::NotRead;
    assert_eq!(env.settle(), ["locked the display"]);
    assert!(definitions(&env).1.contains("passwd=''"));
    assert_eq!(reported(&env, "DisplayReady"), ("", ""));
    assert_eq!(version(&env), None);
}

#[test]
fn without_a_usable_password_nobody_gets_in_and_the_guest_runs() {
    for (password, reason) in [
        (Password::Read(None), "DisplayPasswordSecretNotFound"),
        (secret("8", b""), "DisplayPasswordInvalid"),
        (secret("8", b"ninechars"), "DisplayPasswordInvalid"),
        (secret("8", "pässword".as_bytes()), "DisplayPasswordInvalid"),
        (secret("8", b"word\n"), "DisplayPasswordInvalid"),
    ] {
        let mut env = with_password();
        env.password = password.clone();
        env.settle();
        assert_eq!(state(&env), Some(State::Running));
        assert_eq!(reported(&env, "DisplayReady"), ("False", reason));
        assert_eq!(reported(&env, "Ready"), ("True", "Running"));
        assert_eq!(times(&env, "set_display_password"), 0);

        // One that was in effect is taken back.
        env.password = secret("7", b"s3cret");
        env.settle();
        env.password = password;
        assert_eq!(env.settle(), ["locked the display"], "{reason}");
        assert!(definitions(&env).1.contains("passwd=''"));
        assert_eq!(reported(&env, "DisplayReady"), ("False", reason));
        let message = format!("{:?}", env.machine().status.conditions);
        assert!(!message.contains("ninechars"), "{message}");
    }
}

#[test]
fn a_secret_that_cannot_be_read_changes_nothing() {
    let mut env = with_password();
    env.password = secret("7", b"s3cret");
    env.settle();
    env.password = Password::Unreadable("timeout".into());
    assert_eq!(env.pass(), [""; 0]);
    let unknown = ("Unknown", "DisplayPasswordSecretNotFound");
    assert_eq!(reported(&env, "DisplayReady"), unknown);
    assert_eq!(version(&env).as_deref(), Some("7"));
}

/// The screen of the definition and of the running guest, as an earlier release wrote it.
fn make_earlier(env: &Environment) {
    let mut state = env.host.state();
    let domain = state.domains.get_mut(&domain_uuid(UID)).unwrap();
    let earlier = |text: &str| {
        let start = text.find("<graphics").unwrap();
        let end = text.find("</graphics>").unwrap() + "</graphics>".len();
        let port = r#"<graphics type="vnc" port="-1" autoport="yes" listen="127.0.0.1"/>"#;
        format!("{}{port}{}", &text[..start], &text[end..])
    };
    let definitions = [Some(domain.inactive.as_str()), domain.live.as_deref()];
    let [inactive, live] = definitions.map(|text| text.map(earlier));
    domain.inactive = inactive.unwrap();
    domain.live = live;
}

#[test]
fn a_guest_of_an_earlier_release_keeps_its_screen_until_its_next_start() {
    let mut env = Environment::new(block());
    env.settle();
    make_earlier(&env);
    assert_eq!(env.settle(), [""; 0]);
    assert!(env.machine().status.pending_changes.is_empty());

    // A password cannot reach it.
    let display = with_password().machine().desired().unwrap().display.clone();
    env.edit(|block| block.display = display);
    env.password = secret("7", b"s3cret");
    env.settle();
    let pending = &env.machine().status.pending_changes;
    assert_eq!(pending[0].field, "display.passwordSecretRef");
    assert_eq!(pending[0].action, "Restart");
    let waits = ("False", "DisplayNeedsRestart");
    assert_eq!(reported(&env, "DisplayReady"), waits);

    annotate(
        env.machine_mut(),
        common::names::ANNOTATION_RESTART_REQUESTED,
        "now",
    );
    env.settle();
    let (inactive, live) = definitions(&env);
    assert!(inactive.contains("<listen type='socket'/>"), "{inactive}");
    assert!(live.contains("passwd='s3cret'"), "{live}");
    assert!(env.machine().status.pending_changes.is_empty());
}

#[test]
fn another_screen_and_the_log_of_the_console_need_a_restart() {
    let mut env = Environment::new(block());
    env.console_logs = Some("/srv/logs".into());
    env.object.spec.console_log_pool = Some("logs".into());
    env.settle();
    env.edit(|block| {
        block.display = Some(NormalizedDisplay {
            password_secret_ref: None,
            kind: DisplayType::Vnc,
            video: Some(VideoModel::Virtio),
        });
    });
    env.edit(|block| block.console = Some(NormalizedConsole { log: true }));
    env.settle();
    let pending = &env.machine().status.pending_changes;
    let fields: Vec<_> = pending.iter().map(|change| change.field.as_str()).collect();
    assert_eq!(fields, ["display.video", "console.log"]);
    env.edit(|block| block.power_state = PowerState::Stopped);
    env.settle();
    env.edit(|block| block.power_state = PowerState::Running);
    env.edit(|block| {
        block.display = Some(NormalizedDisplay {
            password_secret_ref: None,
            kind: DisplayType::None,
            video: None,
        });
    });
    env.settle();
    let (_, live) = definitions(&env);
    assert!(!live.contains("<graphics"), "{live}");
    assert!(live.contains("/srv/logs/"), "{live}");
    assert!(env.machine().status.pending_changes.is_empty());
    assert_eq!(env.settle(), [""; 0]);
}

#[test]
fn a_password_that_libvirt_refuses_is_a_fault_of_the_display_alone() {
    let mut env = with_password();
    env.settle();
    let refusal = Refusal {
        subject: Subject::Display,
        reason: None,
        message: "unable to set password".into(),
    };
    env.password = secret("8", b"other");
    let plan = env.plan_after(Some(&refusal)).unwrap();
    let again = |action: &Action| matches!(action, Action::SetDisplayPassword { .. });
    assert!(plan.actions.iter().any(again), "it is tried again");
    env.machine_mut().status = plan.status.clone().unwrap();
    assert_eq!(reported(&env, "DisplayReady"), ("False", "DisplayFailed"));
    assert_eq!(reported(&env, "VirtualMachineReady").0, "True");
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}
