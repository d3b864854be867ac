//! Keys, certificates, tokens and kubeconfigs of one control plane.

use std::path::PathBuf;

use anyhow::Result;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;

use crate::folder::Folder;

/// The users of the lab. Each has a name of its own, so that the audit log distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The administrator, with all permissions.
    Admin,
    /// The simulator of KubeVirt.
    Simulator,
    /// kube-controller-manager.
    ControllerManager,
    /// The parts of a node: kubelet, kube-scheduler and kube-proxy.
    Node,
    /// A user without permissions, except those that a test grants.
    Developer,
}

impl User {
    const ALL: [Self; 5] = [
        Self::Admin,
        Self::Simulator,
        Self::ControllerManager,
        Self::Node,
        Self::Developer,
    ];

    /// The name in the audit log and in RBAC.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Simulator => "kubevirt-simulator",
            Self::ControllerManager => "kube-controller-manager",
            Self::Node => "node",
            Self::Developer => "developer",
        }
    }

    /// The token. It may be guessable, because the API server listens on loopback only, and for some minutes.
    fn token(self) -> String {
        format!("token-of-{}", self.name())
    }

    fn group(self) -> &'static str {
        match self {
            Self::Developer => "developers",
            _ => "system:masters",
        }
    }
}

/// A CA for the client certificates that API servers present to webhooks.
#[derive(Debug)]
pub struct CallerCa {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A client's certificate and its key, as PEM.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The certificate, as PEM.
    pub certificate: String,
    /// The private key, as PEM.
    pub key: String,
}

impl CallerCa {
    /// Generates a CA with this common name.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, name);
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Ok(Self {
            pem: ca.self_signed(&key)?.pem(),
            issuer: Issuer::new(ca, key),
        })
    }

    /// The CA certificate, as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for a client, with a common name and DNS names.
    pub fn sign(&self, common_name: &str, dns_names: &[&str]) -> Result<Caller> {
        let names: Vec<String> = dns_names.iter().map(ToString::to_string).collect();
        let mut leaf = CertificateParams::new(names)?;
        leaf.distinguished_name
            .push(DnType::CommonName, common_name);
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        Ok(Caller {
            certificate: leaf.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// The files the API server starts with.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) ca_pem: String,
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) account_key: PathBuf,
    pub(crate) account_public_key: PathBuf,
    pub(crate) tokens: PathBuf,
}

impl Credentials {
    /// Writes them; the API server's certificate has these names.
    pub(crate) fn write(folder: &Folder, names: &[&str]) -> Result<Self> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::default();
        ca.distinguished_name
            .push(DnType::CommonName, "lab control plane");
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca_pem = ca.self_signed(&ca_key)?.pem();
        let issuer = Issuer::new(ca, ca_key);

        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut leaf = CertificateParams::new(names)?;
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = leaf.signed_by(&key, &issuer)?.pem();

        let account_key = KeyPair::generate()?;
        let tokens = User::ALL.map(|user| {
            let (name, token, group) = (user.name(), user.token(), user.group());
            format!("{token},{name},uid-of-{name},{group}")
        });
        Ok(Self {
            ca: folder.write("ca.crt", &ca_pem)?,
            ca_pem,
            certificate: folder.write("api-server.crt", &certificate)?,
            key: folder.write("api-server.key", &key.serialize_pem())?,
            account_key: folder.write("accounts.key", &account_key.serialize_pem())?,
            account_public_key: folder.write("accounts.pub", &account_key.public_key_pem())?,
            tokens: folder.write("tokens.csv", &tokens.join("\n"))?,
        })
    }
}

/// The admission configuration with which an API server presents the certificate `caller` to the webhook at this
/// port.
pub(crate) fn admission_configuration(
    folder: &Folder,
    caller: &Caller,
    port: u16,
) -> Result<PathBuf> {
    let user = json!({
        "client-certificate": folder.write("caller.crt", &caller.certificate)?,
        "client-key": folder.write("caller.key", &caller.key)?,
    });
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        // Entries of this file are named after the server that is called.
        "users": [{"name": format!("127.0.0.1:{port}"), "user": user}],
    });
    let kubeconfig = folder.write("callers.kubeconfig", &kubeconfig.to_string())?;
    let plugins = ["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"].map(|name| {
        json!({"name": name, "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": kubeconfig,
        }})
    });
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": plugins,
    });
    folder.write("admission.json", &configuration.to_string())
}

/// The address of the API server, and its CA.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) server: String,
    pub(crate) ca_pem: String,
}

impl Endpoint {
    /// The text of a kubeconfig, in JSON, which is valid YAML.
    pub(crate) fn kubeconfig(&self, user: &str, token: &str) -> String {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let value = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {
                "server": self.server,
                "certificate-authority-data": STANDARD.encode(&self.ca_pem),
            }}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {
                "cluster": "lab", "user": user, "namespace": "default",
            }}],
            "current-context": "lab",
        });
        format!("{value:#}\n")
    }

    pub(crate) fn kubeconfig_of(&self, user: User) -> String {
        self.kubeconfig(user.name(), &user.token())
    }
}

/// A client for a kubeconfig's text.
///
/// It does not retry: kube's default retries for minutes, and a test needs the first response.
pub(crate) async fn client(kubeconfig: &str) -> Result<kube::Client> {
    let parsed = Kubeconfig::from_yaml(kubeconfig)?;
    let mut config =
        kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(kube::Client::try_from(config)?)
}
