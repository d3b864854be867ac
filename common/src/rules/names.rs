//! Names of objects.

use crate::admission::ObjectKind;
use crate::catalog::built_in_names;
use crate::code::Code;
use crate::violation::{Findings, Kind, Violation};

use super::form;

const NAME: &str = "metadata.name";

/// Rule [`Code::InvalidName`]: the name becomes a label's value and part of other names.
pub(crate) fn object(kind: ObjectKind, name: &str, findings: &mut Findings) {
    if !form::is_label(name) {
        let is_free = |label: &str| kind != ObjectKind::MachineTemplate || !is_reserved(label);
        let detail = form::label_fix(name, is_free);
        let fault = Violation::new(NAME, Code::InvalidName, Kind::Invalid, detail);
        findings.deny(fault.text(name));
    }
}

/// Whether a template of this name would never be used.
fn is_reserved(name: &str) -> bool {
    built_in_names().any(|reserved| reserved == name)
}

/// Rule [`Code::TemplateNameReserved`].
pub(crate) fn template(name: &str, findings: &mut Findings) {
    if is_reserved(name) {
        let detail = "small, medium and large are built in; choose another name";
        findings.deny(Violation::new(
            NAME,
            Code::TemplateNameReserved,
            Kind::Forbidden,
            detail,
        ));
    }
}
