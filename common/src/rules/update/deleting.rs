//! Updates of a Machine that is being deleted. Its disks and its guest are being removed, so that messages which compare a
//! manifest with them would lead nowhere.

use crate::code::{Code, Scope};
use crate::rules::rule::{Check, rules};
use crate::violation::{Findings, Kind, Violation};

/// The field of the manifest that the Machine under deletion still has.
const NAME: &str = "metadata.name";

rules! {
    "update" Check::Deletion(being_deleted), on MACHINES, Update {
        Refuse MachineDeleting = "A change that is refused on an existing Machine is sent to one that is being deleted."
            because "The disks and the guest of this Machine are being removed; the manifest describes the next Machine of that name."
            fix "Apply the manifest again once the Machine is gone."
            crd Nothing scope Change,
    }
}

/// Rule [`Code::MachineDeleting`], in place of all violations that are about a change.
fn being_deleted(findings: &mut Findings) {
    let before = findings.violations.len();
    findings
        .violations
        .retain(|violation| violation.code.scope() != Scope::Change);
    if findings.violations.len() == before {
        return;
    }
    let detail = "the Machine is being deleted, and this change is refused on an existing Machine; apply the manifest again once the Machine is gone, which creates another one";
    let (code, kind) = (Code::MachineDeleting, Kind::Forbidden);
    findings.deny(Violation::new(NAME, code, kind, detail));
}
