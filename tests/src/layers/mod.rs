//! The layers of the repository: which crate may depend on which, and which files import each other.
//!
//! ```text
//! cargo metadata ──► workspace ──► arrows between crates, their graph for docs/development.md
//!                        │
//!                        └──► modules ──► imports ─┬─► circles     one crate's source at a time
//!                                                  └─► core_layers of `common`
//! ```
//! The compiler refuses circles between crates only. Within a crate any file may import any other, so that
//! `cargo lab lint` has to parse every file.

mod circles;
mod core_layers;
mod imports;
mod modules;
mod workspace;

pub use circles::{Circle, circles_of};
pub use core_layers::upward_imports;
pub use workspace::{Crate, Edge, crates, graph, violations};

/// A folder with the files of a crate, for tests; paths are relative to it.
#[cfg(test)]
fn planted(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}
