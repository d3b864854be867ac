//! Names of objects.

use crate::api::kind::ObjectKind;
use crate::catalog::built_in_names;
use crate::code::Code;
use crate::violation::{Findings, Kind, Violation};

use super::form;
use super::rule::{Check, ObjectName, rules};

rules! {
    "names" Check::Name(object), on NAMED, Create {
        Refuse InvalidName = "The name of the object is not a DNS label of at most 63 characters."
            because "The name becomes the guest's host name, a label's value and part of other names."
            fix "Take the corrected name from the message."
            crd Some,
    }
    "references" Check::Name(template), on TEMPLATES, Create {
        Refuse TemplateNameReserved = "A MachineTemplate has the name of a built-in template."
            because "Machines that name it would silently get something else than the built-in template."
            fix "Choose another name."
            crd All,
    }
}

const NAME: &str = "metadata.name";

/// Rule [`Code::InvalidName`]: the name becomes a label's value and part of other names.
fn object(object: &ObjectName<'_>, findings: &mut Findings) {
    let ObjectName { kind, name } = *object;
    if !form::is_label(name) {
        let is_template = kind == ObjectKind::MachineTemplate;
        let detail = form::label_fix(name, |name| !is_template || !is_reserved(name));
        let violation = Violation::new(NAME, Code::InvalidName, Kind::Invalid, detail);
        findings.deny(violation.text(name));
    }
}

/// Whether a template of this name would never be used.
fn is_reserved(name: &str) -> bool {
    built_in_names().any(|reserved| reserved == name)
}

/// Rule [`Code::TemplateNameReserved`].
fn template(object: &ObjectName<'_>, findings: &mut Findings) {
    if is_reserved(object.name) {
        let detail = "small, medium and large are built in; choose another name";
        let code = Code::TemplateNameReserved;
        findings.deny(Violation::new(NAME, code, Kind::Forbidden, detail));
    }
}
