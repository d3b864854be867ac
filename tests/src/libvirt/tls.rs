//! A libvirtd that is reached over TLS, as the libvirt of another machine is.
//!
//! ```text
//! machine-controller ── qemu+tls://… ──▶ TlsServer ── socket ──▶ libvirtd in namespaces of its own
//! ```
//! libvirt's own TLS server would listen in the network namespace of its daemon, which the controller does not reach.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream, UnixStream},
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use super::Libvirt;

/// What libvirt's server sends once it has accepted the certificate of a client.
const ACCEPTED: u8 = 1;

/// A TLS server in front of a libvirtd. Dropping it ends it; connections end with the libvirtd.
#[derive(Debug)]
pub struct TlsServer {
    /// URI of the libvirtd.
    pub uri: String,
    /// `stringData` of a Secret with the credentials.
    pub credentials: Value,
    task: JoinHandle<()>,
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Libvirt {
    /// Starts a TLS server in front of it, at this address.
    pub async fn serve_tls(&self, address: &str) -> Result<TlsServer> {
        let (config, credentials) = certificates(address)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((address, 0)).await?;
        let uri = format!("qemu+tls://{}/system", listener.local_addr()?);
        let socket = self.path("run/libvirt-sock");
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (acceptor, socket) = (acceptor.clone(), socket.clone());
                tokio::spawn(async move {
                    if let Err(error) = forward(client, acceptor, socket).await {
                        tracing::debug!(%error, "a connection to libvirt ended");
                    }
                });
            }
        });
        Ok(TlsServer {
            uri,
            credentials,
            task,
        })
    }
}

async fn forward(client: TcpStream, acceptor: TlsAcceptor, socket: PathBuf) -> Result<()> {
    let mut client = acceptor.accept(client).await?;
    let mut daemon = UnixStream::connect(&socket).await?;
    client.write_all(&[ACCEPTED]).await?;
    client.flush().await?;
    copy_bidirectional(&mut client, &mut daemon).await?;
    Ok(())
}

/// The server's configuration, and the credentials of a client that it accepts.
fn certificates(address: &str) -> Result<(ServerConfig, Value)> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::default();
    ca.distinguished_name
        .push(DnType::CommonName, "libvirt of the lab");
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let ca_certificate = ca.self_signed(&ca_key)?;
    let issuer = Issuer::new(ca, ca_key);
    let leaf = |purpose| -> Result<(rcgen::Certificate, KeyPair)> {
        let mut leaf = CertificateParams::new(vec![address.to_owned()])?;
        leaf.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        leaf.extended_key_usages = vec![purpose];
        let key = KeyPair::generate()?;
        Ok((leaf.signed_by(&key, &issuer)?, key))
    };
    let (certificate, key) = leaf(ExtendedKeyUsagePurpose::ServerAuth)?;
    let (client, client_key) = leaf(ExtendedKeyUsagePurpose::ClientAuth)?;
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::clone(ca_certificate.der()))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = verifier.build().context("the verifier of clients")?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate.der().clone()], key.into())?;
    // libvirt reads one record after the handshake, which has to be the confirmation.
    config.send_tls13_tickets = 0;
    let credentials = json!({
        "ca.crt": ca_certificate.pem(),
        "tls.crt": client.pem(),
        "tls.key": client_key.serialize_pem(),
    });
    Ok((config, credentials))
}
