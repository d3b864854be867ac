//! The architectures that images are made for.

use std::{env, fmt, path::Path, str::FromStr};

use anyhow::{Result, bail};

use crate::debian::{Missing, program};

/// An architecture, as images name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// That of this machine.
    pub fn of_this_machine() -> Result<Self> {
        let here = |it: &Self| it.processor() == env::consts::ARCH;
        let Some(here) = Self::ALL.into_iter().find(here) else {
            bail!(
                "images are made for x86_64 and aarch64, and this machine is {}",
                env::consts::ARCH
            );
        };
        Ok(here)
    }

    /// Its name in images, and in Debian.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Its name in targets of Rust, and in GNU's names of machines.
    fn processor(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// The name of the folder with its libraries, which is the prefix of its compiler, too.
    pub(super) fn triplet(self) -> String {
        format!("{}-linux-gnu", self.processor())
    }

    /// The target of Rust.
    pub(super) fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.processor())
    }

    /// The compiler and linker of C for it.
    pub(super) fn compiler(self) -> String {
        format!("{}-gcc", self.triplet())
    }

    /// The folder in which pkg-config finds its libraries.
    pub(super) fn package_config(self) -> String {
        format!("/usr/lib/{}/pkgconfig", self.triplet())
    }

    /// Whether programs for it, with the backend for libvirt, can be linked on a machine of another architecture.
    pub(super) fn cross_compiler(self) -> Result<(), Missing> {
        let libvirt = Path::new(&self.package_config()).join("libvirt.pc");
        if program(&self.compiler()).is_some() && libvirt.exists() {
            return Ok(());
        }
        let (name, compiler) = (self.name(), self.triplet().replace('_', "-"));
        Err(Missing::new(format!(
            "a compiler and libvirt's headers for {name} are missing: \
             dpkg --add-architecture {name} && apt-get update && \
             apt-get install gcc-{compiler} libvirt-dev:{name}"
        )))
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Architecture {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|it| it.name() == text) {
            Some(found) => Ok(found),
            None => bail!("images are made for amd64 and arm64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_architectures_are_refused_with_the_names_of_these() {
        assert_eq!(
            "arm64".parse::<Architecture>().unwrap(),
            Architecture::Arm64
        );
        let error = "riscv64".parse::<Architecture>().unwrap_err().to_string();
        assert_eq!(error, "images are made for amd64 and arm64");
    }
}
