//! [`Lab`]: a control plane with the product's manifests installed.

mod audit_log;
mod programs;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Mutex,
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    cdi::Cdi,
    control_plane::{ControlPlane, Network},
    credentials::{self, CallerCa, User},
    folder::Folder,
    http::Connection,
    install::{self, Manifests},
    kubectl::{Helm, Kubectl},
    libvirt::Libvirt,
    objects::{Kind, Objects},
    ports, prepared, reviews,
    simulator::{Scenario, Simulator},
    third_party::{self, KubevirtCrds},
    tools::{self, Tools},
    wait,
};

/// The name of both webhook configurations.
pub const WEBHOOK_CONFIGURATION: &str = "machine-webhook";

/// The common name of the client certificate that the API server presents to the webhook.
pub const CALLER: &str = "kube-apiserver-webhook-client";

/// Longer than any lab runs: no token expires.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// The components that are installed in a lab.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent parts, each there or not; every use names them"
)]
pub struct Options {
    /// Our CRDs, ServiceAccounts and roles of `manifests/install`.
    pub operator: bool,
    /// KubeVirt's kinds.
    pub kubevirt: KubevirtCrds,
    /// CDI's `DataVolume`.
    pub cdi: Cdi,
    /// Multus' `NetworkAttachmentDefinition`.
    pub multus: bool,
    /// `standard` (the default class), `fast-ssd` and `replicated`.
    pub storage_classes: bool,
    /// Garbage collection, deletion of namespaces, protection of claims.
    pub controller_manager: bool,
    /// Who reaches the control plane.
    pub network: Network,
}

impl Default for Options {
    /// Everything, with thin CRDs of KubeVirt.
    fn default() -> Self {
        Self {
            operator: true,
            kubevirt: KubevirtCrds::Thin,
            cdi: Cdi::Current,
            multus: true,
            storage_classes: true,
            controller_manager: true,
            network: Network::Loopback,
        }
    }
}

impl Options {
    /// A control plane alone.
    pub fn bare() -> Self {
        Self {
            operator: false,
            kubevirt: KubevirtCrds::Absent,
            cdi: Cdi::Absent,
            multus: false,
            storage_classes: false,
            controller_manager: false,
            network: Network::Loopback,
        }
    }

    fn third_party_objects(self) -> Result<Vec<Value>> {
        let mut objects = self.kubevirt.objects()?;
        objects.extend(self.cdi.objects());
        if self.multus {
            objects.push(third_party::network_attachment_definitions());
        }
        if self.storage_classes {
            objects.extend(third_party::storage_classes());
        }
        Ok(objects)
    }
}

/// `manifests/install`, rendered once for each process: that needs no server.
async fn manifests(tools: &Tools, folder: &Folder) -> Result<Manifests> {
    static RENDERED: OnceCell<Manifests> = OnceCell::const_new();
    let nowhere = folder.join("nowhere");
    let kubectl = Kubectl::new(tools.kubectl(), folder.join("home"), nowhere);
    let rendered = RENDERED.get_or_try_init(async || Manifests::render(&kubectl).await);
    rendered.await.cloned()
}

/// A control plane. All its processes end when it is dropped.
///
/// Programs that are started in it are separate values: declare their variables after the lab's, so that they are
/// dropped before it.
#[derive(Debug)]
pub struct Lab {
    plane: ControlPlane,
    tools: Tools,
    manifests: Manifests,
    webhook_port: u16,
    callers: CallerCa,
    runs: Mutex<BTreeMap<&'static str, u32>>,
    /// The process whose mount namespace the programs are started in; `None` for this machine's.
    mounts: Option<u32>,
    // Dropped last: the processes write into it until they end.
    folder: Folder,
}

impl Lab {
    /// Starts a lab with the default options.
    pub async fn start() -> Result<Self> {
        Self::with(Options::default()).await
    }

    /// Starts a lab. It is ready after about three seconds if the tools are built already.
    pub async fn with(options: Options) -> Result<Self> {
        static TOOLS: OnceCell<Tools> = OnceCell::const_new();
        let tools = TOOLS.get_or_try_init(Tools::ensure).await?.clone();
        let folder = Folder::new()?;
        let (webhook_port, callers) = (ports::free()?, CallerCa::new("callers of webhooks")?);
        let caller = callers.sign(CALLER, &[])?;
        let admission = credentials::admission_configuration(&folder, &caller, webhook_port)?;
        let manifests = if options.operator {
            manifests(&tools, &folder).await?
        } else {
            Manifests::default()
        };
        let mut objects = manifests.platform.clone();
        objects.extend(options.third_party_objects()?);
        // Services have other addresses on a node.
        let data = if options.network == Network::Node || objects.is_empty() {
            None
        } else {
            Some(prepared::data(&tools, &admission, &objects).await?)
        };
        let network = options.network;
        let plane = ControlPlane::start(&tools, &folder, &admission, network, data.as_deref());
        let plane = plane.await?;
        if data.is_none() {
            for object in &objects {
                install::apply(plane.client(), object).await?;
            }
        }
        install::served(plane.client()).await?;
        let mut lab = Self {
            plane,
            tools,
            manifests,
            webhook_port,
            callers,
            runs: Mutex::default(),
            mounts: None,
            folder,
        };
        if options.controller_manager {
            // After the CRDs: garbage collection discovers new kinds only
            // every 30 s.
            lab.plane
                .start_controller_manager(&lab.tools, &lab.folder)?;
        }
        Ok(lab)
    }

    /// Installs KubeVirt's kinds, in a lab that has none.
    pub async fn install_kubevirt(&self, crds: KubevirtCrds) -> Result<()> {
        for object in crds.objects()? {
            install::apply(self.client(), &object).await?;
        }
        install::served(self.client()).await
    }

    /// Installs CDI's kind, or another version of it.
    pub async fn install_cdi(&self, cdi: Cdi) -> Result<()> {
        for object in cdi.objects() {
            install::apply(self.client(), &object).await?;
        }
        install::served(self.client()).await
    }

    /// Installs Multus' kind, in a lab that has none.
    pub async fn install_multus(&self) -> Result<()> {
        let multus = third_party::network_attachment_definitions();
        install::apply(self.client(), &multus).await?;
        install::served(self.client()).await
    }

    /// A client with all permissions that does not retry.
    pub fn client(&self) -> &Client {
        self.plane.client()
    }

    /// The admin's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.plane.kubeconfig().to_owned()
    }

    /// A path in the lab's own folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts all further programs so that `qemu:///system` is this libvirt.
    pub fn use_libvirt(&mut self, libvirt: &Libvirt) {
        self.mounts = Some(libvirt.mounts());
    }

    /// A kubeconfig of one of the lab's users, as a file.
    pub(crate) fn kubeconfig_of(&self, user: User) -> Result<PathBuf> {
        let text = self.plane.endpoint().kubeconfig_of(user);
        self.folder
            .write(&format!("{}.kubeconfig", user.name()), &text)
    }

    /// kubectl as the admin.
    pub fn kubectl(&self) -> Kubectl {
        self.kubectl_with(self.kubeconfig())
    }

    /// kubectl as another user.
    pub fn kubectl_as(&self, user: User) -> Result<Kubectl> {
        Ok(self.kubectl_with(self.kubeconfig_of(user)?))
    }

    /// Helm as the admin; built first if it is missing.
    pub async fn helm(&self) -> Result<Helm> {
        let path = tools::helm().await?;
        Ok(Helm::new(path, self.folder.join("home"), self.kubeconfig()))
    }

    fn kubectl_with(&self, kubeconfig: PathBuf) -> Kubectl {
        Kubectl::new(self.tools.kubectl(), self.folder.join("home"), kubeconfig)
    }

    /// The path of kubectl.
    pub fn kubectl_path(&self) -> &Path {
        self.tools.kubectl()
    }

    /// Applies an object of any kind; its namespace is read from its metadata.
    pub async fn apply(&self, object: &Value) -> Result<()> {
        install::apply(self.client(), object).await
    }

    /// Applies an object that is admitted as soon as the webhook knows of what was written before it: its caches may be a
    /// moment old.
    pub async fn apply_when_admitted(&self, object: &Value) -> Result<()> {
        let what = format!("{} to be admitted", object["metadata"]["name"]);
        wait::until(&what, async || {
            let applied = self.apply(object).await;
            Ok(applied.map_err(|error| format!("{error:#}")))
        })
        .await
    }

    /// Waits until every installed CRD is served.
    pub async fn crds_served(&self) -> Result<()> {
        install::served(self.client()).await
    }

    /// The objects of a kind in a namespace.
    pub fn objects(&self, kind: Kind, namespace: &str) -> Objects {
        Objects::new(self.client().clone(), kind, namespace)
    }

    /// A client as one of the lab's users.
    pub async fn client_as(&self, user: User) -> Result<Client> {
        credentials::client(&self.plane.endpoint().kubeconfig_of(user)).await
    }

    /// The text of a kubeconfig with a token of a ServiceAccount.
    pub async fn account_kubeconfig(&self, namespace: &str, account: &str) -> Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().clone(), namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..Default::default()
            }),
            ..Default::default()
        };
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("a token for ServiceAccount {namespace}/{account}"))?;
        let token = answer
            .status
            .and_then(|status| status.token)
            .context("a token request without a token in its answer")?;
        Ok(self.plane.endpoint().kubeconfig(account, &token))
    }

    /// A client with the token of a ServiceAccount.
    pub async fn account_client(&self, namespace: &str, account: &str) -> Result<Client> {
        credentials::client(&self.account_kubeconfig(namespace, account).await?).await
    }

    /// Ends the API server. Its port remains reserved.
    pub fn stop_api_server(&mut self) {
        self.plane.stop_api_server();
    }

    /// Starts the API server again, with the data it had.
    pub async fn start_api_server(&mut self) -> Result<()> {
        self.plane.start_api_server().await
    }

    /// The ids of the control plane's processes.
    pub fn process_ids(&self) -> Vec<u32> {
        self.plane.process_ids()
    }

    /// Registers both webhooks, as the manifests do, at the lab's own port.
    pub async fn register_webhooks(&self) -> Result<()> {
        let port = self.webhook_port;
        self.register_webhooks_at(port, port).await
    }

    /// Registers the mutating and the validating webhook at ports of their own.
    pub async fn register_webhooks_at(&self, mutating: u16, validating: u16) -> Result<()> {
        for configuration in &self.manifests.webhooks {
            let mutates = configuration["kind"] == "MutatingWebhookConfiguration";
            let port = if mutates { mutating } else { validating };
            let here = install::called_at(configuration.clone(), port)?;
            install::apply(self.client(), &here).await?;
        }
        Ok(())
    }

    /// Removes both webhook configurations and waits until the API server sends no more reviews: it watches each
    /// kind separately, and may still call one of the webhooks for a moment.
    pub async fn unregister_webhooks(&self) -> Result<()> {
        let delete = DeleteParams::default();
        Api::<MutatingWebhookConfiguration>::all(self.client().clone())
            .delete(WEBHOOK_CONFIGURATION, &delete)
            .await?;
        Api::<ValidatingWebhookConfiguration>::all(self.client().clone())
            .delete(WEBHOOK_CONFIGURATION, &delete)
            .await?;
        let refused = reviews::machine("unreviewed", &json!({"template": "no-such-template"}));
        wait::until("reviews to end", async || {
            Ok(install::dry_run(self.client(), &refused).await)
        })
        .await
    }

    /// A connection to the webhook as the API server opens it: it trusts the `caBundle` of the configuration.
    pub async fn connect_webhook(&self) -> Result<Connection> {
        let address = ([127, 0, 0, 1], self.webhook_port).into();
        Connection::tls(address, &self.ca_bundle().await?).await
    }

    /// The CA that signs the API server's client certificate for the webhook.
    pub fn callers(&self) -> &CallerCa {
        &self.callers
    }

    /// The address of the webhook.
    pub fn webhook_address(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.webhook_port).into()
    }

    /// The CA certificates that the API server trusts for the webhook.
    pub async fn ca_bundle(&self) -> Result<Vec<u8>> {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(self.client().clone());
        let configuration = configurations.get(WEBHOOK_CONFIGURATION).await?;
        configuration
            .webhooks
            .unwrap_or_default()
            .into_iter()
            .find_map(|webhook| webhook.client_config.ca_bundle)
            .map(|bytes| bytes.0)
            .context("the webhook configuration has no caBundle")
    }

    /// Starts the simulator of KubeVirt and the storage.
    pub async fn simulator(&self, scenario: Scenario) -> Result<Simulator> {
        Ok(Simulator::start(
            self.client_as(User::Simulator).await?,
            scenario,
        ))
    }
}
