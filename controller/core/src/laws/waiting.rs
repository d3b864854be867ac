//! What a Machine waits for has an end or a reason.

use std::collections::BTreeSet;

use common::api::status::MachineStatus;

use super::{Environment, PASSES_MAX, pass, plan, quota_used_up, run, settle};
use crate::conditions::ready;
use crate::fixtures::pause;
use crate::restart;

/// Passes in a row, 10 s each, after which a Machine waits for something else than time: a guest that ignores requests to
/// shut down is ended after 60 s.
const QUIET_PASSES: usize = 8;

/// Runs passes until nothing has changed for a while, which a Machine that waits may report again and again. After each pass
/// that changes nothing, the Machine must report whatever it waits for. Returns the number of passes.
fn wait_with_reason<E: Environment>(environment: &mut E) -> usize {
    let (mut quiet, mut changes) = (0, vec![]);
    for passes in 0..PASSES_MAX {
        let moved = environment.advance();
        let passed = pass(environment);
        let Some(machine) = environment.machine() else {
            return passes;
        };
        if moved || !passed.changes.is_empty() {
            (quiet, changes) = (0, passed.changes);
            continue;
        }
        let status = &machine.status;
        let (value, _) = ready(status).expect("a Machine that waits has the condition Ready");
        let condition = status.conditions.iter().find(|it| it.kind == "Ready");
        assert!(
            value == "True" || condition.is_some_and(|it| !it.message.is_empty()),
            "{machine:#?}"
        );
        if value == "True" && !reports_wait(status) {
            assert_nothing_is_open(environment);
        }
        quiet += 1;
        if quiet == QUIET_PASSES {
            return passes;
        }
    }
    panic!("still changing after {PASSES_MAX} passes: {changes:?}");
}

/// Whether the status of a Machine that is ready says that something is still to come: a condition, or the text of a
/// migration that is under way.
fn reports_wait(status: &MachineStatus) -> bool {
    said(status)
        .iter()
        .any(|(kind, ..)| *kind == "status.lastMigration")
        || status.conditions.iter().any(|condition| {
            let expected = match condition.kind.as_str() {
                // They say that something is to be done.
                "RestartRequired" | "MigrationRequired" | "Migrating" | "EvictionRequested"
                | "Paused" => "False",
                // They say what the guest can do or has.
                "LiveMigratable" | "AgentConnected" => return false,
                _ => "True",
            };
            condition.status != expected
        })
}

/// The Machine is ready and no condition says that it waits, so nothing is planned, and every request was answered.
fn assert_nothing_is_open<E: Environment>(environment: &E) {
    let planned = plan(environment).expect("the Machine exists");
    let steps: Vec<_> = planned.steps().map(|step| step.to_string()).collect();
    assert_eq!(steps, [""; 0], "planned of a Machine that is ready");
    let machine = environment.machine().expect("the Machine exists");
    let status = &machine.status;
    let requests = [
        machine.new_restart_request(),
        machine.new_migration_request(),
        machine.new_reset_request(),
    ];
    let is_open = restart::is_open(status.last_restart.as_ref())
        || machine.open_migration().is_some()
        || machine.leaves_host().is_some();
    let requests: Vec<_> = requests.into_iter().flatten().collect();
    assert!(
        requests.is_empty() && !is_open && status.pending_changes.is_empty(),
        "not reported: {requests:?}, {status:#?}"
    );
}

fn is_ready<E: Environment>(environment: &E) -> bool {
    let machine = environment.machine();
    machine.is_some_and(|it| matches!(ready(&it.status), Some(("True", _))))
}

/// This environment, with the Machine deleted after any number of passes, and run until it waits or is gone.
fn deleted_after_each_pass<E: Environment>(
    new: &dyn Fn() -> E,
) -> impl Iterator<Item = (usize, E)> {
    let last = wait_with_reason(&mut new());
    (0..=last).map(move |passes| {
        let mut environment = new();
        run(&mut environment, passes);
        environment.delete_machine();
        wait_with_reason(&mut environment);
        (passes, environment)
    })
}

/// A deletion that begins after any number of passes ends, also of a Machine that waits for something.
///
/// # Panics
/// If the law does not hold.
pub fn a_deletion_ends<E: Environment>(all: &[&dyn Fn() -> E]) {
    for (number, new) in all.iter().enumerate() {
        for (passes, environment) in deleted_after_each_pass(*new) {
            assert!(
                environment.machine().is_none(),
                "environment {number}, deleted after {passes} passes"
            );
        }
    }
}

/// This environment, in which the growth of the Machine is held.
pub fn held<E: Environment>(new: impl Fn() -> E) -> impl Fn() -> E {
    move || {
        let mut environment = new();
        environment.set_hold(Some(quota_used_up()));
        environment
    }
}

/// The Machine was paused after it ran.
fn paused<E: Environment>(new: impl Fn() -> E) -> impl Fn() -> E {
    move || {
        let mut environment = new();
        settle(&mut environment);
        pause(environment.machine_mut());
        environment
    }
}

/// The Machine is protected from deletion.
fn protected<E: Environment>(new: impl Fn() -> E) -> impl Fn() -> E {
    move || {
        let mut environment = new();
        environment.machine_mut().is_protected = true;
        environment
    }
}

/// What a status says of a wait: type and reason of a condition, and a part of its message. Of a migration that is under way:
/// `status.lastMigration`, its request, and a part of its message.
pub type Cause = (&'static str, &'static str, &'static str);

/// A Machine that waits, and what its status says of that.
#[expect(missing_debug_implementations, reason = "a function prints nothing")]
pub struct Waiting<'a, E> {
    /// The Machine, before it waits or since then.
    pub new: &'a dyn Fn() -> E,
    /// What is said of the Machine while it exists; `None`: only its deletion waits.
    pub exists: Option<Cause>,
    /// What is said while the deletion waits, at whichever point it begins; `None`: it never waits.
    pub deleted: Option<Cause>,
}

/// A Machine that waits, or whose deletion does, reports the expected cause. `new`: an environment for the causes that any
/// backend has; `all`: those of the backend.
///
/// # Panics
/// If the law does not hold, or a Machine waits for nothing.
pub fn a_machine_that_waits_reports_why<E: Environment>(
    new: impl Fn() -> E + Copy,
    all: &[Waiting<'_, E>],
) {
    let of_any = [
        Waiting {
            new: &held(new),
            exists: Some(("Ready", "QuotaExceeded", "the quota is used up")),
            deleted: None,
        },
        Waiting {
            new: &paused(new),
            exists: Some(("Paused", "Paused", "observed only")),
            deleted: Some((
                "Ready",
                "Deleting",
                "deletion waits because the Machine is paused",
            )),
        },
        Waiting {
            new: &protected(new),
            exists: None,
            deleted: Some(("Ready", "DeletionProtected", "deletionProtection is true")),
        },
    ];
    let mut wrong = vec![];
    for (number, waiting) in of_any.iter().chain(all).enumerate() {
        let Waiting {
            new,
            exists,
            deleted,
        } = *waiting;
        assert!(
            exists.is_some() || deleted.is_some(),
            "environment {number} waits for nothing"
        );
        let mut environment = new();
        wait_with_reason(&mut environment);
        let status = &environment.machine().expect("the Machine exists").status;
        let is_expected = exists.map_or_else(|| is_ready(&environment), |it| says(status, it));
        if !is_expected {
            wrong.push(format!("environment {number}: {:?}", said(status)));
        }
        let mut waits = false;
        for (passes, environment) in deleted_after_each_pass(new) {
            let Some(machine) = environment.machine() else {
                continue;
            };
            waits = true;
            if !deleted.is_some_and(|it| says(&machine.status, it)) {
                let said = said(&machine.status);
                wrong.push(format!(
                    "environment {number}, deleted after {passes}: {said:?}"
                ));
            }
        }
        if deleted.is_some() && !waits {
            wrong.push(format!("environment {number}: its deletion never waits"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn says(status: &MachineStatus, (kind, reason, part): Cause) -> bool {
    let mut said = said(status).into_iter();
    said.any(|it| (it.0, it.1) == (kind, reason) && it.2.contains(part))
}

/// Type, reason and message of each condition, and what is said of a migration that is under way.
fn said(status: &MachineStatus) -> Vec<(&str, &str, &str)> {
    let conditions = status.conditions.iter();
    let conditions = conditions.map(|it| (&*it.kind, &*it.reason, &*it.message));
    let migration = status.last_migration.as_ref();
    let migration = migration.filter(|it| it.result.is_none());
    let migration = migration
        .and_then(|it| Some(("status.lastMigration", &*it.request, it.message.as_deref()?)));
    conditions.chain(migration).collect()
}

/// While a part of the observation cannot be read, a guest runs on, no volume of a Machine that stays is lost, and the
/// Machine is ready or says why not. Once the part is read again, a Machine is ready, and one that was deleted is gone. Each
/// part matters to one of the environments at least.
///
/// # Panics
/// If the law does not hold.
pub fn an_unreadable_part_costs_no_guest_and_no_volume<E: Environment>(all: &[&dyn Fn() -> E]) {
    let mut noticed = BTreeSet::new();
    for new in all {
        let mut environment = new();
        let last = settle(&mut environment);
        environment.delete_machine();
        settle(&mut environment);
        let left = environment.volumes();
        for (part, passes) in E::PARTS
            .iter()
            .flat_map(|part| (0..=last).map(move |passes| (*part, passes)))
        {
            if without_part(*new, part, passes, &left) {
                noticed.insert(part);
            }
        }
    }
    for part in E::PARTS {
        assert!(noticed.contains(part), "{part} matters to nothing");
    }
}

/// Returns whether the Machine noticed that the part was unreadable. `left`: the volumes of a Machine that was deleted while
/// everything could be read.
fn without_part<E: Environment>(
    new: &dyn Fn() -> E,
    part: &str,
    passes: usize,
    left: &BTreeSet<String>,
) -> bool {
    let what = format!("{part} is unreadable after {passes} passes");
    let mut environment = new();
    run(&mut environment, passes);
    let (guest, volumes) = (environment.guest(), environment.volumes());
    environment.set_readable(part, false);
    wait_with_reason(&mut environment);
    let waits = !is_ready(&environment);
    assert!(guest.is_none() || environment.guest() == guest, "{what}");
    assert!(environment.volumes().is_superset(&volumes), "{what}");
    environment.set_readable(part, true);
    settle(&mut environment);
    let status = &environment.machine().expect("the Machine exists").status;
    let (value, reason) = ready(status).expect("the Machine has the condition Ready");
    assert_eq!(value, "True", "{what}: {reason}");

    environment.set_readable(part, false);
    environment.delete_machine();
    wait_with_reason(&mut environment);
    let keeps = environment.machine().is_some() || environment.volumes() != *left;
    environment.set_readable(part, true);
    settle(&mut environment);
    assert!(environment.machine().is_none(), "{what}, and deleted");
    waits || keeps
}
