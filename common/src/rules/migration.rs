//! The annotations that move a running guest to another node, or a stopped Machine to another libvirt host.

pub(super) mod libvirt;

use crate::api::choice::{Backend, PowerState};
use crate::code::Code;
use crate::names;
use crate::violation::{Findings, Kind, Violation};

use super::form;
use super::name_form::NameForm;
use super::rule::{Check, MigrationRequest, rules};

rules! {
    "migration" Check::Migration(target), on MACHINES, Always {
        Refuse InvalidMigrationTarget = "The annotation `machine.vitistack.io/migrate-to` cannot be the name of a node, or on libvirt that of a LibvirtHost."
            because "KubeVirt looks for a node with this name as its label `kubernetes.io/hostname`, and the controller for a LibvirtHost of this name."
            fix "Write the name of a node as `kubectl get nodes` shows it, on libvirt that of a LibvirtHost, or drop the annotation: KubeVirt or the controller then chooses."
            crd Nothing,
    }
    "migration" Check::Migration(movable), on MACHINES, Update {
        Refuse MigrationNotPossible = "A migration is requested of a guest that cannot be moved: on KubeVirt while it runs, on libvirt while it is stopped."
            because "The request would be accepted, and refused later in the status, where its author may not look."
            fix "Remove the obstacle that the message names, or drop the annotation `machine.vitistack.io/migrate-requested`."
            crd Nothing,
    }
}

/// Path of an annotation.
fn annotation(name: &str) -> String {
    format!("metadata.annotations[{name}]")
}

/// What can be the label `kubernetes.io/hostname` of a node, by which KubeVirt selects it.
const NODE_NAME: &str = "must be the name of a node: at most 63 letters, digits, '-', '_' and '.', a letter or digit first and last";

/// Rule [`Code::InvalidMigrationTarget`].
fn target(request: &MigrationRequest<'_>, findings: &mut Findings) {
    let Some(name) = request.new_target else {
        return;
    };
    let (fits, detail) = match request.backend {
        Backend::Kubevirt => (form::is_label_name(name), NODE_NAME.to_owned()),
        Backend::Libvirt => {
            let requirement = NameForm::OBJECT.requirement();
            let detail = format!("{requirement}: it names a LibvirtHost");
            (form::is_object_name(name), detail)
        }
    };
    if !fits {
        let at = annotation(names::ANNOTATION_MIGRATE_TO);
        let fault = Violation::new(&*at, Code::InvalidMigrationTarget, Kind::Invalid, detail);
        findings.deny(fault.text(name));
    }
}

/// Rule [`Code::MigrationNotPossible`]. What the controller has not reported yet is not refused: the status says then
/// why the guest was not moved.
fn movable(request: &MigrationRequest<'_>, findings: &mut Findings) {
    if !request.is_new {
        return;
    }
    let detail = if request.backend == Backend::Libvirt {
        let Some(obstacle) = libvirt::obstacle_of(request, findings) else {
            return;
        };
        obstacle
    } else if request.power_state == Some(PowerState::Stopped) {
        "the machine is stopped; request the migration when its guest runs".to_owned()
    } else if let Some(obstacle) = request.obstacle {
        format!(
            "{obstacle}; remove the obstacle, or let the guest start on another node with spec.nodeSelector and a restart"
        )
    } else if let Some(node) = request.target.filter(|it| Some(*it) == request.node) {
        let target = names::ANNOTATION_MIGRATE_TO;
        format!(
            "the guest runs on {node} already; name another node in the annotation {target}, or drop that"
        )
    } else {
        return;
    };
    let at = annotation(names::ANNOTATION_MIGRATE_REQUESTED);
    let code = Code::MigrationNotPossible;
    findings.deny(Violation::new(&*at, code, Kind::Forbidden, detail));
}
