//! Names of objects.

use crate::catalog::built_in_names;
use crate::code::Code;
use crate::violation::{Findings, Kind, Violation};

use super::form;

const NAME: &str = "metadata.name";

/// Rule [`Code::InvalidName`]: the name becomes a label's value and part of other names. `is_free`:
/// whether an object of the kind may have another name.
pub(crate) fn object(name: &str, is_free: impl Fn(&str) -> bool, findings: &mut Findings) {
    if !form::is_label(name) {
        let detail = form::label_fix(name, is_free);
        let fault = Violation::new(NAME, Code::InvalidName, Kind::Invalid, detail);
        findings.deny(fault.text(name));
    }
}

/// Whether a template of this name would never be used.
pub(crate) fn is_reserved(name: &str) -> bool {
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
