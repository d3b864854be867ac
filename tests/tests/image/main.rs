//! The image: the Dockerfile, as far as it can be checked without a container engine, and the archive of
//! `tests/lab image`, which has the same files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod readers;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use lab::{
    Binary, Lab, Options,
    image::{
        Architecture, BASE_FILES, BASE_LIBRARIES, BUILD, BUILD_TIME, Image, Reference, Revision,
        components, product,
    },
    install, paths,
};

fn read(name: &str) -> String {
    fs::read_to_string(paths::repository().join(name)).unwrap()
}

/// The arguments of each instruction of a kind.
fn instructions(kind: &str) -> Vec<Vec<String>> {
    let lines = read("Dockerfile").replace("\\\n", " ");
    let lines = lines.lines().filter_map(|line| line.strip_prefix(kind));
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    lines.map(words).collect()
}

/// The paths of the repository that the first stage copies.
fn sources() -> BTreeSet<String> {
    let mut sources = BTreeSet::new();
    for mut words in instructions("COPY ") {
        if words[0].starts_with("--from=") {
            continue;
        }
        words.pop();
        sources.extend(words);
    }
    sources
}

#[test]
fn the_dockerfile_builds_the_programs_as_the_archive_does() {
    let (variable, value) = BUILD_TIME;
    assert!(instructions("ENV ").contains(&vec![format!("{variable}={value}")]));
    let mut commands = instructions("RUN ").into_iter();
    assert!(commands.any(|words| words.join(" ").contains(&format!("cargo {BUILD} "))));
}

#[test]
fn the_docker_context_is_exactly_what_is_copied() {
    let ignored = read(".dockerignore");
    let sent: BTreeSet<_> = ignored
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .map(str::to_owned)
        .collect();
    assert_eq!(sent, sources());
}

fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        fs::copy(from, to).unwrap();
        return;
    }
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "target" {
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    }
}

/// Cargo finds every member and every target, and would not change the lock file.
#[test]
fn the_copied_files_are_a_complete_workspace() {
    let folder = tempfile::tempdir().unwrap();
    for source in sources() {
        copy(
            &paths::repository().join(&source),
            &folder.path().join(&source),
        );
    }
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version=1"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let reported = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{reported}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    for name in ["webhook", "controller"] {
        let package = packages.iter().find(|package| package["name"] == name);
        for target in package.unwrap()["targets"].as_array().unwrap() {
            let source = target["src_path"].as_str().unwrap();
            assert!(Path::new(source).is_file(), "{source}");
        }
    }
}

#[test]
fn the_dockerfile_uses_the_pinned_compiler_and_the_matching_libc() {
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain.split('"').nth(1).unwrap();
    let stages = instructions("FROM ");
    assert_eq!(stages[0][0], format!("rust:{channel}-bookworm"));
    // Debian 12 is bookworm.
    assert_eq!(stages[1][0], "gcr.io/distroless/cc-debian12:nonroot");
}

#[tokio::test]
async fn the_commands_of_the_deployments_are_in_the_image() {
    let lab = Lab::with(Options::bare()).await.unwrap();
    let folder = paths::repository().join("manifests/install");
    let kustomize = ["kustomize", &folder.display().to_string()];
    let output = lab.kubectl().run(&kustomize).await.unwrap();
    let objects = install::parse(&output.ok().unwrap()).unwrap();
    let mut started = BTreeSet::new();
    for object in objects.iter().filter(|it| it["kind"] == "Deployment") {
        let pod = &object["spec"]["template"]["spec"];
        let command = &pod["containers"][0]["command"][0];
        started.insert(command.as_str().unwrap().to_owned());
        let (user, group) = (
            &pod["securityContext"]["runAsUser"],
            &pod["securityContext"]["runAsGroup"],
        );
        assert_eq!(instructions("USER "), [[format!("{user}:{group}")]]);
    }
    let programs = instructions("COPY ").into_iter();
    let programs: BTreeSet<_> = programs
        .filter(|words| words[0] == "--from=build" && words[1].starts_with("/programs/"))
        .map(|words| {
            let built = words[1].strip_prefix("/programs").unwrap();
            assert_eq!(built, words[2]);
            words[2].clone()
        })
        .collect();
    assert_eq!(started, programs);
    let built = instructions("RUN ").concat();
    for program in &programs {
        assert!(built.contains(&format!("target/release{program}")));
    }
}

/// The folder of the files that the shell script of the Dockerfile collects; it runs in `root`, and installs nothing.
fn collected(root: &Path) -> PathBuf {
    let root = root.display().to_string();
    let script = instructions("RUN ").remove(0).join(" ");
    let (_, script) = script.split_once("libvirt-dev && ").unwrap();
    let script = script
        .replace("/libvirt/", &format!("{root}/libvirt/"))
        .replace("/libvirt$", &format!("{root}/libvirt$"))
        .replace("/copied", &format!("{root}/copied"))
        .replace("/packages", &format!("{root}/packages"));
    let status = Command::new("sh").args(["-ec", &script]).status().unwrap();
    assert!(status.success(), "{script}");
    Path::new(&root).join("libvirt")
}

/// The files below a folder, as absolute paths of an image.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let relative = path.strip_prefix(folder).unwrap().display();
                found.insert(format!("/{relative}"), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// The value of a field of a package's description.
fn field<'a>(description: &'a str, name: &str) -> &'a str {
    let mut lines = description.lines();
    lines.find_map(|line| line.strip_prefix(name)).unwrap()
}

/// Whether an image can be made on this machine.
fn has_package_of_libvirt() -> bool {
    let search = ["--search", "*/libvirt.so.0"];
    let found = Command::new("dpkg-query").args(search).output();
    let is_installed = found.is_ok_and(|output| output.status.success());
    if !is_installed {
        lab::skip("no package of Debian has installed libvirt on this machine");
    }
    is_installed
}

/// An administrator's CA on the machine that makes the image is not trusted wherever the image runs.
#[tokio::test]
async fn the_image_trusts_the_cas_of_the_package_and_no_others() {
    if !has_package_of_libvirt() {
        return;
    }
    let revision = Revision::current().await.unwrap();
    let name = Reference::new("registry.example.com/operator", "v1").unwrap();
    let programs = Binary::Webhook.path().await.unwrap();
    let architecture = Architecture::of_this_machine().unwrap();
    let image = product(programs.parent().unwrap(), name, architecture, &revision);
    let image = image.await.unwrap();
    let bundle = image.files.content("/etc/ssl/certs/ca-certificates.crt");
    let bundle = str::from_utf8(bundle.unwrap()).unwrap();
    let query = ["--listfiles", "ca-certificates"];
    let listed = Command::new("dpkg-query").args(query).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let files = listed
        .lines()
        .filter(|line| line.starts_with("/usr/share/ca-certificates/mozilla/"));
    let of_package: String = files
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let certificates = |text: &str| -> BTreeSet<String> {
        let parts = text.split("-----BEGIN CERTIFICATE-----").skip(1);
        parts.map(|part| part.trim().to_owned()).collect()
    };
    assert!(certificates(bundle).len() > 100);
    assert_eq!(certificates(bundle), certificates(&of_package));
}

/// The archive has what the Dockerfile puts on its base image, and of the base image what the programs need.
#[tokio::test]
async fn the_archive_and_the_dockerfile_have_the_same_files() {
    if !has_package_of_libvirt() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut expected = tree(&collected(folder.path()));
    let programs = Binary::Webhook.path().await.unwrap();
    let programs = programs.parent().unwrap();
    for words in instructions("COPY ") {
        let from = match words[1].as_str() {
            "/libvirt/" => continue,
            "/source/LICENSE" => paths::repository().join("LICENSE"),
            program if words[0] == "--from=build" => {
                programs.join(program.strip_prefix("/programs/").unwrap())
            }
            _ => continue,
        };
        expected.insert(words[2].clone(), fs::read(from).unwrap());
    }

    let revision = Revision::current().await.unwrap();
    let name = || Reference::new("registry.example.com/operator", "v1").unwrap();
    let architecture = Architecture::of_this_machine().unwrap();
    let image = product(programs, name(), architecture, &revision);
    let image = image.await.unwrap();
    let paths: BTreeSet<_> = image.files.paths().map(str::to_owned).collect();
    let missing: Vec<_> = expected.keys().filter(|it| !paths.contains(*it)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let mut base = BTreeSet::new();
    for path in image.files.paths() {
        let content = image.files.content(path).unwrap();
        match expected.get(path) {
            Some(expected) => assert!(content == expected, "{path}"),
            None => {
                base.insert(path.to_owned());
            }
        }
    }
    // Everything else is in the base image.
    for path in base {
        let file = path.rsplit('/').next().unwrap();
        let is_package = ["libc6", "libgcc-s1", "ca-certificates", "base-files"].contains(&file);
        let is_base = BASE_FILES.contains(&&*path) || BASE_LIBRARIES.contains(&file);
        assert!(
            is_base || (is_package && path.contains("/status.d/")),
            "{path}"
        );
    }

    let mode = |path: &str| image.files.mode(path).unwrap();
    assert_eq!((mode("/machine-webhook"), mode("/LICENSE")), (0o755, 0o644));
    assert_eq!(instructions("USER "), [[image.user.as_str()]]);
    let labels = instructions("LABEL ").concat();
    let labels: BTreeMap<_, _> = labels
        .iter()
        .map(|label| label.split_once('=').unwrap())
        .map(|(name, value)| (name, value.replace("$GIT_COMMIT", &revision.commit)))
        .collect();
    let named = |(name, value): (&String, &String)| (name.clone(), value.clone());
    let own: BTreeMap<_, _> = image.labels.iter().map(named).collect();
    assert_eq!(
        own,
        labels.into_iter().map(|(a, b)| (a.to_owned(), b)).collect()
    );
    for component in components(&image.files) {
        let status = format!(
            "/var/lib/dpkg/status.d/{}",
            component["name"].as_str().unwrap()
        );
        let status = String::from_utf8(image.files.content(&status).unwrap().to_vec()).unwrap();
        assert_eq!(component["version"], field(&status, "Version: "));
    }

    // Made twice, it is the same; and it is read as it was written.
    let (one, other) = (folder.path().join("1.tar"), folder.path().join("2.tar"));
    let digest = image.write(&one).unwrap();
    let again = product(programs, name(), architecture, &revision);
    assert_eq!(again.await.unwrap().write(&other).unwrap(), digest);
    assert!(fs::read(&one).unwrap() == fs::read(&other).unwrap());
    assert!(Image::read(&one).unwrap() == image);
}

/// The packages of all libraries are named, for scanners of images.
#[test]
fn the_image_names_the_package_of_each_library_that_it_copies() {
    if !has_package_of_libvirt() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let files = tree(&collected(root.path()));
    let of = |part: &str| -> BTreeSet<String> {
        let paths = files.keys().filter(|path| path.contains(part));
        paths
            .map(|path| path.rsplit('/').next().unwrap().to_owned())
            .collect()
    };
    let (libraries, packages) = (of("/usr/lib/"), of("/status.d/"));
    assert!(libraries.contains("libvirt.so.0") && libraries.contains("libssh.so.4"));
    for package in &packages {
        let status = &files[&format!("/var/lib/dpkg/status.d/{package}")];
        let status = String::from_utf8(status.clone()).unwrap();
        assert_eq!(field(&status, "Package: "), package);
        assert!(!field(&status, "Version: ").is_empty());
    }
    for library in &libraries {
        let search = ["--search", &format!("*/{library}")];
        let owner = Command::new("dpkg-query").args(search).output().unwrap();
        let owner = String::from_utf8(owner.stdout).unwrap();
        let (owner, _) = owner.split_once(':').unwrap();
        assert!(packages.contains(owner), "{library} of {owner}");
    }
    assert!(packages.len() <= libraries.len());
    // libvirt runs no program for a connection over SSH.
    assert!(!read("Dockerfile").contains("openssh-client"));
}

#[test]
fn the_programs_of_the_image_check_integer_overflow() {
    #[derive(serde::Deserialize)]
    struct Manifest {
        profile: BTreeMap<String, serde_json::Value>,
    }
    let manifest: Manifest = basic_toml::from_str(&read("Cargo.toml")).unwrap();
    let release = &manifest.profile["release"];
    assert_eq!(release["overflow-checks"], true);
    let packages = release["package"].as_object().unwrap();
    for (package, settings) in packages {
        assert!(settings["overflow-checks"].is_null(), "{package}");
    }
    assert!(
        instructions("RUN ")
            .concat()
            .contains(&"--release".to_owned())
    );
}

#[tokio::test]
async fn the_programs_link_only_libraries_of_the_image() {
    for binary in [Binary::Webhook, Binary::Controller] {
        let path = binary.path().await.unwrap();
        let output = Command::new("readelf")
            .arg("-d")
            .arg(path)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let needed = text.lines().filter(|line| line.contains("(NEEDED)"));
        let names: Vec<_> = needed
            .map(|line| line.split(['[', ']']).nth(1).unwrap().to_owned())
            .collect();
        assert!(names.contains(&"libc.so.6".to_owned()), "{text}");
        for name in names {
            let is_copied = name == "libvirt.so.0";
            assert!(
                is_copied || BASE_LIBRARIES.contains(&name.as_str()),
                "{name}"
            );
        }
    }
}
