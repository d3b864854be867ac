//! Refusal of changes that discard the EFI variables or the content of the TPM. They are data of the guest like a disk:
//! without the keys in its TPM, a guest cannot read an encrypted disk.

use crate::api::choice::Backend;
use crate::catalog::Catalog;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::names;
use crate::rules::rule::{Check, Update, rules};
use crate::rules::{firmware, state};
use crate::violation::{Findings, Kind, Violation};

rules! {
    "update" Check::Update(discarded), on MACHINES, Update {
        Refuse StateDiscarded = "A change would discard the EFI variables or the content of the TPM."
            because "They are lost with the change; a disk that is encrypted with a key of the TPM could not be read any more."
            fix "Keep the field, or confirm the loss with the annotation `machine.vitistack.io/discard-state`, which names `efi`, `tpm` or both. The controller removes the annotation after the change."
            crd Nothing scope Change,
    }
}

/// Rule [`Code::StateDiscarded`].
fn discarded(update: &Update<'_>, _: &dyn Catalog, findings: &mut Findings) {
    let merged = update.merged;
    let is_confirmed = |name: &str| {
        update
            .discarded_state
            .split(',')
            .any(|it| it.trim() == name)
    };
    let (efi, persistent) = (firmware::efi(merged), state::efi(merged));
    // A template that was not found may set another value.
    let is_known = merged.is_complete();
    if update.old.keeps_efi() && !is_confirmed("efi") {
        let keeps_efi = efi.value == Some(true) || efi.value.is_none() && !is_known;
        if !keeps_efi {
            let keep = "keep efi: true";
            findings.deny(violation(efi.path, "the EFI variables", "efi", keep));
        } else if persistent.value == Some(false) {
            let keep = "leave persistent at true";
            findings.deny(violation(persistent.path, "the EFI variables", "efi", keep));
        } else if update.backend == Backend::Libvirt && !update.runs {
            // Another firmware starts with new variables. Of a machine that runs, the change is refused as such.
            let secure_boot = firmware::secure_boot(merged);
            let was = update.old.firmware.secure_boot == Some(true);
            if is_known && secure_boot.value.unwrap_or(false) != was {
                let keep = format!("leave secureBoot at {was}");
                let path = secure_boot.path;
                findings.deny(violation(path, "the EFI variables", "efi", &keep));
            }
        }
    }
    let keeps_tpm = state::requested_tpm(merged).is_some_and(|tpm| tpm.persistent);
    if update.old.keeps_tpm() && !is_confirmed("tpm") && !keeps_tpm && is_known {
        let path = state::tpm_path(merged);
        let keep = "keep tpm with persistent: true";
        findings.deny(violation(path, "the content of the TPM", "tpm", keep));
    }
}

/// Violation for state that a change would discard. `name`: what the annotation has to contain.
fn violation(path: FieldPath, what: &str, name: &str, keep: &str) -> Violation {
    let annotation = names::ANNOTATION_DISCARD_STATE;
    let detail = format!(
        "would discard {what} for good; {keep}, or confirm it with the annotation {annotation}: {name}"
    );
    Violation::new(path, Code::StateDiscarded, Kind::Forbidden, detail)
}
