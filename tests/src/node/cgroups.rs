//! The cgroup below which kubelets put pods, one of each node's name in it. It is named after the lab's folder.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::network::NODES;
use crate::{folder, wait::Deadline};

const ROOT: &str = "/sys/fs/cgroup";

/// Processes of an ended PID namespace leave their cgroup a moment later.
const EMPTIED: Duration = Duration::from_secs(10);

/// A cgroup in every hierarchy of this machine; removed when this is dropped.
#[derive(Debug)]
pub(super) struct Cgroup {
    name: String,
    /// Locks on the folders, which the kernel releases when this process ends.
    in_use: Vec<File>,
}

impl Cgroup {
    /// Creates it, after it has removed those of labs that were killed.
    pub(super) fn create(name: &str) -> Result<Self> {
        // Between the creation of a cgroup and its lock it looks abandoned.
        let _lock = remove_abandoned()?;
        let mut cgroup = Self {
            name: name.to_owned(),
            in_use: Vec::new(),
        };
        for hierarchy in hierarchies() {
            let path = hierarchy.join(name);
            add(&hierarchy, &path)?;
            prefer(&path)?;
            let lock = File::open(&path)?;
            lock.try_lock()?;
            cgroup.in_use.push(lock);
            for node in NODES {
                add(&path, &path.join(node))?;
            }
        }
        Ok(cgroup)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for hierarchy in hierarchies() {
            let path = hierarchy.join(&self.name);
            let deadline = Deadline::after(EMPTIED);
            while remove(&path).is_err() && !deadline.passed() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Creates a cgroup below another one, with all its controllers.
fn add(above: &Path, path: &Path) -> Result<()> {
    if is_unified() {
        for controller in ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"] {
            // Fails for a controller that this kernel does not have, which the kubelet reports.
            let _ = fs::write(
                above.join("cgroup.subtree_control"),
                format!("+{controller}"),
            );
        }
    }
    fs::create_dir(path).with_context(|| format!("creating {}", path.display()))?;
    for file in ["cpuset.cpus", "cpuset.mems"] {
        // Empty in a new cgroup of version 1, which then takes no process.
        if !is_unified() && above.join(file).exists() {
            let value = fs::read(above.join(file))?;
            fs::write(path.join(file), value).context(file)?;
        }
    }
    Ok(())
}

/// Gives a cgroup the largest share of the processors. On most machines systemd puts everything that is no pod into groups,
/// which together have as much as the pods. Here the programs of the control plane may be in no group, and then each thread
/// of them would have as much as all pods: on a busy machine a webhook would miss the 3 s of an API server.
fn prefer(path: &Path) -> Result<()> {
    for (file, most) in [("cpu.weight", "10000"), ("cpu.shares", "262144")] {
        let file = path.join(file);
        if file.exists() {
            fs::write(&file, most).with_context(|| format!("writing {}", file.display()))?;
        }
    }
    Ok(())
}

/// Whether this machine has only cgroups of version 2.
pub(super) fn is_unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// The mounted hierarchies: one of version 2, or one for each controller.
fn hierarchies() -> Vec<PathBuf> {
    if is_unified() {
        return vec![ROOT.into()];
    }
    let entries = fs::read_dir(ROOT).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path());
    // Some systems also have links, such as `cpu` for `cpu,cpuacct`.
    folders
        .filter(|path| path.join("cgroup.procs").exists() && !path.is_symlink())
        .collect()
}

/// Removes a cgroup with those in it, from the innermost on.
fn remove(path: &Path) -> std::io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(_) if !path.exists() => return Ok(()),
        entries => entries?,
    };
    for entry in entries.flatten() {
        if entry.path().is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// Removes the cgroups whose lab has ended. Returns the lock with which it does so: no other lab removes any as long as it
/// is kept.
fn remove_abandoned() -> Result<File> {
    let root = File::open(ROOT)?;
    root.lock()?;
    for hierarchy in hierarchies() {
        for entry in fs::read_dir(hierarchy).into_iter().flatten().flatten() {
            let is_ours = entry
                .file_name()
                .to_string_lossy()
                .starts_with(folder::PREFIX);
            let abandoned = || File::open(entry.path()).is_ok_and(|lock| lock.try_lock().is_ok());
            if is_ours && abandoned() {
                folder::report(&entry.path(), remove(&entry.path()));
            }
        }
    }
    Ok(root)
}
