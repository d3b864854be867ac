//! The cache folder of built tools, and the lock of its builds.

use std::{
    env,
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};
use tokio::time::sleep;

/// Waits for a lock that allows one build at a time on this machine, because the tools share most of their packages, and one
/// installation.
pub(crate) async fn lock(path: &Path, what: &str) -> Result<File> {
    let file = File::create(path)?;
    let mut announced = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                if !announced {
                    eprintln!("lab: another process prepares {what}; waiting for it");
                    announced = true;
                }
                sleep(Duration::from_millis(200)).await;
            }
            Err(TryLockError::Error(error)) => return Err(error).context("locking the cache"),
        }
    }
}

/// Name of a cached folder, from the digest of what its content depends on. Eight bytes are enough to distinguish versions, and the
/// path stays readable.
pub(crate) fn key(digest: Sha256) -> String {
    let digest = digest.finalize();
    let key = digest.iter().take(8);
    let key = key.fold(0_u64, |key, byte| key << 8 | u64::from(*byte));
    format!("{key:016x}")
}

/// The user's cache folder.
pub fn cache_home() -> Result<PathBuf> {
    let absolute = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set: there is no folder for built tools")
}
