//! The files of an image, as they are found on a Debian machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::{command, debian};

/// The content and the permissions of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub(super) content: Vec<u8>,
    pub(super) mode: u32,
}

/// Files with their absolute paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files(BTreeMap<String, File>);

/// Where scanners of images look for the description of each package, as in the images of distroless.
pub(super) const STATUS: &str = "/var/lib/dpkg/status.d/";

impl Files {
    /// Adds a file with this content.
    pub fn add(&mut self, path: &str, content: impl Into<Vec<u8>>, mode: u32) {
        let content = content.into();
        self.0.insert(path.to_owned(), File { content, mode });
    }

    /// Adds a file of this machine.
    pub fn copy(&mut self, from: &Path, path: &str, mode: u32) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
        self.add(path, content, mode);
        Ok(())
    }

    /// Adds a program of this machine with the libraries that it is linked with, and the packages of these libraries.
    pub async fn program(&mut self, from: &Path, path: &str) -> Result<()> {
        self.copy(from, path, 0o755)?;
        let mut packages = BTreeSet::new();
        for (at, found) in libraries(from).await? {
            packages.insert(owner(&file_name(&found)).await?);
            self.copy(&found, &at, if is_loader(&at) { 0o755 } else { 0o644 })?;
        }
        for package in packages {
            self.package(&package).await?;
        }
        Ok(())
    }

    /// Adds the description of an installed package.
    pub async fn package(&mut self, package: &str) -> Result<()> {
        let status = dpkg_query(&["--status", package]).await?;
        self.add(&format!("{STATUS}{package}"), status, 0o644);
        Ok(())
    }

    /// The paths.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The content of a file.
    pub fn content(&self, path: &str) -> Option<&[u8]> {
        self.0.get(path).map(|file| file.content.as_slice())
    }

    /// The permissions of a file.
    pub fn mode(&self, path: &str) -> Option<u32> {
        self.0.get(path).map(|file| file.mode)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &File)> {
        self.0.iter()
    }

    /// Every folder that contains a file, before the folders in it.
    pub(super) fn folders(&self) -> BTreeSet<&Path> {
        let paths = self.0.keys().map(Path::new);
        let folders = paths.flat_map(|path| path.ancestors().skip(1));
        folders.filter(|folder| folder.parent().is_some()).collect()
    }
}

/// The libraries of a program: the path in the image and the file on this machine. All are in one folder that the loader
/// searches, except for the loader, whose path is in the program.
async fn libraries(program: &Path) -> Result<Vec<(String, PathBuf)>> {
    let text = command::stdout(Command::new("ldd").arg(program)).await?;
    let text = String::from_utf8(text)?;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        ensure!(
            !line.ends_with("not found"),
            "{} needs a library that this machine does not have: {line}",
            program.display()
        );
        let path = line.rsplit("=> ").next().unwrap_or(line);
        let path = path.split(' ').next().unwrap_or(path);
        // The kernel's own library has no file.
        if !path.starts_with('/') {
            continue;
        }
        let at = if is_loader(path) {
            path.to_owned()
        } else {
            let architecture = env::consts::ARCH;
            let name = file_name(Path::new(path));
            format!("/usr/lib/{architecture}-linux-gnu/{name}")
        };
        found.push((at, PathBuf::from(path)));
    }
    Ok(found)
}

fn is_loader(path: &str) -> bool {
    file_name(Path::new(path)).starts_with("ld-linux")
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The package that has installed a file of this name.
async fn owner(name: &str) -> Result<String> {
    let found = dpkg_query(&["--search", &format!("*/{name}")]).await?;
    let end = found.find([':', ',']).unwrap_or(found.len());
    Ok(found[..end].to_owned())
}

async fn dpkg_query(arguments: &[&str]) -> Result<String> {
    ensure!(
        debian::program("dpkg-query").is_some(),
        "images are made of packages of Debian, and dpkg-query is missing: use the Dockerfile here"
    );
    let mut query = Command::new("dpkg-query");
    query.args(arguments).env("LC_ALL", "C");
    Ok(String::from_utf8(command::stdout(&mut query).await?)?)
}
