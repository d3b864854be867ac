//! A CA of our own, the leaf certificates that it signs, their rotation without a failed handshake,
//! and the rustls resolver that presents them.
//!
//! ```text
//!             ┌──────────── Environment: store, client configurations, clocks ────────────┐
//!             │ Secret ◀─ write over the version read   webhook configurations   rustls   │
//!             └───┬────────────────────────▲────────────────────▲─────────────────▲───────┘
//!                read                    Store                Publish          SignLeaf
//!                 ▼                        │                    │                 │
//!  SecretData ─▶ StoredState ─▶ PlanInput ─▶ plan ─▶ Action ────┴─────────────────┘
//!                         (Rotator::pass repeats this until nothing is left to do)
//! ```
//!
//! For servers whose clients read the bundle they trust from an object that they watch, as API
//! servers do for webhooks. Any number of replicas share one stored [`State`]; each signs leaves of
//! its own and keeps them in memory. There is no leader: the state is only written over the version
//! that was read, and the next action follows from it.
//!
//! # Order of a rotation
//!
//! 1. [`Change::StoreNext`]: the current CA is in the last third of its lifetime; the next one is
//!    stored.
//! 2. [`Action::Publish`]: both certificates are written to every bundle.
//! 3. [`Change::Switch`]: every bundle has contained both for [`Lifetimes::propagation`], and still
//!    does when read again; the next CA becomes the current one, and every replica signs a new leaf.
//! 4. [`Change::StartOverlap`], [`Change::Drop`]: after [`Lifetimes::overlap`], which is longer than
//!    the lifetime of a leaf, no leaf of the old CA can be valid; its certificate is removed.
//!
//! A crash or a suspension between any two lines loses nothing; `tests/rotation` simulates replicas
//! over ten years.
//!
//! # Modules
//!
//! - [`Rotator`] carries the plan out for one replica, through an [`Environment`].
//! - [`plan`] decides. It is pure.
//! - [`StoredState`] and [`State::secret_data`] are the form in a Secret.
//! - [`ProvidedCertificate`] is a certificate that is issued elsewhere; [`ServerCertResolver`]
//!   presents either kind.
//! - [`ClientVerifier`] is for servers that only some clients may call.
//!
//! No file, no network and no clock here; random numbers only for keys and serials.
//!
//! ```
//! use certs::{CA_LIFETIME, Ca, LEAF_LIFETIME, SecretData, ServerCertResolver, ServerNames};
//! use certs::{State, StoredState};
//! use std::sync::Arc;
//! use time::OffsetDateTime;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let now = OffsetDateTime::now_utc();
//! let state = State::new(Ca::generate("my CA", now, CA_LIFETIME)?);
//!
//! // To a Secret and back: intact, or with what is wrong and what is left.
//! let data = state.secret_data().into_iter();
//! let stored: SecretData = data
//!     .filter_map(|(key, text)| Some((key.to_owned(), text?.into_bytes())))
//!     .collect();
//! let StoredState::Intact(state) = StoredState::parse(Some(&stored)) else {
//!     return Err("damaged".into());
//! };
//!
//! // rustls presents the leaf from now on. It can be replaced without closing a connection.
//! let names = ServerNames::new(["my-server.my-namespace.svc".to_owned()])?;
//! let resolver = ServerCertResolver::default();
//! resolver.set_leaf(&state.current.sign(&names, now, LEAF_LIFETIME)?);
//! let tls = rustls::ServerConfig::builder_with_provider(Arc::new(
//!     rustls::crypto::ring::default_provider(),
//! ))
//! .with_safe_default_protocol_versions()?
//! .with_no_client_auth()
//! .with_cert_resolver(Arc::new(resolver));
//!
//! // What clients have to trust.
//! let bundle = certs::bundle_pem(&state.bundle());
//! assert!(bundle.starts_with("-----BEGIN CERTIFICATE-----"));
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]
mod ca;
mod certificate;
mod client_verifier;
mod error;
mod leaf;
mod lifetimes;
mod plan;
mod provided;
mod resolver;
mod rotator;
mod state;
mod stored_state;
mod trust;
mod validity;

pub use ca::{CA_LIFETIME, Ca};
pub use certificate::{CaCertificate, bundle_pem};
pub use client_verifier::{ClientVerifier, ClientVerifierError};
pub use error::CaError;
pub use leaf::{LEAF_LIFETIME, Leaf, LeafInfo, ServerNames, ServerNamesError};
pub use lifetimes::{Lifetimes, LifetimesError, PROPAGATION};
pub use plan::{Action, Change, Draft, PlanInput, RECOVERY_DELAY, plan};
pub use provided::{ProvidedCertificate, ProvidedCertificateError};
pub use resolver::ServerCertResolver;
pub use rotator::{Cached, Environment, LiveRead, Outcome, Rotator, Version};
pub use state::{Phase, State};
pub use stored_state::{SecretData, StoredState};
pub use trust::TrustTracker;
pub use validity::{BACKDATE, Validity};
