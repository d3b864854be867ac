//! The Dockerfile, as far as it can be checked without a container engine: the copied files exist and are a complete
//! workspace, and the image contains the started programs and their libraries.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use lab::{Binary, Lab, Options, install, paths};

/// Libraries of the base image, which are libc6 and libgcc-s1 of Debian 12, and the one that the Dockerfile copies.
const LIBRARIES: [&str; 6] = [
    "libvirt.so.0",
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

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

/// Runs the shell script of the Dockerfile that collects libvirt, in a folder, without installing anything.
#[test]
fn the_image_names_the_package_of_each_library_that_it_copies() {
    let search = ["--search", "*/libvirt.so.0"];
    let found = Command::new("dpkg-query").args(search).output();
    if !found.is_ok_and(|output| output.status.success()) {
        lab::skip("no package of Debian has installed libvirt on this machine");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let root = root.path().display().to_string();
    let script = instructions("RUN ").remove(0).join(" ");
    let (_, script) = script.split_once("libvirt-dev && ").unwrap();
    let script = script
        .replace("/libvirt/", &format!("{root}/libvirt/"))
        .replace("/libvirt$", &format!("{root}/libvirt$"))
        .replace("/copied", &format!("{root}/copied"))
        .replace("/packages", &format!("{root}/packages"));
    let status = Command::new("sh").args(["-ec", &script]).status().unwrap();
    assert!(status.success(), "{script}");

    let names = |folder: &Path| -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    };
    let root = Path::new(&root).join("libvirt");
    let libraries = fs::read_dir(root.join("usr/lib")).unwrap().next().unwrap();
    let libraries = names(&libraries.unwrap().path());
    assert!(libraries.contains("libvirt.so.0") && libraries.contains("libssh.so.4"));
    let packages = names(&root.join("var/lib/dpkg/status.d"));
    for package in &packages {
        let status = fs::read_to_string(root.join("var/lib/dpkg/status.d").join(package)).unwrap();
        assert!(
            status.starts_with(&format!("Package: {package}\n")),
            "{status}"
        );
        assert!(status.contains("\nVersion: "), "{status}");
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
        profile: std::collections::BTreeMap<String, serde_json::Value>,
    }
    let manifest: Manifest = basic_toml::from_str(&read("Cargo.toml")).unwrap();
    let release = &manifest.profile["release"];
    assert_eq!(release["overflow-checks"], true);
    // No package has a setting of its own.
    assert!(release["package"].is_null());
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
            assert!(LIBRARIES.contains(&name.as_str()), "{name}");
        }
    }
}
