//! Where things are in the repository.

use std::path::{Path, PathBuf};

/// The root of the repository this lab was compiled in.
pub fn repository() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// KubeVirt's own CRDs, when a checkout of them lies beside the repository.
/// They are not part of it: whoever uses them must do without.
pub fn real_kubevirt_crds() -> Option<PathBuf> {
    let folder = repository().join("../shared/kubevirt-crds");
    folder.is_dir().then_some(folder)
}
