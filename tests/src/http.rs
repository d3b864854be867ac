//! An HTTP client for the webhook (over TLS) and for the health and metrics ports.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, client::conn::http1::SendRequest, header};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::Caller;

/// Timeout of a response: a server on this machine that takes longer does not answer at all.
const LIMIT: Duration = Duration::from_secs(20);

/// A response.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub body: Bytes,
}

impl Response {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("HTTP {} with no JSON: {}", self.status, self.text()))
    }
}

/// A keep-alive connection, over TLS or plain.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    /// Connects without TLS.
    pub async fn plain(address: SocketAddr) -> Result<Self> {
        Self::over(tcp(address).await?, address).await
    }

    /// Connects over TLS and trusts the CA certificates in `ca_pem`.
    pub async fn tls(address: SocketAddr, ca_pem: &[u8]) -> Result<Self> {
        Self::over(tls(address, ca_pem).await?, address).await
    }

    /// As [`Self::tls`], to a server whose certificate has this name.
    pub async fn tls_named(address: SocketAddr, ca_pem: &[u8], name: &str) -> Result<Self> {
        Self::over(tls_named(address, ca_pem, name).await?, address).await
    }

    /// As [`Self::tls_named`], from this IPv4 address of this machine.
    pub async fn tls_from(
        source: IpAddr,
        address: SocketAddr,
        ca_pem: &[u8],
        name: &str,
    ) -> Result<Self> {
        let stream = tcp_from(source, address).await?;
        let name = ServerName::try_from(name.to_owned())?;
        let stream = handshake(stream, name, client(ca_pem, None)?).await?;
        Self::over(stream, address).await
    }

    /// As [`Self::tls`], with a client certificate if the server requests one.
    pub async fn tls_as(address: SocketAddr, ca_pem: &[u8], caller: &Caller) -> Result<Self> {
        let stream = connect(address, address.ip().into(), client(ca_pem, Some(caller))?).await?;
        Self::over(stream, address).await
    }

    async fn over<S>(stream: S, address: SocketAddr) -> Result<Self>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Ends when the sender is dropped or the server closes the connection; the pending request gets the error.
        tokio::spawn(connection);
        Ok(Self {
            sender,
            host: address.to_string(),
        })
    }

    /// Sends one request and reads the whole response.
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Response> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(body))?;
        let exchange = async {
            self.sender.ready().await?;
            let response = self.sender.send_request(request).await?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await?.to_bytes();
            anyhow::Ok(Response { status, body })
        };
        timeout(LIMIT, exchange)
            .await
            .with_context(|| format!("no answer to {method} {path} within {LIMIT:?}"))?
    }

    /// Posts JSON.
    pub async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Result<Response> {
        self.send("POST", path, "application/json", body.into())
            .await
    }
}

/// One GET without TLS.
pub async fn get(address: SocketAddr, path: &str) -> Result<Response> {
    Connection::plain(address)
        .await?
        .send("GET", path, "text/plain", Bytes::new())
        .await
}

/// A TCP connection without HTTP, for tests of malformed input.
pub async fn tcp(address: SocketAddr) -> Result<TcpStream> {
    let stream = timeout(LIMIT, TcpStream::connect(address))
        .await
        .context("connecting")??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// As [`tcp`], from this IPv4 address of this machine: a server that limits connections by address sees another client.
pub async fn tcp_from(source: IpAddr, address: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(source, 0))?;
    let stream = timeout(LIMIT, socket.connect(address))
        .await
        .context("connecting")??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A TLS connection without HTTP, for tests of malformed input.
pub async fn tls(address: SocketAddr, ca_pem: &[u8]) -> Result<TlsStream<TcpStream>> {
    connect(address, address.ip().into(), client(ca_pem, None)?).await
}

/// As [`tls`], with this server name.
pub async fn tls_named(
    address: SocketAddr,
    ca_pem: &[u8],
    name: &str,
) -> Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(name.to_owned())?;
    connect(address, name, client(ca_pem, None)?).await
}

/// Many bare TLS connections from this IPv4 address of this machine, with one configuration.
pub async fn tls_many_from(
    source: IpAddr,
    address: SocketAddr,
    ca_pem: &[u8],
    many: usize,
) -> Result<Vec<TlsStream<TcpStream>>> {
    let config = client(ca_pem, None)?;
    let mut streams = Vec::new();
    for _ in 0..many {
        let stream = tcp_from(source, address).await?;
        streams.push(handshake(stream, address.ip().into(), config.clone()).await?);
    }
    Ok(streams)
}

fn client(ca_pem: &[u8], caller: Option<&Caller>) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem) {
        roots.add(certificate?)?;
    }
    ensure!(!roots.is_empty(), "no CA certificate to trust");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    Ok(Arc::new(match caller {
        None => config.with_no_client_auth(),
        Some(Caller { certificate, key }) => config.with_client_auth_cert(
            CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>()?,
            PrivateKeyDer::from_pem_slice(key.as_bytes())?,
        )?,
    }))
}

async fn connect(
    address: SocketAddr,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>> {
    handshake(tcp(address).await?, name, config).await
}

async fn handshake(
    stream: TcpStream,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>> {
    let connect = TlsConnector::from(config).connect(name, stream);
    Ok(timeout(LIMIT, connect).await.context("TLS handshake")??)
}
