//! Certificate and key that somebody else renews: cert-manager, or an operator.
//!
//! ```text
//!  folder/..data ─▶ ..2026_11_22 / tls.crt, tls.key     a mounted Secret: one link is swapped
//!  folder / tls.crt, tls.key                            plain files
//! ```
//!
//! Polled by content: a watch on the files sees only the first swap, because it stays at the file
//! that the link led to. Whatever is wrong, the last good pair is served on.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use certs::{Pair, PairError, ServedLeaf};
use runtime::checks::Check;
use time::OffsetDateTime;
use tokio::time::sleep;

use super::world::Sources;
use super::{FailureLog, Ready, remaining};
use crate::metrics::{self, CertificateFault};

/// The names that Secrets of type kubernetes.io/tls have.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// More is no certificate with its chain.
const FILE_MAX: u64 = 1 << 20;

/// Serves what a folder has, for ever.
#[derive(Debug)]
pub struct Files {
    /// The folder.
    pub folder: PathBuf,
    /// Between two looks.
    pub poll: Duration,
    /// The names that API servers call this server by.
    pub names: Vec<String>,
    /// The webhook configurations, whose bundles must vouch for the pair.
    pub sources: Sources,
    /// Where the pair is served.
    pub served: ServedLeaf,
    /// Whom to tell.
    pub ready: Ready,
}

/// What is wrong with the files.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has more than {FILE_MAX} bytes", .0.display())]
    Large(PathBuf),
    #[error("{CERTIFICATE} and {KEY} in {} cannot be served", folder.display())]
    Pair { folder: PathBuf, source: PairError },
}

/// What was read, and what it is.
#[derive(Debug, Default)]
pub(super) struct Last {
    contents: Option<(Vec<u8>, Vec<u8>)>,
    pair: Option<Pair>,
}

impl Files {
    /// Looks for ever.
    pub async fn run(mut self) -> Result<(), Infallible> {
        let (mut last, mut log) = (Last::default(), FailureLog::default());
        loop {
            match last.look(&self.folder) {
                Ok(true) => {
                    if let Some(pair) = &last.pair {
                        self.served.replace_pair(pair);
                        let until = pair.validity().not_after;
                        tracing::info!(not_after = %until, "serving the certificate of the files");
                    }
                    log.is_over();
                }
                Ok(false) => log.is_over(),
                Err(error) => log.tell(CertificateFault::Files, &error),
            }
            self.report(last.pair.as_ref());
            tokio::select! {
                () = sleep(self.poll) => {}
                () = self.sources.changed() => {}
            }
        }
    }

    fn report(&mut self, pair: Option<&Pair>) {
        let now = OffsetDateTime::now_utc();
        let Some(pair) = pair else {
            let place = self.folder.display();
            let missing = format!("there is no usable {CERTIFICATE} and {KEY} in {place}");
            return self.ready.leaf.missing(missing);
        };
        metrics::expiry("leaf", remaining(pair.validity().not_after));
        says(
            &self.ready.leaf,
            pair.validity().contains(now),
            "the certificate of the files is not valid now",
        );
        let Some(bundles) = self.sources.pems() else {
            return;
        };
        let accepts = |bundle: &Vec<u8>| pair.accepted_by(bundle, &self.names, now);
        says(
            &self.ready.bundle,
            !bundles.is_empty() && bundles.iter().all(accepts),
            "a caBundle does not vouch for the certificate of the files; whoever writes the files \
             has to write it, such as cert-manager's cainjector",
        );
    }
}

fn says(check: &Check, holds: bool, otherwise: &str) {
    if holds {
        check.met();
    } else {
        check.missing(otherwise);
    }
}

impl Last {
    /// Reads the files; whether there is another pair to serve.
    fn look(&mut self, folder: &Path) -> Result<bool, FileError> {
        // Both of the same moment, however often the link is swapped meanwhile.
        let place = fs::canonicalize(folder.join("..data")).unwrap_or_else(|_| folder.to_owned());
        let contents = (read(&place.join(CERTIFICATE))?, read(&place.join(KEY))?);
        if self.contents.as_ref() == Some(&contents) {
            return Ok(false);
        }
        let pair = Pair::parse(&contents.0, &contents.1).map_err(|source| FileError::Pair {
            folder: folder.to_owned(),
            source,
        })?;
        self.pair = Some(pair);
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
    use certs::{AUTHORITY_LIFE, Authority, LEAF_LIFE, Names};
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

        /// Writes a new folder, swaps the link, removes the former folder.
        fn swap(&mut self, certificate: &str, key: &str) {
            let was = format!("..{}", self.swaps);
            self.swaps += 1;
            let now = format!("..{}", self.swaps);
            let place = self.folder.join(&now);
            fs::create_dir(&place).unwrap();
            fs::write(place.join(CERTIFICATE), certificate).unwrap();
            fs::write(place.join(KEY), key).unwrap();
            symlink(&now, self.folder.join("..data_tmp")).unwrap();
            fs::rename(self.folder.join("..data_tmp"), self.folder.join("..data")).unwrap();
            let _ = fs::remove_dir_all(self.folder.join(was));
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    fn pair() -> (String, String) {
        let now = OffsetDateTime::now_utc();
        let ca = Authority::generate("CA", now, AUTHORITY_LIFE).unwrap();
        let names = Names::new(["localhost".to_owned()]).unwrap();
        let leaf = ca.sign(&names, now, LEAF_LIFE).unwrap();
        (leaf.certificate_pem(), leaf.key_pem().to_owned())
    }

    #[test]
    fn each_swap_of_a_mounted_secret_is_seen() {
        let mut mount = Mount::new("swaps");
        let mut last = Last::default();
        let error = last.look(&mount.folder).unwrap_err();
        assert!(error.to_string().starts_with("cannot read "), "{error}");
        for _ in 0..3 {
            let (certificate, key) = pair();
            mount.swap(&certificate, &key);
            assert!(last.look(&mount.folder).unwrap());
            assert!(!last.look(&mount.folder).unwrap());
            assert_eq!(last.contents, Some((certificate.into(), key.into())));
        }
    }

    #[test]
    fn whatever_is_wrong_the_last_good_pair_stays() {
        let mut mount = Mount::new("mismatch");
        let mut last = Last::default();
        let (certificate, key) = pair();
        mount.swap(&certificate, &key);
        assert!(last.look(&mount.folder).unwrap());
        let served = last.pair.as_ref().unwrap().certified();
        let (other, _) = pair();
        let (ca, text) = (certificate.replace('\n', ""), "no key");
        for (certificate, key, wrong) in [
            (other.as_str(), key.as_str(), "does not belong to"),
            ("", &key, "there is none"),
            (&ca, &key, "cannot be read"),
            (&certificate, text, "the key cannot be read"),
        ] {
            mount.swap(certificate, key);
            let FileError::Pair { source, .. } = last.look(&mount.folder).unwrap_err() else {
                panic!("the files can be read");
            };
            assert!(source.to_string().contains(wrong), "{source}");
            let still = last.pair.as_ref().unwrap().certified();
            assert!(std::sync::Arc::ptr_eq(&served, &still));
        }
        fs::remove_file(mount.folder.join("..data")).unwrap();
        assert!(last.look(&mount.folder).is_err());
        // Back again: nothing new.
        let (certificate, key) = pair();
        mount.swap(&certificate, &key);
        assert!(last.look(&mount.folder).unwrap());
    }
}
