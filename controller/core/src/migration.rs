//! A requested migration of a Machine: which request there is, and how it ends. One rule for both backends, which only carry
//! it out.
//!
//! ```text
//! new request ─▶ status: open ─▶ the backend carries it out ─▶ status: Succeeded or Failed
//!          └──▶ status: Refused, if the Machine cannot be moved
//! ```
//! A request that comes while another one is open waits for its end. While the Machine is paused nothing is requested.

use common::api::choice::MigrationResult;
use common::api::status::LastMigration;
use common::bounds::TEXT_MAX;

use crate::machine::Machine;
use crate::plan::{Refusal, Subject};

/// Reason of a step of a migration that is refused for good.
pub const REFUSED: &str = "MigrationRefused";

/// What there is to do about the migration of a Machine.
#[derive(Debug, PartialEq)]
pub enum Request {
    /// Nothing: the status stays as it is.
    None,
    /// One that the status does not have yet, with the node or the host that it names.
    New(LastMigration),
    /// One that the status has and that has not ended.
    Open(LastMigration),
}

impl Request {
    /// The request of this Machine.
    pub fn of(machine: &Machine) -> Self {
        if machine.is_paused() {
            return Self::None;
        }
        let is_open = machine.open_migration().is_some() || machine.leaves_host().is_some();
        let last = machine.status.last_migration.as_ref();
        if let Some(open) = last.filter(|_| is_open) {
            return Self::Open(open.clone());
        }
        match machine.new_migration_request() {
            None => Self::None,
            Some(request) => Self::New(LastMigration {
                request,
                node: machine.migration_target().map(ToOwned::to_owned),
                ..LastMigration::default()
            }),
        }
    }
}

/// Whether a step of the migration was refused for good: it is not tried again.
pub fn is_final(refusal: &Refusal) -> bool {
    refusal.subject == Subject::Migration && refusal.reason == Some(REFUSED)
}

/// Why a step of the migration was refused for good; `None`: it was not, or may be tried again.
pub fn refused(refusal: Option<&Refusal>) -> Option<String> {
    let refusal = refusal.filter(|it| is_final(it));
    refusal.map(|it| it.message.clone())
}

/// Whether a step of the migration failed, and is tried again.
pub fn is_retried(refusal: Option<&Refusal>) -> bool {
    refusal.is_some_and(|it| it.subject == Subject::Migration && !is_final(it))
}

/// The request, which has ended.
pub fn ended(last: LastMigration, result: MigrationResult, message: &str) -> LastMigration {
    LastMigration {
        migration: None,
        from: None,
        result: Some(result),
        message: Some(message.chars().take(TEXT_MAX).collect()),
        ..last
    }
}

#[cfg(test)]
mod tests {
    use common::names::{ANNOTATION_MIGRATE_REQUESTED, ANNOTATION_MIGRATE_TO};

    use super::*;
    use crate::fixtures::{annotate, block, machine, pause};

    fn requesting(text: &str) -> Machine {
        let mut machine = machine(block());
        annotate(&mut machine, ANNOTATION_MIGRATE_REQUESTED, text);
        machine
    }

    #[test]
    fn each_new_text_is_one_request_with_the_node_of_its_time() {
        let mut machine = requesting("new switch");
        annotate(&mut machine, ANNOTATION_MIGRATE_TO, "node-2");
        let Request::New(open) = Request::of(&machine) else {
            panic!("a new request");
        };
        assert_eq!(open.request, "new switch");
        assert_eq!(open.node.as_deref(), Some("node-2"));
        let done = ended(open, MigrationResult::Succeeded, "there");
        machine.status.last_migration = Some(done);
        assert_eq!(Request::of(&machine), Request::None);
    }

    #[test]
    fn a_request_that_is_open_ends_before_the_next_one_begins() {
        let on_a_node = LastMigration {
            request: "first".to_owned(),
            migration: Some("web-1".to_owned()),
            ..LastMigration::default()
        };
        let from_a_host = LastMigration {
            request: "first".to_owned(),
            from: Some("alpha".to_owned()),
            ..LastMigration::default()
        };
        for open in [on_a_node, from_a_host] {
            let mut machine = requesting("second");
            machine.status.last_migration = Some(open.clone());
            assert_eq!(Request::of(&machine), Request::Open(open.clone()));
            let failed = ended(open, MigrationResult::Failed, "no room");
            assert_eq!((&failed.migration, &failed.from), (&None, &None));
            machine.status.last_migration = Some(failed);
            assert!(
                matches!(Request::of(&machine), Request::New(next) if next.request == "second")
            );
        }
    }

    #[test]
    fn a_paused_machine_begins_and_continues_nothing() {
        let mut machine = requesting("second");
        pause(&mut machine);
        assert_eq!(Request::of(&machine), Request::None);
        machine.status.last_migration = Some(LastMigration {
            migration: Some("web-1".to_owned()),
            ..LastMigration::default()
        });
        assert_eq!(Request::of(&machine), Request::None);
    }

    #[test]
    fn only_a_refusal_for_good_ends_the_request() {
        let refusal = |subject, reason| Refusal {
            subject,
            reason,
            message: "not now".to_owned(),
        };
        for (refusal, expected) in [
            (refusal(Subject::Migration, Some(REFUSED)), Some("not now")),
            (refusal(Subject::Migration, None), None),
            (refusal(Subject::Guest, Some(REFUSED)), None),
        ] {
            assert_eq!(refused(Some(&refusal)).as_deref(), expected);
        }
        assert_eq!(refused(None), None);
    }
}
