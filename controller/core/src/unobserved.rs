//! The plan of a Machine whose guest and volumes cannot be read.

use crate::conditions::{Conditions, Fault};
use crate::machine::Machine;
use crate::plan::{Now, Plan, Refusal};
use crate::ready::last_known;
use crate::status::plan_with_status;

/// Changes nothing but the conditions `Ready`, which is unknown for this reason, and `Paused`.
pub(crate) fn plan_of_unobserved<A>(machine: &Machine, refusal: &Refusal, now: Now) -> Plan<A> {
    let reason = refusal.reason.unwrap_or("ObservationFailed");
    let why = Fault::new(reason, refusal.message.as_str());
    let status = last_known(machine, Conditions::new(machine, now), &why);
    plan_with_status(machine, now, status, vec![])
}
