//! Where things are in the repository.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use tokio::process::Command;

/// The root of the repository this lab was compiled in.
pub fn repository() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// The cargo that runs this program, as one would type it in the root.
///
/// cargo tells a program it runs about its package in the environment. Handed
/// on to another cargo, that looks like a change to build scripts that ask for
/// these variables, and half of the dependencies are built again.
pub fn cargo() -> Command {
    cargo_behind(&[])
}

/// As [`cargo`], with words before it that say how it is run.
pub fn cargo_behind(words: &[String]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut words = words.iter().map(OsString::from).chain([cargo]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).current_dir(repository());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// KubeVirt's own CRDs, when a checkout of them lies beside the repository.
/// They are not part of it: whoever uses them must do without.
pub fn real_kubevirt_crds() -> Option<PathBuf> {
    let folder = repository().join("../shared/kubevirt-crds");
    folder.is_dir().then_some(folder)
}
