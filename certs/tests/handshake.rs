//! TLS handshakes inside the test process, with a client that trusts the bundle and nothing else.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test panics"
)]

use std::sync::Arc;

use certs::{CA_LIFETIME, Ca, LEAF_LIFETIME, ServerCertResolver, ServerNames};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use time::{Duration, OffsetDateTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

fn names() -> ServerNames {
    let names = [
        "machine-webhook.ns.svc",
        "machine-webhook.ns.svc.cluster.local",
        "127.0.0.1",
    ];
    ServerNames::new(names.map(str::to_owned)).unwrap()
}

fn connector(bundle: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

fn acceptor(resolver: &ServerCertResolver) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver.clone()));
    TlsAcceptor::from(Arc::new(config))
}

/// Connects to a server that echoes what it receives, and expects it to be called `name`.
async fn connect(
    acceptor: &TlsAcceptor,
    connector: &TlsConnector,
    name: &str,
) -> std::io::Result<TlsStream<DuplexStream>> {
    let (client, server) = tokio::io::duplex(64 * 1024);
    let acceptor = acceptor.clone();
    tokio::spawn(async move {
        let (mut reader, mut writer) = tokio::io::split(acceptor.accept(server).await?);
        tokio::io::copy(&mut reader, &mut writer).await
    });
    connector
        .connect(ServerName::try_from(name.to_owned()).unwrap(), client)
        .await
}

async fn echo(stream: &mut TlsStream<DuplexStream>) -> u8 {
    stream.write_u8(7).await.unwrap();
    stream.flush().await.unwrap();
    stream.read_u8().await.unwrap()
}

fn presented(stream: &TlsStream<DuplexStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0]
        .clone()
        .into_owned()
}

fn certificate_error(result: std::io::Result<TlsStream<DuplexStream>>) -> CertificateError {
    let error = result.expect_err("the handshake must fail");
    match error
        .get_ref()
        .and_then(|e| e.downcast_ref::<rustls::Error>())
    {
        Some(rustls::Error::InvalidCertificate(reason)) => reason.clone(),
        other => panic!("not a certificate error: {other:?}"),
    }
}

#[tokio::test]
async fn replacing_the_leaf_keeps_open_connections_and_presents_the_new_leaf_to_new_ones() {
    let now = OffsetDateTime::now_utc();
    let ca = Ca::generate("CA", now, CA_LIFETIME).unwrap();
    let resolver = ServerCertResolver::default();
    let (acceptor, connector) = (acceptor(&resolver), connector(ca.certificate_pem()));
    resolver.set_leaf(&ca.sign(&names(), now, LEAF_LIFETIME).unwrap());

    let mut first = connect(&acceptor, &connector, "machine-webhook.ns.svc")
        .await
        .unwrap();
    resolver.set_leaf(&ca.sign(&names(), now, LEAF_LIFETIME).unwrap());
    let mut second = connect(&acceptor, &connector, "127.0.0.1").await.unwrap();
    assert_ne!(presented(&first), presented(&second));
    assert_eq!((echo(&mut first).await, echo(&mut second).await), (7, 7));
}

#[tokio::test]
async fn a_client_rejects_a_wrong_name_an_unknown_ca_and_an_expired_leaf() {
    let now = OffsetDateTime::now_utc();
    let ca = Ca::generate("CA", now, CA_LIFETIME).unwrap();
    let other = Ca::generate("CA", now, CA_LIFETIME).unwrap();
    let resolver = ServerCertResolver::default();
    let (acceptor, trusting) = (acceptor(&resolver), connector(ca.certificate_pem()));
    assert!(
        connect(&acceptor, &trusting, "machine-webhook.ns.svc")
            .await
            .is_err(),
        "no leaf yet"
    );

    resolver.set_leaf(&ca.sign(&names(), now, LEAF_LIFETIME).unwrap());
    let wrong_name = connect(&acceptor, &trusting, "other.ns.svc").await;
    assert!(matches!(
        certificate_error(wrong_name),
        CertificateError::NotValidForNameContext { .. }
    ));
    let wrong_ca = connect(&acceptor, &connector(other.certificate_pem()), "127.0.0.1").await;
    assert_eq!(certificate_error(wrong_ca), CertificateError::UnknownIssuer);

    resolver.set_leaf(
        &ca.sign(&names(), now - Duration::days(8), LEAF_LIFETIME)
            .unwrap(),
    );
    let expired = connect(&acceptor, &trusting, "127.0.0.1").await;
    assert!(matches!(
        certificate_error(expired),
        CertificateError::ExpiredContext { .. }
    ));

    let both = format!("{}{}", other.certificate_pem(), ca.certificate_pem());
    resolver.set_leaf(&other.sign(&names(), now, LEAF_LIFETIME).unwrap());
    assert!(
        connect(&acceptor, &connector(&both), "127.0.0.1")
            .await
            .is_ok()
    );
}
