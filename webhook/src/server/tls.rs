//! The TLS settings of the server.

use std::sync::Arc;

use certs::ClientVerifier;
use rustls::SupportedProtocolVersion;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::version::{TLS12, TLS13};

/// The oldest version of TLS that is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum TlsVersion {
    /// For API servers that are configured to use nothing newer.
    #[value(name = "1.2")]
    V1_2,
    /// The version that every supported API server uses by default.
    #[default]
    #[value(name = "1.3")]
    V1_3,
}

/// TLS with the certificate of `resolver`. `verifier` decides which clients may connect; `None`: all.
/// HTTP/1.1 is the only protocol that is offered.
pub fn tls(
    resolver: Arc<dyn ResolvesServerCert>,
    oldest: TlsVersion,
    verifier: Option<ClientVerifier>,
) -> Result<rustls::ServerConfig, rustls::Error> {
    let versions: &[&SupportedProtocolVersion] = match oldest {
        TlsVersion::V1_2 => &[&TLS13, &TLS12],
        TlsVersion::V1_3 => &[&TLS13],
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ServerConfig::builder_with_provider(provider).with_protocol_versions(versions)?;
    let mut config = match verifier {
        None => config.with_no_client_auth().with_cert_resolver(resolver),
        Some(verifier) => {
            let config = config.with_client_cert_verifier(Arc::new(verifier));
            let mut config = config.with_cert_resolver(resolver);
            // The client certificate of a resumed session is not verified again.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            config
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
