//! Probes of a guest, with the fields of KubeVirt's VirtualMachine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::ProbeScheme;
use crate::api::{cel, schema};
use crate::bounds;

/// Probes by which it is noticed whether the guest serves and whether it still works. On libvirt only readiness by
/// guestAgentPing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [cel::liveness_succeeds_once()]))]
pub struct Probes {
    /// While this probe fails, the guest is restarted: KubeVirt ends it, and the controller starts it again. On KubeVirt
    /// only. Default: the template's probe as a whole, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness: Option<Box<Probe>>,
    /// While this probe fails, the condition Ready of the Machine is False, and Services send nothing to the guest.
    /// Default: the template's probe as a whole, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness: Option<Box<Probe>>,
}

impl Probes {
    /// The probes, if there is any.
    pub fn if_any(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

/// A probe that is made again and again: exactly one of exec, guestAgentPing, httpGet and tcpSocket says how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [cel::one_probe()]))]
pub struct Probe {
    /// A command in the guest, which ends with 0 if the guest works. The guest agent runs it. On KubeVirt only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecProbe>,
    /// Failures in a row, at least 1, after which the probe fails. Default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::PROBE_COUNT_MAX))]
    pub failure_threshold: Option<i64>,
    /// Whether the guest agent answers: written as {}.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_agent_ping: Option<GuestAgentPing>,
    /// An HTTP request to the guest, which answers with a status from 200 to 399 if it works. Needs a network card on the
    /// pod network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpProbe>,
    /// Seconds from the start of the guest until the first probe, at least 0. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = bounds::PROBE_COUNT_MAX))]
    pub initial_delay_seconds: Option<i64>,
    /// Seconds from one probe to the next, at least 1. Default 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::PROBE_COUNT_MAX))]
    pub period_seconds: Option<i64>,
    /// Successes in a row, at least 1, after which a probe that failed succeeds. Default 1, which liveness cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::PROBE_COUNT_MAX))]
    pub success_threshold: Option<i64>,
    /// A TCP connection to the guest, which accepts it if it works. Needs a network card on the pod network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpProbe>,
    /// Seconds, at least 1 and on libvirt at most 5, after which an attempt without an answer has failed. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::PROBE_COUNT_MAX))]
    pub timeout_seconds: Option<i64>,
}

impl Probe {
    /// The probe with the defaults of KubeVirt (`SetDefaults_Probe`, v1.9) and of Kubernetes
    /// (`SetDefaults_HTTPGetAction`) in place of absent values, as the instance of the guest has it.
    #[must_use]
    pub fn with_defaults(mut self) -> Self {
        self.failure_threshold.get_or_insert(3);
        self.initial_delay_seconds = self.initial_delay_seconds.filter(|seconds| *seconds != 0);
        self.period_seconds.get_or_insert(10);
        self.success_threshold.get_or_insert(1);
        self.timeout_seconds.get_or_insert(1);
        if let Some(http) = &mut self.http_get {
            http.path.get_or_insert_with(|| "/".to_owned());
            let scheme = || ProbeScheme::Http.to_string();
            http.scheme.get_or_insert_with(scheme);
        }
        self
    }

    /// Whether the guest is reached by the pod network.
    pub fn needs_pod_network(&self) -> bool {
        self.http_get.is_some() || self.tcp_socket.is_some()
    }
}

/// A command in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecProbe {
    /// The program and its arguments, 1 to 64 texts of at most 1024 characters. No shell reads them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::ProbeArgument>>", required, length(min = 1, max = bounds::PROBE_ARGUMENTS_MAX))]
    pub command: Option<Vec<String>>,
}

/// A question to the guest agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuestAgentPing {}

/// An HTTP request to the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpProbe {
    /// Path of the request: '/' and at most 1023 printable ASCII characters without spaces. Default /.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::HttpPath>")]
    pub path: Option<String>,
    /// Port of the guest, from 1 to 65535.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", required, range(min = 1, max = bounds::PORT_MAX))]
    pub port: Option<i64>,
    /// HTTP (default) or HTTPS, whose certificate is not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ProbeScheme>")]
    pub scheme: Option<String>,
}

/// A TCP connection to the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TcpProbe {
    /// Port of the guest, from 1 to 65535.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", required, range(min = 1, max = bounds::PORT_MAX))]
    pub port: Option<i64>,
}
