//! What the guest's agent shows, and what the readiness probe shows that asks it.

use common::api::machine::{GuestAgentPing, Probe, Probes};
use common::api::status::{GuestOs, MachineStatus};
use controller_core::plan::Now;
use controller_core::reconcile::plan;

use super::*;
use crate::Libvirt;
use crate::access::AccessError;
use crate::access::fake::{Agent, When};

/// Polls a host with a running guest, and returns what is observed of its Machine.
async fn observed_of(env: &Environment) -> Box<HostView> {
    let (observer, _writer) = connected(env);
    view(&observer, env).await
}

/// The agent has opened its channel inside the guest.
fn open_channel(env: &Environment) {
    for domain in env.host.state().domains.values_mut() {
        let live = domain.live.as_mut().unwrap();
        let channel = "name='org.qemu.guest_agent.0'";
        assert!(live.contains(channel), "{live}");
        *live = live.replace(channel, &format!("{channel} state='connected'"));
    }
}

#[tokio::test]
async fn the_operating_system_is_what_the_agent_reports_and_an_agent_that_does_not_know_it_is_connected()
 {
    let mut env = Environment::new(block());
    env.settle();
    let fedora = GuestOs {
        name: Some("Fedora Linux".into()),
        version: Some("40 (Cloud Edition)".into()),
        kernel: Some("6.8.5".into()),
    };
    open_channel(&env);
    for (agent, os, is_connected) in [
        (Agent::Answers, Some(fedora), true),
        (Agent::Answers, None, true),
        (Agent::Silent, None, false),
    ] {
        for domain in env.host.state().domains.values_mut() {
            (domain.guest.agent, domain.guest.os) = (agent, os.clone());
        }
        let view = observed_of(&env).await;
        assert_eq!(view.guest.as_ref().unwrap().has_agent, is_connected);
        assert_eq!(view.guest_os, os.unwrap_or_default());
    }
}

#[tokio::test]
async fn an_agent_that_has_taken_too_much_time_is_not_asked() {
    let mut env = Environment::new(block());
    env.settle();
    open_channel(&env);
    set_agent(&env, Agent::Answers);
    let (observer, _writer) = connected(&env);
    let host = observer.hosts.get("alpha").unwrap();
    let uuid = domain_uuid(env.machine_mut().uid());
    assert!(view(&observer, &env).await.guest.unwrap().has_agent);
    host.agent_time.spend(uuid, Duration::from_mins(1));
    // No status says that it answered before.
    assert!(!view(&observer, &env).await.guest.unwrap().has_agent);
    let mut last = controller_core::fixtures::ready("True", "AgentConnected").conditions;
    last[0].kind = "AgentConnected".into();
    env.machine_mut().status.conditions = last;
    assert!(view(&observer, &env).await.guest.unwrap().has_agent);
}

/// A Machine that runs and asks for a readiness probe each second, two failures of which count.
fn probed_machine() -> Environment {
    let mut env = Environment::new(block());
    env.edit(|block| {
        let probe = Probe {
            failure_threshold: Some(2),
            guest_agent_ping: Some(GuestAgentPing {}),
            period_seconds: Some(1),
            ..Probe::default()
        };
        block.probes = Some(Probes {
            liveness: None,
            readiness: Some(Box::new(probe)),
        });
    });
    env.settle();
    env
}

fn set_agent(env: &Environment, agent: Agent) {
    for domain in env.host.state().domains.values_mut() {
        domain.guest.agent = agent;
    }
}

/// Observes until the probe shows this.
async fn until_readiness(observer: &Observer, env: &Environment, is_ready: bool, why: &str) {
    let mut last = None;
    for _ in 0..400 {
        let readiness = view(observer, env).await.readiness.unwrap();
        if readiness.is_ready == is_ready && readiness.why.contains(why) {
            return;
        }
        last = Some(readiness);
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{last:?}, not {is_ready} {why}");
}

#[tokio::test]
async fn a_guest_with_a_probe_is_ready_while_its_agent_answers() {
    let mut env = probed_machine();
    let (observer, _writer) = connected(&env);
    // The status is that of the spec before the probe was added.
    env.machine_mut().metadata.generation = Some(7);
    let silent = "does not answer within 1 s";
    until_readiness(&observer, &env, false, silent).await;
    set_agent(&env, Agent::Answers);
    until_readiness(&observer, &env, true, "").await;
    set_agent(&env, Agent::Silent);
    until_readiness(&observer, &env, false, silent).await;

    env.edit(|block| block.probes = None);
    assert_eq!(view(&observer, &env).await.readiness, None);
}

/// Another process has written the status of this very spec.
#[tokio::test]
async fn a_guest_that_was_ready_stays_so_until_its_agent_has_failed_to_answer() {
    let env = probed_machine();
    let (observer, _writer) = connected(&env);
    until_readiness(&observer, &env, true, "not asked yet").await;
    until_readiness(&observer, &env, true, "does not answer").await;
    until_readiness(&observer, &env, false, "does not answer").await;
}

/// The status that a pass writes now.
async fn next_status(observer: &Observer, env: &Environment) -> MachineStatus {
    let found = observer.observe(env.machine(), Growth::Permitted);
    let found = found.await.unwrap();
    let now = Now(env.now);
    let plan = plan::<Libvirt>(env.machine(), &found, None, Growth::Permitted, now);
    plan.status.unwrap_or_else(|| env.machine().status.clone())
}

/// Calls for other guests occupy the connection.
#[tokio::test]
async fn an_agent_that_was_not_asked_is_reported_as_before() {
    let mut env = Environment::new(block());
    env.settle();
    open_channel(&env);
    let address = "192.0.2.7";
    let mac = env.machine().status.network_interfaces[0]
        .mac_address
        .clone();
    let os = GuestOs {
        name: Some("Fedora Linux".into()),
        ..GuestOs::default()
    };
    for domain in env.host.state().domains.values_mut() {
        domain.guest.addresses = vec![(mac.clone().unwrap(), vec![address.into()])];
        (domain.guest.agent, domain.guest.os) = (Agent::Answers, Some(os.clone()));
    }
    let (observer, _writer) = connected(&env);
    let not_asked = [
        AccessError::Busy("another job".into()),
        AccessError::TimedOut("the call before hangs".into()),
        AccessError::Cancelled("the host was removed".into()),
        AccessError::Disconnected("the connection ended".into()),
    ];
    let agent = |status: &MachineStatus| {
        let mut conditions = status.conditions.iter();
        let is_connected = conditions.any(|it| it.kind == "AgentConnected");
        (
            is_connected,
            status.guest_os.clone(),
            status.ip_addresses.clone(),
        )
    };
    let nothing = (false, None, vec![]);
    for error in &not_asked {
        env.host
            .fail("agent_addresses", When::Before, error.clone());
        let status = next_status(&observer, &env).await;
        assert_eq!(agent(&status), nothing, "{error:?}");
    }
    env.machine_mut().status = next_status(&observer, &env).await;
    let expected = (true, Some(os), vec![address.to_owned()]);
    assert_eq!(agent(&env.machine().status), expected);
    for error in &not_asked {
        env.host
            .fail("agent_addresses", When::Before, error.clone());
        let status = next_status(&observer, &env).await;
        assert_eq!(agent(&status), expected, "{error:?}");
    }
    set_agent(&env, Agent::Silent);
    let status = next_status(&observer, &env).await;
    assert_eq!(agent(&status), nothing);
}
