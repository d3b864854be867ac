//! Updates of a Machine that is being deleted. What is refused of them is refused for the disks and the guest that are about
//! to go, so the messages about those would lead nowhere.

use crate::catalog::Catalog;
use crate::code::Code;
use crate::rules::rule::{Check, Update, rules};
use crate::violation::{Findings, Kind, Violation};

/// Where an object says that it is being deleted.
const DELETED_SINCE: &str = "metadata.deletionTimestamp";

rules! {
    "update" Check::Update(being_deleted), on MACHINES, Update {
        Refuse MachineDeleting = "An update that an existing Machine refuses is sent to one that is being deleted."
            because "The manifest is meant for the next Machine of the name, and that of the disks and the guest which are about to go cannot become it."
            fix "Apply the manifest again once the Machine is gone."
            crd Nothing,
    }
}

/// Rule [`Code::MachineDeleting`], in place of all others about the change. It runs after them.
fn being_deleted(update: &Update<'_>, _: &dyn Catalog, findings: &mut Findings) {
    let violations = findings.violations.iter();
    let mut about_the_change = violations.filter(|it| it.code.is_about_the_change());
    if !update.is_being_deleted || about_the_change.next().is_none() {
        return;
    }
    findings
        .violations
        .retain(|violation| !violation.code.is_about_the_change());
    let detail = "the Machine is being deleted and cannot become this one; apply it again once the Machine is gone (kubectl get machine shows none), which creates another";
    let code = Code::MachineDeleting;
    findings.deny(Violation::new(DELETED_SINCE, code, Kind::Forbidden, detail));
}
