//! The password of the screen: set in the running guest, after each start and at each change of the Secret.
//!
//! A guest starts locked: nobody gets in until the password is set. The running guest records which Secret, and which
//! version of it, its password is from.

use common::api::normalized::Normalized;
use common::api::status::DisplayStatus;
use common::render::SecretValue;
use common::render::libvirt::{AppliedPassword, Difference, Screen};
use controller_core::conditions::{Fault, Verdict};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::secrets::DISPLAY_PASSWORD;

use super::action::{Action, DisplayPassword};
use crate::observed::{HostView, Password};

/// Most characters of a password: RFC 6143, 7.2.2 has a key of 8 bytes.
const PASSWORD_MAX: usize = 8;

/// What to do about the password of the screen.
#[derive(Debug, Default)]
pub(super) struct DisplayPlan {
    /// Sets the password, or locks the screen.
    pub(super) action: Option<Action>,
    /// A guest of an earlier release gets a screen with a password at its next start.
    pub(super) change: Option<Difference>,
    /// What the status shows of it.
    pub(super) report: DisplayReport,
}

/// The screen in the status.
#[derive(Debug, Default)]
pub(super) struct DisplayReport {
    /// The condition `DisplayReady`; `None`: there is none.
    pub(super) ready: Option<Verdict>,
    /// `status.display`.
    pub(super) status: Option<DisplayStatus>,
}

impl DisplayReport {
    /// The password was not set: the screen stays locked, or keeps the password that it had.
    pub(super) fn refused(&mut self, fault: &Fault) {
        let message = format!("the password was not set: {}", fault.message());
        self.ready = Some(("False", Fault::new(fault.reason(), message)));
    }
}

pub(super) fn display(
    machine: &Machine,
    block: &Normalized,
    view: &HostView,
    password: &Password,
) -> DisplayPlan {
    let guest = view.guest.as_ref();
    let Some(running) = guest.and_then(|guest| guest.running.as_ref()) else {
        return DisplayPlan::default();
    };
    let in_effect = running.display.password.as_ref();
    let lock = |socket: &String| Action::SetDisplayPassword {
        socket: socket.clone(),
        password: DisplayPassword::default(),
        applied: None,
    };
    let Some(secret) = block.display_secret() else {
        let socket = match &running.display.screen {
            Screen::Socket(Some(socket)) => in_effect.map(|_| socket),
            Screen::Socket(None) | Screen::Port | Screen::None => None,
        };
        return DisplayPlan {
            action: socket.map(lock),
            ..DisplayPlan::default()
        };
    };
    let Screen::Socket(Some(socket)) = &running.display.screen else {
        return at_restart(secret);
    };
    let fault = match password {
        // Not read, because the present content of the Secret is in effect already.
        Password::NotRead => None,
        Password::Read(None) => Some(not_found(machine, secret)),
        Password::Read(Some(value)) => match parse(secret, value) {
            Err(fault) => Some(fault),
            Ok(password) => {
                let applied = AppliedPassword {
                    secret: secret.to_owned(),
                    version: value.revision.version.clone(),
                };
                if in_effect == Some(&applied) {
                    None
                } else {
                    return DisplayPlan {
                        action: Some(Action::SetDisplayPassword {
                            socket: socket.clone(),
                            password,
                            applied: Some(applied),
                        }),
                        report: DisplayReport {
                            status: in_effect.map(status),
                            ..DisplayReport::default()
                        },
                        ..DisplayPlan::default()
                    };
                }
            }
        },
        Password::Unreadable(why) => {
            return DisplayPlan {
                report: DisplayReport {
                    ready: Some(("Unknown", unreadable(secret, why))),
                    status: in_effect.map(status),
                },
                ..DisplayPlan::default()
            };
        }
    };
    match (fault, in_effect) {
        (Some(fault), _) => DisplayPlan {
            action: in_effect.map(|_| lock(socket)),
            report: DisplayReport {
                ready: Some(("False", fault)),
                status: None,
            },
            ..DisplayPlan::default()
        },
        (None, Some(applied)) => DisplayPlan {
            report: DisplayReport {
                ready: Some(("True", set(applied))),
                status: Some(status(applied)),
            },
            ..DisplayPlan::default()
        },
        (None, None) => DisplayPlan::default(),
    }
}

fn status(applied: &AppliedPassword) -> DisplayStatus {
    DisplayStatus {
        password_version: Some(applied.version.clone()),
    }
}

/// The password in a Secret. Its content is in no message.
fn parse(secret: &str, value: &SecretValue) -> Result<DisplayPassword, Fault> {
    let content = &value.content;
    let is_printable = content.iter().all(|byte| (b' '..=b'~').contains(byte));
    let why = if content.is_empty() {
        "is empty"
    } else if content.len() > PASSWORD_MAX {
        "is longer than the 8 characters that VNC takes"
    } else if !is_printable {
        "has other characters than printable ASCII, such as a line break at its end"
    } else {
        return Ok(DisplayPassword(
            String::from_utf8_lossy(content).into_owned(),
        ));
    };
    let message = format!(
        "the password in Secret '{secret}' (key {DISPLAY_PASSWORD}) {why}, so the display stays locked: write 1 to 8 printable ASCII characters"
    );
    Err(Fault::new("DisplayPasswordInvalid", message))
}

fn set(applied: &AppliedPassword) -> Fault {
    let message = format!(
        "the display takes the password in Secret '{}'",
        applied.secret
    );
    Fault::new("PasswordSet", message)
}

fn not_found(machine: &Machine, secret: &str) -> Fault {
    let message = format!(
        "Secret '{secret}' with the key '{DISPLAY_PASSWORD}', which spec.display names, not found in namespace {}, so the display stays locked: create it; the password is set when it appears",
        machine.namespace()
    );
    Fault::new("DisplayPasswordSecretNotFound", message)
}

fn unreadable(secret: &str, why: &str) -> Fault {
    let message = format!(
        "Secret '{secret}', which spec.display names, cannot be read ({why}); it is read again soon, and the display keeps its password until then"
    );
    Fault::new("DisplayPasswordSecretNotFound", message)
}

/// A screen that an earlier release made takes no password, and a guest without a screen has none.
fn at_restart(secret: &str) -> DisplayPlan {
    let message = "the guest was started with a display that takes no password; it has one after its next restart";
    DisplayPlan {
        action: None,
        change: Some(Difference {
            field: "display.passwordSecretRef".to_owned(),
            current: "none".to_owned(),
            desired: secret.to_owned(),
            live: None,
        }),
        report: DisplayReport {
            ready: Some(("False", Fault::new("DisplayNeedsRestart", message))),
            status: None,
        },
    }
}
