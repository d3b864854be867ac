//! The temporary folder of one lab, and the removal of abandoned ones.
//!
//! A killed process cannot remove its folder. The owner holds a lock on a file in it, and the kernel releases the
//! lock when the process ends: the next lab removes every folder whose lock it can take.

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

pub(crate) const PREFIX: &str = "kubevirt-operator-lab-";
const LOCK: &str = "in-use";

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    // Fields drop in order: the lock is released after the folder is removed, so that no other process removes it
    // at the same time.
    folder: TempDir,
    _in_use: File,
}

impl Folder {
    /// Creates a folder in the system's temporary folder.
    pub(crate) fn new() -> Result<Self> {
        let parent = env::temp_dir();
        remove_abandoned(&parent);
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(&parent)
            .with_context(|| format!("creating a folder in {}", parent.display()))?;
        // Renamed after it is locked, so that other processes never see an unlocked lock file.
        let draft = folder.path().join("draft");
        let lock = File::create(&draft)?;
        lock.try_lock()?;
        fs::rename(draft, folder.path().join(LOCK))?;
        Ok(Self {
            folder,
            _in_use: lock,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The path of a file in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in it.
    pub(crate) fn write(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.join(name);
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

/// Removes the folders whose owner has ended. A folder without a lock file is just being created, and stays.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let abandoned = File::options()
            .write(true)
            .open(entry.path().join(LOCK))
            .is_ok_and(|lock| lock.try_lock().is_ok());
        if abandoned {
            report(&entry.path(), fs::remove_dir_all(entry.path()));
        }
    }
}

/// Says what became of something that a killed lab had left.
pub(crate) fn report(path: &Path, removed: io::Result<()>) {
    let path = path.display();
    match removed {
        Ok(()) => eprintln!("lab: removed {path}, which a lab that was killed had left"),
        // Another lab removes it at the same time.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => eprintln!(
            "lab: cannot remove {path}, which a lab that was killed left: {error}; the next one tries again"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait;

    #[tokio::test]
    async fn a_folder_in_use_is_kept_and_an_abandoned_one_removed() {
        let used = Folder::new().unwrap();
        let abandoned = Folder::new().unwrap();
        let path = abandoned.path().to_owned();
        let Folder {
            folder,
            _in_use: lock,
        } = abandoned;
        let kept = folder.keep();
        assert_eq!(kept, path);
        drop(lock);

        let next = Folder::new().unwrap();
        // Another lab that looks at it at the same time has its lock, and removes it.
        let removed = wait::until("the folder to be removed", async || {
            Ok((!path.exists()).then_some(()).ok_or(()))
        });
        removed.await.unwrap();
        assert!(used.path().exists() && next.path().exists());
    }
}
