//! The image of the product, with the files that the Dockerfile puts into it.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{Architecture, Files, Image, Reference, files::STATUS};
use crate::{Binary, command, libvirt::packages, paths};

/// The programs.
const PROGRAMS: [Binary; 2] = [Binary::Webhook, Binary::Controller];

/// The user that the programs run as; a number, so that the kubelet can verify `runAsNonRoot`.
pub const USER: &str = "65532:65532";

/// The libraries that the base image of the Dockerfile contains.
pub const BASE_LIBRARIES: [&str; 6] = [
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libresolv.so.2",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// Further files of the base image: the distribution, from which scanners know where to look packages up; and what the programs
/// read: names of users, the order in which names are resolved, and the CA certificates for servers of images.
pub const BASE_FILES: [&str; 5] = [
    RELEASE,
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    CERTIFICATES,
];

/// The distribution.
const RELEASE: &str = "/etc/os-release";
const RELEASE_PACKAGE: &str = "base-files";

const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
const CERTIFICATES_PACKAGE: &str = "ca-certificates";
/// Where the package has the certificates. The bundle of the machine also has the CAs that its administrator added, and the
/// image would trust them wherever it runs.
const PUBLIC_CERTIFICATES: &str = "/usr/share/ca-certificates/mozilla";

/// The certificates of the public CAs, in the order of their names.
fn public_certificates() -> Result<Vec<u8>> {
    let missing = || format!("{PUBLIC_CERTIFICATES}: apt-get install {CERTIFICATES_PACKAGE}");
    let entries = fs::read_dir(PUBLIC_CERTIFICATES).with_context(missing)?;
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry.with_context(missing)?.path());
    }
    files.sort();
    ensure!(!files.is_empty(), missing());
    let mut bundle = Vec::new();
    for file in files {
        bundle.extend(fs::read(&file).with_context(|| file.display().to_string())?);
    }
    Ok(bundle)
}

/// The image with the programs of a folder.
pub async fn product(
    programs: &Path,
    name: Reference,
    architecture: Architecture,
    revision: &Revision,
) -> Result<Image> {
    let mut files = Files::default();
    for binary in PROGRAMS {
        let path = format!("/{}", binary.name());
        let program = programs.join(binary.name());
        files.program(&program, &path, architecture).await?;
    }
    files.copy(&paths::repository().join("LICENSE"), "/LICENSE", 0o644)?;
    let (user, _) = USER.split_once(':').unwrap_or((USER, USER));
    let line = format!("root:x:0:0:root:/:/none\nnonroot:x:{USER}:nonroot:/:/none\n");
    files.add("/etc/passwd", line, 0o644);
    files.add(
        "/etc/group",
        format!("root:x:0:\nnonroot:x:{user}:\n"),
        0o644,
    );
    files.add("/etc/nsswitch.conf", "hosts: files dns\n", 0o644);
    files.add(CERTIFICATES, public_certificates()?, 0o644);
    files.package(CERTIFICATES_PACKAGE).await?;
    files.copy(Path::new("/usr/lib/os-release"), RELEASE, 0o644)?;
    files.package(RELEASE_PACKAGE).await?;
    Ok(Image {
        name,
        architecture,
        files,
        user: USER.to_owned(),
        labels: labels(revision),
        command: Vec::new(),
        created: revision.time.clone(),
    })
}

/// How the names of variables of this machine begin that would change the programs, or where cargo writes them.
const FOREIGN_SETTINGS: [&str; 4] = [
    "CARGO_BUILD_TARGET",
    "CARGO_PROFILE_RELEASE_",
    "CFLAGS",
    "RUSTC_WRAPPER",
];

/// The packages of the image, as components of a bill of materials in CycloneDX.
pub fn components(files: &Files) -> Vec<Value> {
    let release = files.content(RELEASE).unwrap_or_default();
    let release = str::from_utf8(release).unwrap_or_default();
    let (id, version_id) = (value(release, "ID="), value(release, "VERSION_ID="));
    let packages = files.paths().filter(|path| path.starts_with(STATUS));
    let texts = packages.filter_map(|path| str::from_utf8(files.content(path)?).ok());
    let components = texts.map(|text| {
        let (name, version) = (value(text, "Package:"), value(text, "Version:"));
        let architecture = value(text, "Architecture:");
        let version_in_url = version.replace('+', "%2B");
        let purl = format!(
            "pkg:deb/{id}/{name}@{version_in_url}?arch={architecture}&distro={id}-{version_id}"
        );
        json!({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
    });
    components.collect()
}

/// The value of a field in lines such as `Version: 1` and `ID="debian"`; empty without such a line.
fn value<'t>(text: &'t str, field: &str) -> &'t str {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(field));
    values.next().unwrap_or_default().trim().trim_matches('"')
}

/// The labels of the image.
fn labels(revision: &Revision) -> BTreeMap<String, String> {
    [
        ("source", "https://github.com/vitistack/kubevirt-operator"),
        ("licenses", "Apache-2.0"),
        ("revision", &revision.commit),
    ]
    .map(|(name, value)| (format!("org.opencontainers.image.{name}"), value.to_owned()))
    .into()
}

/// What the repository contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// The commit, with `-dirty` if files differ from it.
    pub commit: String,
    /// The time of the commit, as RFC 3339.
    pub time: String,
}

impl Revision {
    /// The one that is checked out.
    pub async fn current() -> Result<Self> {
        let commit = git(&["rev-parse", "HEAD"]).await?;
        let is_clean = git(&["status", "--porcelain", "--untracked-files=no"])
            .await?
            .is_empty();
        Ok(Self {
            commit: if is_clean {
                commit
            } else {
                format!("{commit}-dirty")
            },
            time: git(&["log", "-1", "--format=%cI"]).await?,
        })
    }
}

async fn git(arguments: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(paths::repository());
    let printed = command::stdout(&mut git).await?;
    Ok(String::from_utf8(printed)?.trim().to_owned())
}

/// The arguments with which cargo builds the programs, in the Dockerfile, too.
pub const BUILD: &str =
    "build --release --locked --package webhook --package controller --features controller/libvirt";

/// The variable from which C compilers take `__DATE__` and `__TIME__`, which mimalloc contains, and its value in the
/// Dockerfile, too: <https://reproducible-builds.org/docs/source-date-epoch/>.
pub const BUILD_TIME: (&str, &str) = ("SOURCE_DATE_EPOCH", "0");

/// Builds the programs as the Dockerfile does. Returns their folder.
pub async fn build_release(revision: &Revision, architecture: Architecture) -> Result<PathBuf> {
    let is_cross = architecture != Architecture::of_this_machine()?;
    let libvirt = if is_cross {
        architecture.cross_compiler()
    } else {
        packages::headers().await?
    };
    if let Err(missing) = libvirt {
        bail!("the image contains the backend for libvirt: {missing}");
    }
    let target = paths::repository().join("target/image");
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home =
        cargo_home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let cargo_home = cargo_home.context("neither CARGO_HOME nor HOME is set")?;
    // Paths of this machine are in messages of panics.
    let flags = [
        (paths::repository().to_owned(), "/source"),
        (cargo_home, "/usr/local/cargo"),
    ]
    .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    let mut cargo = paths::cargo();
    let mut built = target.clone();
    cargo
        .args(BUILD.split(' '))
        .arg("--target-dir")
        .arg(&target);
    if is_cross {
        cross(&mut cargo, architecture).await?;
        built.push(architecture.target());
    }
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if FOREIGN_SETTINGS.iter().any(|it| text.starts_with(it)) {
            cargo.env_remove(&name);
        }
    }
    let status = cargo
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("GIT_COMMIT", &revision.commit)
        .env(BUILD_TIME.0, BUILD_TIME.1)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .context("starting cargo")?;
    ensure!(status.success(), "cargo could not build the programs");
    Ok(built.join("release"))
}

/// Lets cargo build for another architecture.
async fn cross(cargo: &mut Command, architecture: Architecture) -> Result<()> {
    let (target, compiler) = (architecture.target(), architecture.compiler());
    let mut rustup = Command::new("rustup");
    let add = rustup.args(["target", "add", &target]);
    command::stdout(add)
        .await
        .with_context(|| format!("the standard library of Rust for {target}"))?;
    let variable = target.replace('-', "_");
    cargo
        .args(["--target", &target])
        .env(
            format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()),
            &compiler,
        )
        .env(format!("CC_{variable}"), &compiler)
        .env("PKG_CONFIG_ALLOW_CROSS", "1")
        .env("PKG_CONFIG_LIBDIR", architecture.package_config());
    Ok(())
}
