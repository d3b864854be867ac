//! Programs of others read the archive as it was written, and refuse one that was cut off.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use lab::image::{Architecture, Files, Image, Reference, podman, skopeo};

const NAME: &str = "registry.example.com/operator";

/// An archive with one file, in a folder that is deleted with it.
struct Archive {
    folder: tempfile::TempDir,
    path: PathBuf,
    digest: String,
}

impl Archive {
    fn write() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("operator.tar");
        let mut files = Files::default();
        files.add("/bin/program", vec![7; 100_000], 0o755);
        let image = Image {
            name: Reference::new(NAME, "v1").unwrap(),
            architecture: Architecture::of_this_machine().unwrap(),
            files,
            user: "65532:65532".to_owned(),
            labels: BTreeMap::from([("maintainer".to_owned(), "nobody".to_owned())]),
            command: vec!["/bin/program".to_owned()],
            created: "2026-01-01T00:00:00Z".to_owned(),
        };
        let digest = image.write(&path).unwrap();
        Self {
            folder,
            path,
            digest,
        }
    }

    /// The first half of it.
    fn half(&self) -> PathBuf {
        let content = fs::read(&self.path).unwrap();
        let half = self.folder.path().join("half.tar");
        fs::write(&half, &content[..content.len() / 2]).unwrap();
        half
    }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).output().unwrap()
}

fn ok(output: Output) -> String {
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{reported}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn skopeo_copies_the_archive_with_its_digest() {
    if let Err(missing) = skopeo().await.unwrap() {
        return lab::skip(missing);
    }
    let archive = Archive::write();
    let copied = archive.folder.path().join("copied");
    let copy = |from: &Path, tag: &str| {
        let from = format!("oci-archive:{}:{tag}", from.display());
        let to = format!("dir:{}", copied.display());
        let whatever_the_policy = "--insecure-policy";
        run(
            "skopeo",
            &[
                whatever_the_policy,
                "copy",
                "--preserve-digests",
                &from,
                &to,
            ],
        )
    };

    ok(copy(&archive.path, "v1"));
    let inspected = format!("dir:{}", copied.display());
    let digest = ok(run(
        "skopeo",
        &["inspect", "--format", "{{.Digest}}", &inspected],
    ));
    assert_eq!(digest.trim(), archive.digest);

    for (from, tag, reason) in [
        (archive.half(), "v1", "unexpected EOF"),
        (archive.path.clone(), "v2", "v2"),
    ] {
        fs::remove_dir_all(&copied).unwrap_or_default();
        let refused = copy(&from, tag);
        assert!(!refused.status.success(), "{} {tag}", from.display());
        let reported = String::from_utf8_lossy(&refused.stderr);
        assert!(reported.contains(reason), "{reported}");
        assert!(!copied.join("manifest.json").exists());
    }
}

#[test]
fn podman_loads_the_archive_under_its_name() {
    if let Err(missing) = podman() {
        return lab::skip(missing);
    }
    let archive = Archive::write();
    // A storage of its own: the images of this machine stay as they are.
    let [root, state] = ["root", "state"].map(|name| {
        let path = archive.folder.path().join(name);
        path.display().to_string()
    });
    let with_storage = |arguments: &[&str]| {
        let own = [
            "--root",
            &root,
            "--runroot",
            &state,
            "--storage-driver",
            "vfs",
        ];
        run("podman", &[&own, arguments].concat())
    };
    ok(with_storage(&[
        "load",
        "--input",
        &archive.path.display().to_string(),
    ]));
    let inspected = ok(with_storage(&["image", "inspect", &format!("{NAME}:v1")]));
    let inspected: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    let config = &inspected[0]["Config"];
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Labels"]["maintainer"], "nobody");
    assert_eq!(config["Cmd"], serde_json::json!(["/bin/program"]));

    let half = archive.half().display().to_string();
    let refused = with_storage(&["load", "--input", &half]);
    assert!(!refused.status.success());
    let reported = String::from_utf8_lossy(&refused.stderr);
    assert!(reported.contains("unexpected EOF"), "{reported}");
}
