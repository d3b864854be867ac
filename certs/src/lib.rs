//! A CA of our own, the leaf certificates it signs, their rotation without a failed handshake, and the
//! resolver that serves them.
//!
//! ```text
//!                     ┌─────────────── World: store, clients, clocks (yours) ──────────────┐
//!                     │ Secret ◀─write, guarded─┐      webhook configurations  API servers │
//!                     └───┬─────────────────────┼───────────────▲────────────────────▲─────┘
//!                       read                  Store          Publish               serve
//!                         ▼                     │               │                    │
//!  Entries ─▶ Reading ─▶ Situation ─▶ plan ─▶ Step ─────────────┴──── Sign ─▶ Leaf ─▶ ServedLeaf
//!                         (Keeper::pass does one round after the other)
//! ```
//!
//! For servers whose clients trust a bundle that is written somewhere for them to watch, as API
//! servers do for webhooks. Any number of replicas share one stored [`State`]; each signs leaves of
//! its own, in memory. There is no leader: the state is only written over the version that was
//! read, and what is to be done follows from it.
//!
//! # Order of a rotation
//!
//! 1. [`Change::Begin`]: the CA is in its last third; the next one is stored.
//! 2. [`Step::Publish`]: clients are told to trust both.
//! 3. [`Change::Switch`]: all of them have been seen to for [`Lives::propagation`], and still do when
//!    asked again; the next CA signs, and every replica signs itself a new leaf.
//! 4. [`Change::Stamp`], [`Change::Drop`]: after [`Lives::overlap`], which is longer than a leaf's
//!    life, no leaf of the old CA can be valid, and it is not trusted any more.
//!
//! A crash or a sleep between any two lines of this loses nothing; `tests/rotation` lets replicas
//! live through ten years of it.
//!
//! # Pieces
//!
//! - [`Keeper`] carries the plan out for one replica; it needs a [`World`]: seven short functions that
//!   read and write.
//! - [`plan`] decides. It is pure, and generic over what a [`Ca`] is.
//! - [`Reading`] and [`State::entries`] are the form in a Secret.
//! - [`Pair`] is for certificates from elsewhere; [`ServedLeaf`] serves either.
//! - [`Clients`] is for servers that only some may ask.
//!
//! No file, no network, no clock in here; random numbers only for keys and serials.
//!
//! ```
//! use certs::{AUTHORITY_LIFE, Authority, Entries, LEAF_LIFE, Names, Reading, ServedLeaf, State};
//! use std::sync::Arc;
//! use time::OffsetDateTime;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let now = OffsetDateTime::now_utc();
//! let state = State::of(Authority::generate("my CA", now, AUTHORITY_LIFE)?);
//!
//! // To a Secret and back: whole, or with what is wrong and what is left.
//! let entries = state.entries().into_iter();
//! let stored: Entries = entries
//!     .filter_map(|(name, text)| Some((name.to_owned(), text?.into_bytes())))
//!     .collect();
//! let Reading::Whole(state) = Reading::parse(Some(&stored)) else {
//!     return Err("damaged".into());
//! };
//!
//! // A leaf, served by rustls from now on; exchanged at any time, no connection is dropped.
//! let names = Names::new(["my-server.my-namespace.svc".to_owned()])?;
//! let served = ServedLeaf::default();
//! served.replace(&state.current.sign(&names, now, LEAF_LIFE)?);
//! let tls = rustls::ServerConfig::builder_with_provider(Arc::new(
//!     rustls::crypto::ring::default_provider(),
//! ))
//! .with_safe_default_protocol_versions()?
//! .with_no_client_auth()
//! .with_cert_resolver(Arc::new(served));
//!
//! // What clients have to trust.
//! let bundle = certs::bundle_pem(&state.bundle());
//! assert!(bundle.starts_with("-----BEGIN CERTIFICATE-----"));
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]
mod authority;
mod certificate;
mod clients;
mod keeper;
mod leaf;
mod lives;
mod pair;
mod plan;
mod resolver;
mod state;
mod stored;
mod trust;
mod validity;

pub use authority::{AUTHORITY_LIFE, Authority, AuthorityError};
pub use certificate::{CaCertificate, bundle_pem};
pub use clients::{Clients, ClientsError};
pub use keeper::{CertificateOf, Found, Heard, Keeper, Outcome, World};
pub use leaf::{LEAF_LIFE, Leaf, Names, NamesError, Tenure};
pub use lives::{Lives, LivesError, PROPAGATION};
pub use pair::{Pair, PairError};
pub use plan::{Change, Draft, RECOVERY, Situation, Step, plan};
pub use resolver::ServedLeaf;
pub use state::{Ca, Phase, State, Trusted};
pub use stored::{Entries, Reading};
pub use trust::Trust;
pub use validity::{BACKDATE, Validity};
