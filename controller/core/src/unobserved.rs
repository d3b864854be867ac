//! The plan of a Machine whose guest and volumes cannot be read.

use common::api::status::MachineStatus;

use crate::conditions::{Conditions, Fault};
use crate::machine::Machine;
use crate::plan::{Now, Plan, Refusal};
use crate::status::plan_with_status;

/// Changes nothing but the condition `Ready`, which is unknown for this reason; everything else is as it was read last.
pub(crate) fn plan_of_unobserved<A>(machine: &Machine, refusal: &Refusal, now: Now) -> Plan<A> {
    let reason = refusal.reason.unwrap_or("ObservationFailed");
    let list = machine.status.conditions.clone();
    let mut conditions = Conditions::without(machine, now, list, "Ready");
    let why = Fault::new(reason, refusal.message.as_str());
    conditions.set("Ready", "Unknown", &why);
    let status = MachineStatus {
        conditions: conditions.list,
        ..machine.status.clone()
    };
    plan_with_status(machine, now, status, vec![])
}
