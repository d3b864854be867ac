//! Names of objects.

use crate::catalog::built_in_names;
use crate::code::Code;
use crate::violation::{Findings, Kind, Violation};

use super::form;

const NAME: &str = "metadata.name";

/// Rule [`Code::InvalidName`]: the name becomes a label's value and part of other names.
pub(crate) fn object(name: &str, findings: &mut Findings) {
    if !form::is_label(name) {
        findings.deny(
            Violation::new(
                NAME,
                Code::InvalidName,
                Kind::Invalid,
                form::label_fix(name),
            )
            .text(name),
        );
    }
}

/// Rule [`Code::TemplateNameReserved`].
pub(crate) fn template(name: &str, findings: &mut Findings) {
    if built_in_names().any(|reserved| reserved == name) {
        let detail = "small, medium and large are built in; choose another name";
        findings.deny(Violation::new(
            NAME,
            Code::TemplateNameReserved,
            Kind::Forbidden,
            detail,
        ));
    }
}
