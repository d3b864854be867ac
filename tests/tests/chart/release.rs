//! A release in a cluster, and its programs as its Deployments would run them.

use std::net::Ipv4Addr;

use lab::{
    Binary, Helm, Lab, OPERATOR_NAMESPACE, Options, Output, ProgramUnderTest,
    WEBHOOK_CONFIGURATION, objects::SECRET,
};
use serde_json::Value;

/// A cluster with a release of the chart, and the programs that its Deployments would run.
pub(crate) struct Release {
    pub(crate) lab: Lab,
    pub(crate) helm: Helm,
}

impl Release {
    /// A cluster with KubeVirt, Multus and storage, and without the operator.
    pub(crate) async fn none() -> Self {
        let options = Options {
            operator: false,
            ..Options::default()
        };
        let lab = Lab::with(options).await.unwrap();
        let helm = lab.helm().await.unwrap();
        Self { lab, helm }
    }

    /// The value that sets the Service's port to one that needs no privileges to listen on.
    pub(crate) fn port(&self) -> String {
        let port = self.lab.webhook_address().port();
        format!("--set=webhook.servicePort={port}")
    }

    /// Runs a command as a user types it in a checkout.
    pub(crate) async fn shell(&self, command: &str) -> Output {
        let kubectl = self.lab.kubectl();
        kubectl.shell(command, &[self.helm.path()]).await.unwrap()
    }

    pub(crate) async fn helm(&self, arguments: &[&str]) -> Output {
        let mut all = arguments.to_vec();
        all.extend(["--namespace", OPERATOR_NAMESPACE]);
        self.helm.run(&all).await.unwrap()
    }

    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Output {
        self.lab.kubectl().run(arguments).await.unwrap()
    }

    /// An object of the cluster.
    pub(crate) async fn get(&self, kind: &str, name: &str) -> Value {
        let namespace = ["--namespace", OPERATOR_NAMESPACE].join("=");
        let get = ["get", kind, name, "--output=json", &namespace];
        let output = self.kubectl(&get).await;
        serde_json::from_str(&output.ok().unwrap()).unwrap()
    }

    /// The environment variables of an installed Deployment that have a literal value.
    async fn settings(&self, deployment: &str) -> Vec<(String, String)> {
        let deployment = self.get("deployment", deployment).await;
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let variables = container["env"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        variables
            .filter_map(|it| Some((text(&it["name"])?, text(&it["value"])?)))
            .collect()
    }

    /// Starts a program with the settings of its Deployment, at addresses of this machine.
    pub(crate) async fn start(&mut self, binary: Binary) -> ProgramUnderTest {
        let settings = self.settings(binary.account()).await;
        let mut all: Vec<_> = settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        all.push(("HEALTH_PROBE_BIND_ADDRESS", "127.0.0.1:0"));
        // There are no other clients: stop at once.
        all.push(("DRAIN_DELAY", "0s"));
        match binary {
            // There are no nodes that forward a Service to its pods: the webhook listens at the Service's own
            // address, which is one of this machine.
            Binary::Webhook => {
                let service = self.get("service", "machine-webhook").await;
                let address = service["spec"]["clusterIP"].as_str().unwrap();
                assert!(address.parse::<Ipv4Addr>().unwrap().is_loopback());
                let address = format!("{address}:{}", service["spec"]["ports"][0]["port"]);
                all.push(("WEBHOOK_BIND_ADDRESS", &address));
                self.lab.start_webhook(&all).await.unwrap()
            }
            Binary::Controller => {
                all.push(("METRICS_BIND_ADDRESS", "127.0.0.1:0"));
                self.lab.start_controller(&all).await.unwrap()
            }
        }
    }

    /// The entries of both webhook configurations.
    pub(crate) async fn entries(&self) -> Vec<Value> {
        let mut entries = Vec::new();
        for kind in [
            "mutatingwebhookconfiguration",
            "validatingwebhookconfiguration",
        ] {
            let mut configuration = self.get(kind, WEBHOOK_CONFIGURATION).await;
            let found = configuration["webhooks"].take();
            entries.extend(found.as_array().unwrap().clone());
        }
        entries
    }

    pub(crate) async fn ca(&self) -> Value {
        self.lab
            .objects(SECRET, OPERATOR_NAMESPACE)
            .get("machine-webhook-ca")
            .await
            .unwrap()
    }
}
