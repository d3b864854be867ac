//! What the agent of a guest reports.

use std::time::{Duration, Instant};

use controller_core::machine::Machine;
use uuid::Uuid;

use crate::hosts::connected::ConnectedHost;
use crate::observed::HostView;

/// Limit of a query to a guest's agent, which has a timeout of 3 s of its own.
const AGENT_LIMIT: Duration = Duration::from_secs(4);

/// Adds the addresses and the operating system that the guest's agent reports. An agent that does not answer counts as not
/// connected; the addresses of the leases stay. One that has taken too much time is not asked in this pass.
pub(super) async fn ask_agent(
    machine: &Machine,
    view: &mut HostView,
    host: &ConnectedHost,
    uuid: Uuid,
) {
    let Some(guest) = view.guest.as_mut().filter(|guest| guest.has_agent) else {
        return;
    };
    if !host.agent_time.permits(uuid) {
        return keep_last_report(machine, view);
    }
    let slow = &host.host.slow;
    let mut known = view.addresses.clone();
    let reported = slow.call(AGENT_LIMIT, move |host| {
        // Without the time in which other calls had the connection.
        let begin = Instant::now();
        let answer = host.agent_addresses(uuid, &mut known).map(|()| {
            // An agent before 2.10 does not know it, and an administrator may forbid it: the agent is there all the same.
            let os = host.guest_os(uuid).unwrap_or_default();
            (known, os)
        });
        Ok((answer, begin.elapsed()))
    });
    let (answer, took) = match reported.await {
        Ok((answer, took)) => (answer, took),
        Err(error) => (Err(error), AGENT_LIMIT),
    };
    if !matches!(&answer, Err(error) if error.shows_nothing_of_guest()) {
        host.agent_time.spend(uuid, took);
    }
    match answer {
        Ok((known, os)) => (view.addresses, view.guest_os) = (known, os),
        Err(error) if error.shows_nothing_of_guest() => {
            tracing::debug!(%error, "a guest's agent was not asked");
            keep_last_report(machine, view);
        }
        Err(error) => {
            tracing::debug!(%error, "the guest's agent does not answer");
            guest.has_agent = false;
        }
    }
}

/// Keeps what the status has of the agent. Calls for other guests may occupy the connection for minutes. If no agent
/// answered before, nothing is reported of it.
fn keep_last_report(machine: &Machine, view: &mut HostView) {
    let last = &machine.status;
    let mut conditions = last.conditions.iter();
    let answered = conditions.any(|it| it.kind == "AgentConnected" && it.status == "True");
    if let Some(guest) = &mut view.guest {
        guest.has_agent = answered;
    }
    if answered {
        view.guest_os = last.guest_os.clone().unwrap_or_default();
        for card in &last.network_interfaces {
            if let Some(mac) = &card.mac_address {
                view.addresses.add(mac, &card.ip_addresses);
            }
        }
    }
}
