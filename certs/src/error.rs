//! Why a CA cannot be read, generated or used.

/// Why there is no usable CA or certificate.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The certificate is not the PEM of one certificate.
    #[error("the CA certificate cannot be read: {0}")]
    Certificate(String),
    /// The key is not the PEM of one private key of a supported type.
    #[error("the CA key cannot be read")]
    Key(#[source] rcgen::Error),
    /// The public key of the certificate is not that of the private key.
    #[error("the CA key does not match the CA certificate")]
    Mismatch,
    /// The certificate may not sign others: its basic constraints do not say CA.
    #[error("the certificate is not that of a CA")]
    NotCa,
    /// Generating a key or signing failed.
    #[error("cannot generate a certificate")]
    Generate(#[from] rcgen::Error),
    /// rustls rejects the key that was just generated.
    #[error("cannot use the generated key")]
    UseKey(#[from] rustls::Error),
    /// The system's random number generator failed.
    #[error("the system has no random numbers")]
    Random,
}
