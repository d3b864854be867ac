//! The files of an image, as they are found on a Debian machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use super::Architecture;
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

    /// Adds a program with the libraries that it is linked with, and the packages of these libraries.
    pub async fn program(
        &mut self,
        from: &Path,
        path: &str,
        architecture: Architecture,
    ) -> Result<()> {
        self.copy(from, path, 0o755)?;
        let mut packages = BTreeSet::new();
        for (at, found) in libraries(from, architecture).await? {
            packages.insert(owner(&found).await?);
            self.copy(&found, &at, if is_loader(&at) { 0o755 } else { 0o644 })?;
        }
        for package in packages {
            self.package(&package).await?;
        }
        Ok(())
    }

    /// Adds the description of an installed package, such as `libc6:amd64`.
    pub async fn package(&mut self, package: &str) -> Result<()> {
        let status = dpkg_query(&["--status", package]).await?;
        let name = package.split(':').next().unwrap_or(package);
        self.add(&format!("{STATUS}{name}"), status, 0o644);
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
async fn libraries(program: &Path, architecture: Architecture) -> Result<Vec<(String, PathBuf)>> {
    let triplet = architecture.triplet();
    let (mut found, mut waiting) = (BTreeMap::new(), vec![program.to_owned()]);
    while let Some(next) = waiting.pop() {
        for needed in needed(&next).await? {
            let (at, file) = if is_loader(&needed) {
                // Libraries name it without its path.
                if !needed.starts_with('/') {
                    continue;
                }
                (needed.clone(), PathBuf::from(&needed))
            } else {
                let folders = ["/lib", "/usr/lib"].map(|it| Path::new(it).join(&triplet));
                let mut files = folders.iter().map(|folder| folder.join(&needed));
                let file = files.find(|file| file.exists()).with_context(|| {
                    let program = program.display();
                    format!("{program} needs {needed}, which this machine does not have for {architecture}")
                })?;
                (format!("/usr/lib/{triplet}/{needed}"), file)
            };
            if found.insert(at, file.clone()).is_none() {
                waiting.push(file);
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// The libraries that a program or a library names, and the path of the loader that a program names. It may be of any
/// architecture.
async fn needed(file: &Path) -> Result<Vec<String>> {
    let mut readelf = Command::new("readelf");
    readelf.args(["--wide", "--dynamic", "--program-headers"]);
    let text = command::stdout(readelf.arg(file).env("LC_ALL", "C")).await?;
    let text = String::from_utf8(text)?;
    let named = |line: &str| {
        let library = line.split_once("Shared library: [");
        let (_, name) = library.or_else(|| line.split_once("program interpreter: "))?;
        name.split(']').next().map(str::to_owned)
    };
    Ok(text.lines().filter_map(named).collect())
}

fn is_loader(path: &str) -> bool {
    file_name(Path::new(path)).starts_with("ld-linux")
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The package that has installed this file. Where `/lib` is a link to `/usr/lib`, it may know it by the other path.
async fn owner(file: &Path) -> Result<String> {
    let path = file.display().to_string();
    let path = path.strip_prefix("/usr").unwrap_or(&path);
    let found = dpkg_query(&["--search", &format!("*{path}")]).await?;
    let owners = found.lines().filter_map(|line| line.rsplit_once(": "));
    let mut owners = owners.filter(|(_, at)| at.strip_prefix("/usr").unwrap_or(at) == path);
    let (owner, _) = owners
        .next()
        .with_context(|| format!("no package has installed {path}"))?;
    Ok(owner.split(',').next().unwrap_or(owner).to_owned())
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
