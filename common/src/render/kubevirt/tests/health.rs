//! Watchdog and probes.

use serde_json::{Value, json};

use super::fixtures;
use super::schema;
use crate::api::choice::{Choice as _, WatchdogAction};
use crate::api::machine::{ExecProbe, GuestAgentPing, HttpProbe, Probe, Probes, TcpProbe};
use crate::api::normalized::Normalized;
use crate::render::kubevirt::types::InstanceSpec;

/// The specification of the instance, which KubeVirt's schema accepts.
fn instance(block: &Normalized) -> Value {
    let vm = schema::accepted(block);
    vm["spec"]["template"]["spec"].clone()
}

#[test]
fn each_action_of_the_watchdog_is_rendered_by_kubevirts_name() {
    let names = ["reset", "poweroff", "shutdown"];
    for (action, name) in WatchdogAction::ALL.iter().zip(names) {
        let block = Normalized {
            watchdog: Some(*action),
            ..fixtures::block()
        };
        let expected = json!({"name": "watchdog", "i6300esb": {"action": name}});
        assert_eq!(instance(&block)["domain"]["devices"]["watchdog"], expected);
    }
    let without = instance(&fixtures::block());
    assert_eq!(without["domain"]["devices"]["watchdog"], Value::Null);
}

/// The readiness probe and the liveness probe as they are rendered and read again.
fn rendered(readiness: Option<Probe>, liveness: Option<Probe>) -> [Value; 2] {
    let probes = Probes {
        liveness: liveness.map(|probe| Box::new(probe.with_defaults())),
        readiness: readiness.map(|probe| Box::new(probe.with_defaults())),
    };
    let block = Normalized {
        probes: probes.clone().if_any(),
        ..fixtures::block()
    };
    let spec = instance(&block);
    let read: InstanceSpec = serde_json::from_value(spec.clone()).unwrap();
    assert_eq!(read.readiness_probe, probes.readiness);
    assert_eq!(read.liveness_probe, probes.liveness);
    ["readinessProbe", "livenessProbe"].map(|field| spec[field].clone())
}

#[test]
fn probes_of_each_kind_are_rendered_with_the_defaults_that_kubevirt_sets() {
    let http = Probe {
        http_get: Some(HttpProbe {
            port: Some(80),
            ..HttpProbe::default()
        }),
        initial_delay_seconds: Some(0),
        ..Probe::default()
    };
    let exec = Probe {
        exec: Some(ExecProbe {
            command: Some(vec!["true".to_owned()]),
        }),
        initial_delay_seconds: Some(60),
        ..Probe::default()
    };
    let expected = [
        json!({
            "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
            "failureThreshold": 3, "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1,
        }),
        json!({
            "exec": {"command": ["true"]}, "initialDelaySeconds": 60,
            "failureThreshold": 3, "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1,
        }),
    ];
    assert_eq!(rendered(Some(http), Some(exec)), expected);

    let tcp = Probe {
        tcp_socket: Some(TcpProbe { port: Some(22) }),
        failure_threshold: Some(5),
        period_seconds: Some(20),
        success_threshold: Some(2),
        timeout_seconds: Some(3),
        ..Probe::default()
    };
    let agent = Probe {
        guest_agent_ping: Some(GuestAgentPing {}),
        ..Probe::default()
    };
    let [readiness, liveness] = rendered(Some(tcp), Some(agent));
    let expected = json!({
        "tcpSocket": {"port": 22},
        "failureThreshold": 5, "periodSeconds": 20, "successThreshold": 2, "timeoutSeconds": 3,
    });
    assert_eq!(readiness, expected);
    assert_eq!(liveness["guestAgentPing"], json!({}));
    assert_eq!(rendered(None, None), [Value::Null, Value::Null]);
}

#[test]
fn an_instance_with_a_probe_of_another_form_is_read_without_it() {
    let spec = json!({
        "architecture": "amd64", "readinessProbe": {"tcpSocket": {"port": "ssh"}}, "livenessProbe": null,
    });
    let read: InstanceSpec = serde_json::from_value(spec).unwrap();
    assert_eq!((read.readiness_probe, read.liveness_probe), (None, None));
    assert_eq!(read.architecture, "amd64");
}
