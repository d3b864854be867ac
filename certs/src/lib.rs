//! A CA of our own, the leaf certificates it signs, and the resolver that serves them.
//!
//! ```text
//!  CA Secret ──parse──▶ Authority ──sign──▶ Leaf ──▶ ServedLeaf (rustls asks it at each handshake)
//!      ▲                    │                 │
//!      └─────stored─────────┘                 │
//!                           └──── plan(authority, leaf, now) → Step ◀── the clock
//! ```
//!
//! Pure but for the random numbers that keys and serials are made of: no file, no network, no clock.
//! Whoever calls holds the Secret, publishes [`Authority::certificate_pem`] as the bundle clients
//! trust, and asks [`plan`] again and again; the answer depends on nothing but what is there and the
//! time, so a crash between two steps loses nothing.
#![deny(missing_docs)]

mod authority;
mod leaf;
mod plan;
mod resolver;
mod stored;
mod validity;

pub use authority::{AUTHORITY_LIFE, Authority, AuthorityError};
pub use leaf::{LEAF_LIFE, Leaf, Names, NamesError};
pub use plan::{Step, plan};
pub use resolver::ServedLeaf;
pub use stored::{Stored, bundle_contains};
pub use validity::{BACKDATE, Validity};
