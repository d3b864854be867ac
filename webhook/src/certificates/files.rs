//! The files mode: certificate and key that cert-manager or an administrator renews.
//!
//! ```text
//!  folder/..data ─▶ ..2026_11_22 / tls.crt, tls.key     a mounted Secret: one link is swapped
//!  folder / tls.crt, tls.key                            plain files
//! ```
//!
//! The content is polled. A watch on the files would see only the first swap, because it stays on
//! the file that the link pointed to. Whatever is wrong, the last usable certificate stays in service.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use certs::{ProvidedCertificate, ProvidedCertificateError, ServerCertResolver};
use runtime::checks::Check;
use time::OffsetDateTime;
use tokio::time::sleep;

use super::environment::WatchedObjects;
use super::status::{FailureLog, Readiness};
use crate::metrics::{self, CertificateFault};

/// The keys of a Secret of type kubernetes.io/tls.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Size limit of a file, in bytes. A certificate chain is far smaller.
const FILE_MAX: u64 = 1 << 20;

/// Presents the certificate of a folder.
#[derive(Debug)]
pub(super) struct CertificateFiles {
    pub(super) folder: PathBuf,
    /// Time between two reads of the files.
    pub(super) poll: Duration,
    /// The names that API servers call this server by.
    pub(super) names: Vec<String>,
    /// The webhook configurations, whose bundles have to trust the certificate.
    pub(super) objects: WatchedObjects,
    /// Presents the certificate.
    pub(super) resolver: ServerCertResolver,
    pub(super) readiness: Readiness,
}

/// What is wrong with the files.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has more than {FILE_MAX} bytes", .0.display())]
    Large(PathBuf),
    #[error("{CERTIFICATE} and {KEY} in {} cannot be served", folder.display())]
    Unusable {
        folder: PathBuf,
        source: ProvidedCertificateError,
    },
}

/// The last usable content of the files.
#[derive(Debug, Default)]
struct LastRead {
    /// Certificate file and key file.
    contents: Option<(Vec<u8>, Vec<u8>)>,
    certificate: Option<ProvidedCertificate>,
}

impl CertificateFiles {
    /// Reads the files after every change of a configuration, and at least once per `poll`.
    pub(super) async fn run(mut self) -> Result<(), Infallible> {
        let (mut last, mut log) = (LastRead::default(), FailureLog::default());
        loop {
            match last.update(&self.folder) {
                Ok(true) => {
                    if let Some(certificate) = &last.certificate {
                        self.resolver.set_provided(certificate);
                        let end = certificate.validity().not_after;
                        tracing::info!(not_after = %end, "serving the certificate of the files");
                    }
                    log.succeeded();
                }
                Ok(false) => log.succeeded(),
                Err(error) => log.failed(CertificateFault::Files, &error),
            }
            self.report(last.certificate.as_ref());
            tokio::select! {
                () = sleep(self.poll) => {}
                () = self.objects.changed() => {}
            }
        }
    }

    fn report(&mut self, certificate: Option<&ProvidedCertificate>) {
        let now = OffsetDateTime::now_utc();
        let Some(certificate) = certificate else {
            let folder = self.folder.display();
            let missing = format!("there is no usable {CERTIFICATE} and {KEY} in {folder}");
            return self.readiness.leaf.missing(missing);
        };
        let validity = certificate.validity();
        metrics::certificate("leaf", validity);
        set(
            &self.readiness.leaf,
            validity.contains(now),
            "the certificate of the files is not valid now",
        );
        let Some(bundles) = self.objects.bundle_pems() else {
            return;
        };
        let accepts = |bundle: &Vec<u8>| certificate.accepted_by(bundle, &self.names, now);
        set(
            &self.readiness.bundle,
            !bundles.is_empty() && bundles.iter().all(accepts),
            "a caBundle does not trust the certificate of the files; write it with the files, or let \
             cert-manager's cainjector write it",
        );
    }
}

fn set(check: &Check, is_met: bool, otherwise: &str) {
    if is_met {
        check.met();
    } else {
        check.missing(otherwise);
    }
}

impl LastRead {
    /// Reads the files. Returns whether there is another certificate to present.
    fn update(&mut self, folder: &Path) -> Result<bool, FileError> {
        // Resolve the link once, so that certificate and key are of the same version.
        let version = fs::canonicalize(folder.join("..data")).unwrap_or_else(|_| folder.to_owned());
        let contents = (read(&version.join(CERTIFICATE))?, read(&version.join(KEY))?);
        if self.contents.as_ref() == Some(&contents) {
            return Ok(false);
        }
        let certificate =
            ProvidedCertificate::parse(&contents.0, &contents.1).map_err(|source| {
                FileError::Unusable {
                    folder: folder.to_owned(),
                    source,
                }
            })?;
        self.certificate = Some(certificate);
        self.contents = Some(contents);
        Ok(true)
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read {
        path: path.to_owned(),
        source,
    };
    if fs::metadata(path).map_err(failed)?.len() > FILE_MAX {
        return Err(FileError::Large(path.to_owned()));
    }
    fs::read(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use certs::{CA_LIFETIME, Ca, LEAF_LIFETIME, ServerNames};
    use std::os::unix::fs::symlink;

    /// A folder as kubelet mounts a Secret.
    struct Mount {
        folder: PathBuf,
        swaps: u32,
    }

    impl Mount {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).unwrap();
            for file in [CERTIFICATE, KEY] {
                symlink(format!("..data/{file}"), folder.join(file)).unwrap();
            }
            Self { folder, swaps: 0 }
        }

        /// Writes a new version, swaps the link, removes the former version.
        fn swap(&mut self, certificate: &str, key: &str) {
            let former = format!("..{}", self.swaps);
            self.swaps += 1;
            let new = format!("..{}", self.swaps);
            let version = self.folder.join(&new);
            fs::create_dir(&version).unwrap();
            fs::write(version.join(CERTIFICATE), certificate).unwrap();
            fs::write(version.join(KEY), key).unwrap();
            symlink(&new, self.folder.join("..data_tmp")).unwrap();
            fs::rename(self.folder.join("..data_tmp"), self.folder.join("..data")).unwrap();
            let _ = fs::remove_dir_all(self.folder.join(former));
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    fn pair() -> (String, String) {
        let now = OffsetDateTime::now_utc();
        let ca = Ca::generate("CA", now, CA_LIFETIME).unwrap();
        let names = ServerNames::new(["localhost".to_owned()]).unwrap();
        let leaf = ca.sign(&names, now, LEAF_LIFETIME).unwrap();
        (leaf.certificate_pem(), leaf.key_pem().to_owned())
    }

    #[test]
    fn every_swap_of_a_mounted_secret_is_detected() {
        let mut mount = Mount::new("swaps");
        let mut last = LastRead::default();
        let error = last.update(&mount.folder).unwrap_err();
        assert!(error.to_string().starts_with("cannot read "), "{error}");
        for _ in 0..3 {
            let (certificate, key) = pair();
            mount.swap(&certificate, &key);
            assert!(last.update(&mount.folder).unwrap());
            assert!(!last.update(&mount.folder).unwrap());
            assert_eq!(last.contents, Some((certificate.into(), key.into())));
        }
    }

    #[test]
    fn unusable_files_leave_the_last_usable_certificate_in_service() {
        let mut mount = Mount::new("mismatch");
        let mut last = LastRead::default();
        let (certificate, key) = pair();
        mount.swap(&certificate, &key);
        assert!(last.update(&mount.folder).unwrap());
        let served = last.certificate.as_ref().unwrap().certified();
        let (other, _) = pair();
        let (ca, text) = (certificate.replace('\n', ""), "no key");
        for (certificate, key, wrong) in [
            (other.as_str(), key.as_str(), "does not match"),
            ("", &key, "there is none"),
            (&ca, &key, "cannot be read"),
            (&certificate, text, "the key cannot be read"),
        ] {
            mount.swap(certificate, key);
            let FileError::Unusable { source, .. } = last.update(&mount.folder).unwrap_err() else {
                panic!("the files can be read");
            };
            assert!(source.to_string().contains(wrong), "{source}");
            let still = last.certificate.as_ref().unwrap().certified();
            assert!(std::sync::Arc::ptr_eq(&served, &still));
        }
        fs::remove_file(mount.folder.join("..data")).unwrap();
        assert!(last.update(&mount.folder).is_err());
        // The files are there again.
        let (certificate, key) = pair();
        mount.swap(&certificate, &key);
        assert!(last.update(&mount.folder).unwrap());
    }
}
