//! A requested restart of a guest: which request is new, open or answered. One rule for both backends, which only carry it
//! out.
//!
//! ```text
//! new request ─▶ the backend records it, with the guest that it replaces ─▶ another guest has come up ─▶ status: answered
//!          └──▶ no guest runs, or the Machine is off ─▶ status: answered
//! ```
//! `status.lastRestart` has a request from the moment on from which it is not new any more. KubeVirt's backend records an open
//! one there, in `replaces`; libvirt's in the metadata of the domain.
//!
//! A guest that runs is not shut down for a request while it could not be started again as its spec describes it. It runs on,
//! with [`waiting`] in its status, and is restarted when nothing is missing any more.

use common::api::status::LastRestart;

use crate::conditions::Fault;
use crate::machine::Machine;

/// Text of the restart-requested annotation, cut to what the status can store, if the status does not have it yet. Each new
/// text requests one restart; `None`: no new request, or the Machine is paused.
pub fn new_request(machine: &Machine) -> Option<String> {
    machine
        .new_restart_request()
        .filter(|_| !machine.is_paused())
}

/// The request has been met: the guest was restarted, or there was none to restart.
pub fn answered(request: String) -> LastRestart {
    LastRestart {
        request,
        replaces: None,
        cause: None,
    }
}

/// The instance with the uid `replaces` is to be replaced, as `request` asks for.
pub fn open(request: String, replaces: Option<String>) -> LastRestart {
    LastRestart {
        replaces,
        ..answered(request)
    }
}

/// The instance with the uid `replaces` is to be replaced for a cause of its own. The last request stays as it is.
pub fn open_for(last: Option<&LastRestart>, replaces: &str, cause: &str) -> LastRestart {
    LastRestart {
        request: last.map_or_else(String::new, |last| last.request.clone()),
        replaces: Some(replaces.to_owned()),
        cause: Some(cause.to_owned()),
    }
}

/// Whether the guest that replaces the former one has not come up yet.
pub fn is_open(last: Option<&LastRestart>) -> bool {
    last.is_some_and(|last| last.replaces.is_some())
}

/// Whether a guest that runs may be shut down for a requested restart. `is_complete`: whether everything is there that its
/// next start needs to be as the spec describes it, and no action of the plan that it depends on was refused.
pub fn may_stop_for_restart(machine: &Machine, is_complete: bool) -> bool {
    is_complete && !machine.addresses.keeps_off()
}

/// That a requested restart waits, for the condition `RestartRequired`. `lacks`: what the next start lacks; the first is named.
pub fn waiting(lacks: &[Option<&Fault>]) -> Fault {
    let cause = lacks.iter().flatten().next();
    let why = cause.map_or_else(String::new, |fault| {
        format!(" ({}: {})", fault.reason(), fault.message())
    });
    let message = format!(
        "the guest runs on, because it could not be started again as its spec describes it{why}: the restart is carried out when it could, without another request"
    );
    Fault::new("RestartWaits", message)
}

#[cfg(test)]
mod tests {
    use common::names::ANNOTATION_RESTART_REQUESTED;

    use super::*;
    use crate::fixtures::{annotate, block, machine, pause};

    fn requesting(text: &str) -> Machine {
        let mut machine = machine(block());
        annotate(&mut machine, ANNOTATION_RESTART_REQUESTED, text);
        machine
    }

    #[test]
    fn each_text_is_new_until_the_status_has_it() {
        let mut machine = requesting("kernel");
        assert_eq!(new_request(&machine).as_deref(), Some("kernel"));
        for last in [
            open("kernel".into(), Some("u".into())),
            answered("kernel".into()),
        ] {
            machine.status.last_restart = Some(last);
            assert_eq!(new_request(&machine), None);
        }
        machine.status.last_restart = Some(answered("before".into()));
        assert!(new_request(&machine).is_some());
        pause(&mut machine);
        assert_eq!(new_request(&machine), None);
    }

    #[test]
    fn a_restart_for_another_cause_answers_no_request() {
        let mut machine = requesting("kernel");
        let restart = open_for(None, "u", "it was evicted");
        assert!(is_open(Some(&restart)));
        machine.status.last_restart = Some(restart);
        assert_eq!(new_request(&machine).as_deref(), Some("kernel"));
        let restart = open_for(Some(&answered("kernel".into())), "u", "it was evicted");
        machine.status.last_restart = Some(restart);
        assert_eq!(new_request(&machine), None);
        assert!(!is_open(None) && !is_open(Some(&answered("kernel".into()))));
    }
}
