//! The layers of the repository: which crate may depend on which, and which files import each other.
//!
//! ```text
//! cargo metadata ──► workspace ──► arrows between crates, their graph for docs/development.md
//!                        │
//!                        └──► modules ──► imports ──► circles      one crate's source at a time
//! ```
//! The compiler refuses circles between crates only. Within a crate any file may import any other, so that
//! `cargo lab lint` has to parse every file.

mod circles;
mod imports;
mod modules;
mod workspace;

pub use circles::{Circle, circles_of};
pub use workspace::{Crate, Edge, crates, graph, violations};
