//! The format: an OCI image layout in a tar file, with the `manifest.json` that older versions of `docker load` read.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, Permissions},
    io::{Read as _, Write},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Archive, Builder, EntryType, Header};
use tempfile::NamedTempFile;

use super::{Architecture, Files, Reference};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub name: Reference,
    pub architecture: Architecture,
    pub files: Files,
    /// User and group, as numbers.
    pub user: String,
    pub labels: BTreeMap<String, String>,
    /// What it runs; empty if every use of it names a program.
    pub command: Vec<String>,
    /// When it was made, as RFC 3339.
    pub created: String,
}

impl Image {
    /// Writes it as an archive, which every user may read. Returns the digest of its manifest. Registries and the kubelet show
    /// the same one if the layer is pushed as it is; some clients compress it.
    pub fn write(&self, path: &Path) -> Result<String> {
        let layer = Blob::new(layer(&self.files)?);
        let config = json!({
            "created": self.created,
            "architecture": self.architecture.name(),
            "os": "linux",
            "config": {"User": self.user, "Labels": self.labels, "Cmd": self.command},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest()]},
            "history": [{"created": self.created, "created_by": "tests/lab image"}],
        });
        let config = Blob::json(&config);
        let manifest = Blob::json(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(CONFIG),
            "layers": [layer.descriptor(LAYER)],
            "annotations": self.labels,
        }));
        let name = self.name.to_string();
        let mut entry = manifest.descriptor(MANIFEST);
        entry["annotations"] = json!({
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": self.name.tag(),
        });
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        let docker =
            json!([{"Config": config.path(), "RepoTags": [name], "Layers": [layer.path()]}]);

        let folder = path.parent().context("a folder for the archive")?;
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        // Renamed when it is complete: nobody finds half an archive.
        let mut file = NamedTempFile::new_in(folder)?;
        let mut archive = Builder::new(&mut file);
        let layout = json!({"imageLayoutVersion": "1.0.0"});
        for (name, content) in [
            ("oci-layout", &layout),
            ("index.json", &index),
            ("manifest.json", &docker),
        ] {
            append(&mut archive, name, content.to_string().as_bytes(), 0o644)?;
        }
        for blob in [&config, &manifest, &layer] {
            append(&mut archive, &blob.path(), &blob.content, 0o644)?;
        }
        archive.into_inner()?.flush()?;
        file.as_file()
            .set_permissions(Permissions::from_mode(0o644))?;
        file.persist(path)
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(manifest.digest())
    }

    /// Reads an archive that [`Self::write`] has written.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(path).with_context(|| {
            let path = path.display();
            format!("{path} is no complete image: make it again with tests/lab image")
        })
    }

    fn parse(path: &Path) -> Result<Self> {
        let blobs = entries(&fs::read(path)?)?;
        let blobs: BTreeMap<_, _> = blobs
            .into_iter()
            .map(|(path, (content, _))| (path, content))
            .collect();
        let get = |path: &str| blobs.get(path).with_context(|| format!("no {path}"));
        let index: Value = serde_json::from_slice(get("index.json")?)?;
        let entry = &index["manifests"][0];
        let manifest: Value = serde_json::from_slice(verified(&get, entry)?)?;
        let config: Value = serde_json::from_slice(verified(&get, &manifest["config"])?)?;
        let mut files = Files::default();
        for (path, (content, mode)) in entries(verified(&get, &manifest["layers"][0])?)? {
            files.add(&format!("/{path}"), content, mode);
        }
        let name = entry["annotations"]["io.containerd.image.name"].as_str();
        let architecture = config["architecture"].as_str();
        Ok(Self {
            name: name.unwrap_or_default().parse()?,
            architecture: architecture.unwrap_or_default().parse()?,
            files,
            user: serde_json::from_value(config["config"]["User"].clone())?,
            labels: serde_json::from_value(config["config"]["Labels"].clone())?,
            command: serde_json::from_value(config["config"]["Cmd"].clone())?,
            created: serde_json::from_value(config["created"].clone())?,
        })
    }
}

/// Content that is named by its digest.
struct Blob {
    hash: String,
    content: Vec<u8>,
}

impl Blob {
    fn new(content: Vec<u8>) -> Self {
        let mut hash = String::new();
        for byte in Sha256::digest(&content) {
            // Writing to a String cannot fail.
            let _ = write!(hash, "{byte:02x}");
        }
        Self { hash, content }
    }

    fn json(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }

    fn digest(&self) -> String {
        format!("sha256:{}", self.hash)
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.hash)
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest(), "size": self.content.len()})
    }
}

/// The content that a descriptor names.
fn verified<'a>(
    get: &impl Fn(&str) -> Result<&'a Vec<u8>>,
    descriptor: &Value,
) -> Result<&'a [u8]> {
    let digest = descriptor["digest"]
        .as_str()
        .context("an entry without a digest")?;
    let content = get(&format!("blobs/{}", digest.replace(':', "/")))?;
    ensure!(
        Blob::new(content.clone()).digest() == digest,
        "{digest} has other content"
    );
    Ok(content)
}

fn layer(files: &Files) -> Result<Vec<u8>> {
    let mut layer = Builder::new(Vec::new());
    for folder in files.folders() {
        let mut header = header(0, 0o755);
        header.set_entry_type(EntryType::Directory);
        let name = format!("{}/", folder.display());
        layer.append_data(&mut header, name.trim_start_matches('/'), [].as_slice())?;
    }
    for (path, file) in files.iter() {
        append(
            &mut layer,
            path.trim_start_matches('/'),
            &file.content,
            file.mode,
        )?;
    }
    Ok(layer.into_inner()?)
}

fn append(archive: &mut Builder<impl Write>, path: &str, content: &[u8], mode: u32) -> Result<()> {
    let mut header = header(u64::try_from(content.len())?, mode);
    archive.append_data(&mut header, path, content)?;
    Ok(())
}

/// An entry of root from the beginning of 1970: times of this machine would make every archive another one.
fn header(size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// The files in a tar file: path, content, permissions.
fn entries(bytes: &[u8]) -> Result<BTreeMap<String, (Vec<u8>, u32)>> {
    let mut found = BTreeMap::new();
    for entry in Archive::new(bytes).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_dir() {
            continue;
        }
        let path = entry.path()?.display().to_string();
        let mode = entry.header().mode()?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        ensure!(
            u64::try_from(content.len())? == entry.header().size()?,
            "{path} is cut off"
        );
        found.insert(path, (content, mode));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        let mut files = Files::default();
        files.add("/program", "code", 0o755);
        files.add("/etc/deep/er/file", vec![7; 2000], 0o644);
        Image {
            name: "registry.example.com/an/image:v1".parse().unwrap(),
            architecture: Architecture::Arm64,
            files,
            user: "65532:65532".to_owned(),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            command: vec!["/program".to_owned()],
            created: "2026-01-02T03:04:05Z".to_owned(),
        }
    }

    #[test]
    fn an_archive_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/image.tar");
        let digest = image().write(&path).unwrap();
        assert_eq!(Image::read(&path).unwrap(), image());
        let bytes = fs::read(&path).unwrap();
        assert_eq!(image().write(&path).unwrap(), digest);
        assert_eq!(fs::read(&path).unwrap(), bytes);
        // No draft is left beside it.
        let entries = fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(entries.count(), 1);
    }

    #[test]
    fn an_archive_that_is_cut_off_or_changed_is_refused_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.tar");
        image().write(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        for length in (0..bytes.len() - 1024).step_by(500) {
            fs::write(&path, &bytes[..length]).unwrap();
            let error = Image::read(&path).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "{} is no complete image: make it again with tests/lab image",
                    path.display()
                )
            );
        }
        let mut changed = bytes;
        let at = changed.windows(4).position(|it| it == b"code").unwrap();
        changed[at] = b'n';
        fs::write(&path, &changed).unwrap();
        let error = format!("{:#}", Image::read(&path).unwrap_err());
        assert!(error.ends_with("has other content"), "{error}");
    }
}
