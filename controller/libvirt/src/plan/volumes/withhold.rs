//! Volumes that are not made yet, because the domain cannot be defined with them.
//!
//! Until then no record has a volume that was made. If its disk left the spec meanwhile, nothing would count it in the quota,
//! and nothing would show that it exists.

use controller_core::conditions::Fault;

use super::super::action::Action;
use super::collected::Volumes;

impl Volumes {
    /// Takes out the volumes that are not to be made now. Images are fetched in any case: they are not the Machine's. Copies
    /// that are under way continue by themselves; others are begun while only images and copies are missing.
    /// `lacks_other_parts`: hardware, a network or a Secret is missing.
    pub(in crate::plan) fn withhold(&mut self, lacks_other_parts: bool) {
        let may_copy = !lacks_other_parts && self.outcome.fault.is_none();
        let copies = std::mem::take(&mut self.copies);
        self.outcome.record_first(copies.fault);
        let may_create = may_copy && self.outcome.fault.is_none() && self.import.is_none();
        let planned = self.actions.len();
        self.actions.retain(|action| match action {
            Action::CreateVolume { .. } => may_create,
            Action::CopyVolume { .. } => may_copy,
            _ => true,
        });
        if self.actions.len() < planned {
            let message = "the disks get their volumes when the other conditions no longer keep the domain from being defined";
            self.withheld = Some(Fault::new("VolumesPending", message));
        }
    }
}
