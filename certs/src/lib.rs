//! certs
