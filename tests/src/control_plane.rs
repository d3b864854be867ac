//! One etcd and one kube-apiserver, optionally with kube-controller-manager.
//!
//! ```text
//! kube-controller-manager ──► kube-apiserver ──► etcd      all on 127.0.0.1
//!        ended first             second           last
//! ```
//! etcd ends slowly while an API server is connected, so it is ended last.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use kube::Client;
use tokio::time::timeout;

use crate::{
    credentials::{self, Credentials, Endpoint, User},
    folder::Folder,
    node::network,
    ports, prepared,
    process::{Process, Program},
    tools::Tools,
    wait,
};

/// Limit of a start: it takes 2.5 s on two idle cores, and much longer on two busy ones.
const START: Duration = Duration::from_mins(5);

/// Limit of the end of etcd, to which nothing is connected then.
const STOP: Duration = Duration::from_secs(30);

/// Timeout of one request to `/readyz` while the server starts.
const LOOK: Duration = Duration::from_secs(2);

/// Attempts to start: a program outside of the lab may take a port between its choice and its use.
const ATTEMPTS: usize = 3;

/// Writes to our kinds and KubeVirt's are logged with their body, all other requests with metadata only.
const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["*"]
- level: Request
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - group: vitistack.io
  - group: kubevirt.io
- level: Metadata
"#;

/// The enabled controllers. The binder of claims is not one of them: the simulator replaces it.
const CONTROLLERS: &str = "garbage-collector-controller,namespace-controller,\
    persistentvolumeclaim-protection-controller,serviceaccount-controller,\
    clusterrole-aggregation-controller,validatingadmissionpolicy-status-controller";

/// Further controllers, for pods on a node.
const CONTROLLERS_OF_PODS: &str = ",deployment-controller,replicaset-controller,\
    endpoints-controller,endpointslice-controller,disruption-controller,node-lifecycle-controller,\
    root-ca-certificate-publisher-controller";

/// Who reaches the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Programs of this machine.
    Loopback,
    /// Pods of a node too, in a network namespace of the lab's own.
    Node,
}

impl Network {
    /// The address that clients use.
    fn host(self) -> &'static str {
        match self {
            Self::Loopback => "127.0.0.1",
            Self::Node => network::ADDRESS,
        }
    }

    /// The names in the API server's certificate.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Loopback => &["127.0.0.1", "localhost"],
            Self::Node => &[
                "127.0.0.1",
                "localhost",
                network::ADDRESS,
                network::API_SERVICE,
            ],
        }
    }

    /// The arguments of the API server for its address and those of Services.
    fn arguments(self) -> Vec<String> {
        match self {
            // There are no nodes: a program that replaces the pods of a Service listens at the Service's address,
            // which has to be one of this machine.
            Self::Loopback => vec![
                "--bind-address=127.0.0.1".into(),
                "--service-cluster-ip-range=127.96.0.0/16".into(),
                "--endpoint-reconciler-type=none".into(),
            ],
            Self::Node => vec![
                "--bind-address=0.0.0.0".into(),
                format!("--advertise-address={}", network::ADDRESS),
                format!("--service-cluster-ip-range={}", network::SERVICES),
                // No server knows the name of the node.
                "--kubelet-preferred-address-types=InternalIP".into(),
            ],
        }
    }

    fn controllers(self) -> String {
        match self {
            Self::Loopback => CONTROLLERS.to_owned(),
            Self::Node => format!("{CONTROLLERS}{CONTROLLERS_OF_PODS}"),
        }
    }
}

/// The processes, ended when this is dropped.
pub(crate) struct ControlPlane {
    // Dropped in this order.
    controller_manager: Option<Process>,
    api_server: Option<Process>,
    etcd: Process,
    etcd_address: SocketAddr,
    data: PathBuf,
    program: Program,
    endpoint: Endpoint,
    ca: PathBuf,
    network: Network,
    audit_log: PathBuf,
    kubeconfig: PathBuf,
    client: Client,
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlane")
            .field("server", &self.endpoint.server)
            .finish_non_exhaustive()
    }
}

impl ControlPlane {
    /// Starts it with the admission configuration in the file `admission`. `data`: what its etcd starts with, which is copied.
    pub(crate) async fn start(
        tools: &Tools,
        folder: &Folder,
        admission: &Path,
        network: Network,
        data: Option<&Path>,
    ) -> Result<Self> {
        let credentials = Credentials::write(folder, network.names())?;
        let mut attempt = 1;
        loop {
            match Self::try_start(tools, folder, &credentials, admission, network, data).await {
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                outcome => return outcome,
            }
        }
    }

    async fn try_start(
        tools: &Tools,
        folder: &Folder,
        credentials: &Credentials,
        admission: &Path,
        network: Network,
        prepared: Option<&Path>,
    ) -> Result<Self> {
        let (client_port, peer_port, port) = (ports::free()?, ports::free()?, ports::free()?);
        let etcd_address = SocketAddr::from(([127, 0, 0, 1], client_port));
        let etcd_url = format!("http://{etcd_address}");
        // A new folder per attempt: data of a failed attempt must not be read.
        let data = tempfile::Builder::new()
            .prefix("etcd-")
            .tempdir_in(folder.path())?
            .keep();
        if let Some(prepared) = prepared {
            prepared::copy(prepared, &data)?;
        }
        let etcd = etcd(tools, folder, &data, &etcd_url, peer_port).start()?;

        let endpoint = Endpoint {
            server: format!("https://{}:{port}", network.host()),
            ca_pem: credentials.ca_pem.clone(),
        };
        let text = endpoint.kubeconfig_of(User::Admin);
        let audit_log = folder.join("audit.log");
        let mut plane = Self {
            controller_manager: None,
            api_server: None,
            etcd,
            etcd_address,
            data,
            program: api_server(tools, folder, credentials, &etcd_url, &audit_log)?
                .args(network.arguments())
                .args([
                    format!("--secure-port={port}"),
                    format!("--admission-control-config-file={}", admission.display()),
                ]),
            ca: credentials.ca.clone(),
            network,
            endpoint,
            audit_log,
            kubeconfig: folder.write("kubeconfig", &text)?,
            client: credentials::client(&text).await?,
        };
        plane.start_api_server().await?;
        Ok(plane)
    }

    /// Starts the API server (again), on the port it had, and waits until it is ready.
    pub(crate) async fn start_api_server(&mut self) -> Result<()> {
        let process = self.api_server.insert(self.program.start()?);
        let client = &self.client;
        wait::until_within(START, "the API server to be ready", async || {
            process.check_alive()?;
            let look = client.request_text(get("/readyz")?);
            Ok(match timeout(LOOK, look).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer".to_owned()),
            })
        })
        .await
    }

    /// Ends the API server and waits until it is gone. Its data stays in etcd.
    pub(crate) fn stop_api_server(&mut self) {
        self.api_server = None;
    }

    /// The address of etcd.
    pub(crate) fn etcd_address(&self) -> SocketAddr {
        self.etcd_address
    }

    /// Ends it, etcd in its own time, and returns the folder with etcd's data.
    pub(crate) async fn stop(mut self) -> Result<PathBuf> {
        self.stop_api_server();
        self.etcd.terminate()?;
        self.etcd.wait(STOP).await?;
        Ok(self.data)
    }

    pub(crate) fn start_controller_manager(
        &mut self,
        tools: &Tools,
        folder: &Folder,
    ) -> Result<()> {
        let text = self.endpoint.kubeconfig_of(User::ControllerManager);
        let kubeconfig = folder.write("controller-manager.kubeconfig", &text)?;
        let program = Program::new(
            tools.controller_manager(),
            &folder.join("kube-controller-manager.log"),
        )
        .args([
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--controllers={}", self.network.controllers()),
            format!("--root-ca-file={}", self.ca.display()),
            "--leader-elect=false".into(),
            // It serves no API, because no client uses it.
            "--secure-port=0".into(),
        ]);
        self.controller_manager = Some(program.start()?);
        Ok(())
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(crate) fn audit_log(&self) -> &Path {
        &self.audit_log
    }

    /// The ids of its processes that are running.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        [self.controller_manager.as_ref(), self.api_server.as_ref()]
            .into_iter()
            .flatten()
            .chain([&self.etcd])
            .map(Process::id)
            .collect()
    }
}

/// A GET of a path, for requests without an object.
pub(crate) fn get(path: &str) -> Result<hyper::Request<Vec<u8>>> {
    hyper::Request::get(path)
        .body(Vec::new())
        .with_context(|| format!("a request for {path}"))
}

/// Lets a program of Go collect garbage when its heap has quadrupled instead of doubled, which takes a fifth off the
/// processor time of an API server (measured in the suite `interruptions`), up to 3 GiB of memory.
fn less_garbage_collection(program: Program) -> Program {
    program.env("GOGC", 300).env("GOMEMLIMIT", "3GiB")
}

fn etcd(tools: &Tools, folder: &Folder, data: &Path, url: &str, peer_port: u16) -> Program {
    let peer = format!("http://127.0.0.1:{peer_port}");
    let etcd = Program::new(tools.etcd(), &folder.join("etcd.log"));
    less_garbage_collection(etcd).args([
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // The data is deleted with the lab, so that it need not survive a power failure.
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
    ])
}

fn api_server(
    tools: &Tools,
    folder: &Folder,
    credentials: &Credentials,
    etcd_url: &str,
    audit_log: &Path,
) -> Result<Program> {
    let policy = folder.write("audit-policy.yaml", AUDIT_POLICY)?;
    let file = |path: &Path| path.display().to_string();
    let api_server = Program::new(tools.api_server(), &folder.join("kube-apiserver.log"));
    Ok(less_garbage_collection(api_server).args([
        format!("--etcd-servers={etcd_url}"),
        format!("--tls-cert-file={}", file(&credentials.certificate)),
        format!("--tls-private-key-file={}", file(&credentials.key)),
        "--authorization-mode=RBAC".into(),
        // Clusters may enable this plugin: a client needs a permission to write an owner reference that blocks a
        // deletion.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".into(),
        format!("--token-auth-file={}", file(&credentials.tokens)),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!(
            "--service-account-key-file={}",
            file(&credentials.account_public_key)
        ),
        format!(
            "--service-account-signing-key-file={}",
            file(&credentials.account_key)
        ),
        "--allow-privileged=true".into(),
        "--profiling=false".into(),
        format!("--audit-policy-file={}", file(&policy)),
        format!("--audit-log-path={}", file(audit_log)),
        // In MB, instead of 100: the log of a long test must stay in one file.
        "--audit-log-maxsize=4000".into(),
        // Blocking: a request is in the log before the next request of the same client is served.
        "--audit-log-mode=blocking".into(),
    ]))
}
