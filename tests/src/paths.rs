//! Paths in the repository, and the cargo that works in it.

use std::{
    env,
    path::{Path, PathBuf},
};

use tokio::process::Command;

/// The root of the repository that this lab was compiled in.
pub fn repository() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// A command for the cargo that runs this program, in the root of the repository.
///
/// Cargo sets variables about the package (`CARGO_PKG_…`) for a program that it runs. They are removed here,
/// because another cargo would take them for a change of the input of build scripts and rebuild half of the
/// dependencies.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repository());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// The folder of KubeVirt's own CRDs, if it is beside the repository. They are not part of it, so every
/// caller has to work without them.
pub fn real_kubevirt_crds() -> Option<PathBuf> {
    let folder = repository().join("../shared/kubevirt-crds");
    folder.is_dir().then_some(folder)
}
