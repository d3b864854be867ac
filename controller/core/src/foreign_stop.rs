//! A guest that another client stops although its Machine is to run: with `virtctl` or `kubectl` on KubeVirt, with `virsh`
//! on libvirt.

use common::names;

use crate::conditions::{Fault, ready};
use crate::machine::Machine;

/// Reason of `Ready` while another client has stopped the guest.
const FOREIGN_STOP: &str = "ForeignStop";

/// What is done about a guest that another client stops although its Machine is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnForeignStop {
    /// It is started again once it is down.
    #[default]
    Restore,
    /// It stays off until `spec.powerState` or the annotation `restart-requested` changes.
    Keep,
}

impl OnForeignStop {
    /// Whether the guest of this Machine is started again.
    pub fn restores(self, machine: &Machine) -> bool {
        self == Self::Restore && !machine.is_paused()
    }

    /// What is done about the guest of this Machine, as part of a sentence.
    fn next(self, machine: &Machine) -> String {
        match self {
            _ if machine.is_paused() => {
                "nothing is done about it while the Machine is paused".to_owned()
            }
            Self::Restore => {
                "the guest is started again, unless another condition says what prevents it"
                    .to_owned()
            }
            Self::Keep => format!(
                "the guest stays off until spec.powerState changes or the annotation {} has a new text",
                names::ANNOTATION_RESTART_REQUESTED
            ),
        }
    }

    /// What is reported of a guest that another client has stopped. `what`: how, as a sentence without its end.
    pub fn fault(self, machine: &Machine, what: &str) -> Fault {
        let next = self.next(machine);
        let message = format!(
            "{what}; {next}; to stop the guest, set spec.powerState of the Machine to Stopped instead"
        );
        Fault::new(FOREIGN_STOP, message)
    }
}

/// Whether the last status reports that another client has stopped the guest.
pub fn is_reported(machine: &Machine) -> bool {
    ready(&machine.status).is_some_and(|(_, reason)| reason == FOREIGN_STOP)
}
