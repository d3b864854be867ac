//! This program, started again in namespaces of its own.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{cgroups::Cgroup, network};
use crate::{
    folder::Folder,
    process::{Process, Program},
};

/// The variable with the folder of the enclosing program, in the enclosed one.
const ENCLOSED: &str = "LAB_NODE";

/// The variable with the name of the cgroup.
const CGROUP: &str = "LAB_NODE_CGROUP";

/// The file with which the enclosed program says that its cluster is complete.
const KUBECONFIG: &str = "kubeconfig";

/// Says so: the file is a link to the kubeconfig.
pub(super) fn announce(kubeconfig: &Path) -> Result<()> {
    std::os::unix::fs::symlink(kubeconfig, shared(KUBECONFIG)?).context("announcing the cluster")
}

/// The first process of the namespaces. containerd and the kubelet have fixed paths below these folders; nothing that
/// they write there is seen outside. The shell stays, because the first process of a PID namespace has to collect the
/// exit status of every process that lost its parent.
const FIRST: &str = r#"
set -e
mount -t tmpfs none /run
mount -t tmpfs none /var/log
# The servers of names of this machine are not reached: a name is unknown at once.
if [ -e /etc/resolv.conf ]; then mount --bind /dev/null /etc/resolv.conf; fi
mount -t tmpfs none "$1/var"
mkdir "$1/var/changed" "$1/var/work"
mount -t overlay none -o "lowerdir=/var/lib,upperdir=$1/var/changed,workdir=$1/var/work" /var/lib
# The kubelet sets parameters that the whole machine has: it gets files in their place.
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    file="$1/var/$(echo "$name" | tr / -)"
    cat "/proc/sys/$name" > "$file"
    mount --bind "$file" "/proc/sys/$name"
done
# Mounts of volumes have to reach containers.
mount --make-rshared /
"#;

/// What follows [`FIRST`] and the commands for the network.
const LAST: &str = r#"
shift
set +e
"$@"
exit $?
"#;

/// Whether this process is the one in the namespaces.
pub fn is_enclosed() -> bool {
    env::var_os(ENCLOSED).is_some()
}

/// A file in the folder that the enclosing program shares with the enclosed one.
pub(super) fn shared(name: &str) -> Result<PathBuf> {
    let folder = env::var_os(ENCLOSED).context("this is not the enclosed program")?;
    Ok(Path::new(&folder).join(name))
}

/// The name of the cgroup for pods.
pub(super) fn cgroup() -> Result<String> {
    env::var(CGROUP).context(CGROUP)
}

/// Where the output of the enclosed program goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Where that of the enclosing program goes.
    Shown,
    /// To a log that [`ProcessInNamespaces::log`] reads.
    Logged,
}

/// The program in the namespaces. Dropping this ends it, and everything that it has started.
#[derive(Debug)]
pub struct ProcessInNamespaces {
    // Dropped in this order.
    process: Process,
    _cgroup: Cgroup,
    folder: Folder,
}

impl ProcessInNamespaces {
    /// A folder for files that are made before the program is started, such as images.
    pub(super) fn folder() -> Result<Folder> {
        let folder = Folder::new()?;
        for name in ["var", "tmp"] {
            std::fs::create_dir(folder.join(name))?;
        }
        Ok(folder)
    }

    /// Starts this program again with these arguments.
    pub(super) fn start(folder: Folder, arguments: &[&str], output: Output) -> Result<Self> {
        let name = folder.path().file_name().unwrap_or_default();
        let cgroup = Cgroup::create(&name.to_string_lossy())?;
        let script = format!("{FIRST}{}{LAST}", network::commands());
        let here = folder.path().display().to_string();
        let this_program = env::current_exe()?.display().to_string();
        let mut program = Program::new(Path::new("unshare"), &folder.join("output.log"))
            .args(["--mount", "--net", "--pid", "--mount-proc"])
            .args(["--fork", "--kill-child", "sh", "-c", &script, "first"])
            .args([&here, &this_program])
            .args(arguments.iter().copied())
            .env(ENCLOSED, &here)
            .env(CGROUP, cgroup.name())
            .env("TMPDIR", folder.join("tmp").display());
        if output == Output::Shown {
            program = program.shown();
        }
        Ok(Self {
            process: program.start()?,
            _cgroup: cgroup,
            folder,
        })
    }

    /// Waits until the program ends.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.process.wait(limit).await
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.process.ended()
    }

    /// The kubeconfig of the cluster in the namespaces, once it is complete.
    pub fn kubeconfig(&self) -> Option<PathBuf> {
        std::fs::read_link(self.folder.join(KUBECONFIG)).ok()
    }

    /// The command that runs another command where the cluster can be reached.
    pub fn entering(&self) -> String {
        let namespaces = format!("/proc/{}/ns", self.process.id());
        format!("nsenter --mount={namespaces}/mnt --net={namespaces}/net")
    }

    /// What it has written to its log.
    pub fn log(&self) -> String {
        self.process.log()
    }
}
