//! Names of objects.

use crate::api::kind::ObjectKind;
use crate::catalog::built_in_names;
use crate::code::Code;
use crate::names;
use crate::violation::{Findings, Kind, Violation};

use super::name_form::NameForm;
use super::rule::{Check, ObjectName, rules};

rules! {
    "names" Check::Name(object), on NAMED, Create {
        Refuse InvalidName = "The name of the object is not of the form that names of its kind have."
            because "The name of a Machine becomes the guest's host name, a label's value and part of other names, so it is a DNS label of at most 63 characters. The name of a MachineTemplate becomes a label's value; it may have dots, and at most 63 characters. A NetworkConfiguration may have any name that Kubernetes allows."
            fix "Take the corrected name from the message."
            crd All,
    }
    "references" Check::Name(template), on TEMPLATES, Create {
        Refuse TemplateNameReserved = "A MachineTemplate has the name of a built-in template."
            because "Machines that name it would silently get something else than the built-in template."
            fix "Choose another name."
            crd All,
    }
}

const NAME: &str = "metadata.name";
const GENERATE_NAME: &str = "metadata.generateName";

/// The form of the names of a kind. The name of a Machine is the guest's host name, a label's value and part of other
/// names; that of a template is a label's value.
fn form_of(kind: ObjectKind) -> NameForm {
    match kind {
        ObjectKind::Machine => NameForm::LABEL,
        ObjectKind::MachineTemplate => NameForm::TEMPLATE,
        ObjectKind::NetworkConfiguration
        | ObjectKind::LibvirtHost
        | ObjectKind::MachinePolicy
        | ObjectKind::MachineImage => NameForm::OBJECT,
    }
}

/// Rule [`Code::InvalidName`].
fn object(object: &ObjectName<'_>, findings: &mut Findings) {
    let form = form_of(object.kind);
    let (field, text, detail) = if let Some(prefix) = object.generate_name {
        let base = names::base_of_generated(prefix);
        if form.fits(&format!("{base}{}", "x".repeat(names::GENERATED_SUFFIX))) {
            return;
        }
        let fix = form.nearest(prefix);
        let fix = fix.map_or_else(String::new, |name| format!("; try '{name}-'"));
        let detail = format!("the generated name {}{fix}", form.requirement());
        (GENERATE_NAME, prefix, detail)
    } else if form.fits(object.name) {
        return;
    } else {
        let is_template = object.kind == ObjectKind::MachineTemplate;
        let is_free = |name: &str| !is_template || !is_reserved(name);
        (NAME, object.name, form.fix(object.name, is_free))
    };
    let violation = Violation::new(field, Code::InvalidName, Kind::Invalid, detail);
    findings.deny(violation.text(text));
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
