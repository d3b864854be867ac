//! Programs of Debian and Ubuntu that parts of the lab need, and the installation of missing ones.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result};
use tokio::process::Command;

use crate::tools::{cache_home, lock};

/// The reason why something cannot be used on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(String);

impl Missing {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The path of a program. The `sbin` folders are searched, too, because they are not on every user's `PATH`.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// The reason for missing packages, with the command that installs them.
pub(crate) fn instead(what: &str, packages: &[&str]) -> Missing {
    Missing::new(format!("{what}: apt-get install {}", packages.join(" ")))
}

/// The packages of the programs that are missing, and that of a file if it is missing.
pub(crate) fn missing_packages(
    programs: &[(&str, &'static str)],
    (file, package): (&Path, &'static str),
) -> Vec<&'static str> {
    let programs = programs.iter().filter(|(name, _)| program(name).is_none());
    let mut missing: Vec<_> = programs.map(|(_, package)| *package).collect();
    missing.extend((!file.exists()).then_some(package));
    missing.dedup();
    missing
}

/// Installs what is missing if that is possible; else the reason. `what`: the packages in words; `lacks`: that they are
/// missing.
pub(crate) async fn ensure(
    what: &str,
    lacks: &str,
    missing: impl Fn() -> Vec<&'static str>,
) -> Result<Result<(), Missing>> {
    let packages = missing();
    if !packages.is_empty() {
        install(what, &packages).await?;
    }
    let still = missing();
    Ok(if still.is_empty() {
        Ok(())
    } else {
        Err(instead(lacks, &still))
    })
}

/// Installs packages if that is possible. The caller checks again whether they are installed.
pub(crate) async fn install(what: &str, packages: &[&str]) -> Result<()> {
    if program("apt-get").is_none() {
        return Ok(());
    }
    let Some(root) = as_root().await else {
        return Ok(());
    };
    // Two labs that start together would otherwise find the lock of apt-get taken, and miss the packages.
    let cache = cache_home()?.join("kubevirt-operator-lab");
    fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    let _lock = lock(&cache.join(".packages.lock"), what).await?;
    eprintln!("lab: installing {what}: {}", packages.join(" "));
    let steps: [&[&str]; 2] = [
        &["update", "-q"],
        &["install", "-y", "-q", "--no-install-recommends"],
    ];
    for step in steps {
        let mut words = root
            .iter()
            .copied()
            .chain(["apt-get"])
            .chain(step.iter().copied());
        let first = words.next().unwrap_or("apt-get");
        let mut command = Command::new(first);
        command
            .args(words)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if step.contains(&"install") {
            command.args(packages);
        }
        // The result is not an error here: the caller checks whether the packages are installed.
        let output = command.output().await.context("starting apt-get")?;
        if !output.status.success() {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr).trim_end());
            break;
        }
    }
    Ok(())
}

/// The command prefix that runs a command as root; `None` if that would need a password.
async fn as_root() -> Option<&'static [&'static str]> {
    if rustix::process::geteuid().is_root() {
        return Some(&[]);
    }
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "true"])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let allowed = sudo.status().await.is_ok_and(|status| status.success());
    allowed.then_some(&["sudo", "-n"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_packages_are_reported_with_their_install_command() {
        assert_eq!(
            instead(
                "libvirt's headers are missing",
                &["libvirt-dev", "pkg-config"]
            )
            .to_string(),
            "libvirt's headers are missing: apt-get install libvirt-dev pkg-config"
        );
    }

    #[test]
    fn programs_in_sbin_are_found() {
        assert!(program("sh").is_some());
        assert_eq!(program("no-such-program"), None);
    }
}
