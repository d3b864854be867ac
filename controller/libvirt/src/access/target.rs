//! Which host, and with which credentials.
//!
//! libvirt takes credentials as files only. They are there while a connection is opened, in memory, in a folder
//! that only this user can enter.

use std::fmt;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use tempfile::TempDir;

use super::{AccessError, Result};

/// Destination of a connection.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub uri: String,
    pub credentials: Option<Credentials>,
}

/// Credentials for a host, as PEM or in the formats of OpenSSH.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credentials {
    Tls {
        ca: String,
        certificate: String,
        key: String,
    },
    Ssh {
        private_key: String,
        known_hosts: String,
    },
}

impl Target {
    /// Calls `open` with the whole URI, while the files that it names exist.
    pub(super) fn open_with_credentials<T>(
        &self,
        open: impl FnOnce(&str) -> Result<T>,
    ) -> Result<T> {
        let Some(credentials) = &self.credentials else {
            return open(&self.uri);
        };
        let written = credentials.write().map_err(|error| {
            AccessError::Disconnected(format!(
                "the credentials cannot be handed to libvirt: {error}"
            ))
        })?;
        let folder = written.path().to_string_lossy();
        let (uri, parameters) = match credentials {
            Credentials::Tls { .. } => (self.uri.clone(), format!("pkipath={folder}")),
            // libvirt cannot pass a file of known hosts to the program ssh, and libssh shows no prompt for an unknown
            // host: it refuses it.
            Credentials::Ssh { .. } => (
                self.uri.replacen("+ssh://", "+libssh://", 1),
                format!(
                    "keyfile={folder}/key&known_hosts={folder}/known_hosts&known_hosts_verify=normal&sshauth=privkey"
                ),
            ),
        };
        let joint = if uri.contains('?') { '&' } else { '?' };
        open(&format!("{uri}{joint}{parameters}"))
    }
}

/// A folder in memory. In a container it is writable even if the root file system is not.
const MEMORY: &str = "/dev/shm";

impl Credentials {
    fn write(&self) -> io::Result<TempDir> {
        let permissions = Permissions::from_mode(0o700);
        let mut folder = tempfile::Builder::new();
        folder.prefix("libvirt-").permissions(permissions);
        let folder = folder.tempdir_in(MEMORY).or_else(|_| folder.tempdir())?;
        let put = |name: &str, content: &str| put(&folder.path().join(name), content);
        match self {
            Self::Tls {
                ca,
                certificate,
                key,
            } => {
                put("cacert.pem", ca)?;
                put("clientcert.pem", certificate)?;
                put("clientkey.pem", key)?;
            }
            Self::Ssh {
                private_key,
                known_hosts,
            } => {
                put("key", private_key)?;
                put("known_hosts", known_hosts)?;
            }
        }
        Ok(folder)
    }
}

fn put(path: &Path, content: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content.as_bytes())?;
    // OpenSSH reads no key whose last line has no newline.
    if content.ends_with('\n') {
        Ok(())
    } else {
        file.write_all(b"\n")
    }
}

/// Without the credentials.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("uri", &self.uri)
            .field("credentials", &self.credentials)
            .finish()
    }
}

/// Without the content.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls { .. } => "Tls",
            Self::Ssh { .. } => "Ssh",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tls() -> Target {
        Target {
            uri: "qemu+tls://host.example/system".into(),
            credentials: Some(Credentials::Tls {
                ca: "the CA\n".into(),
                certificate: "the certificate\n".into(),
                key: "a secret\n".into(),
            }),
        }
    }

    fn ssh() -> Target {
        Target {
            uri: "qemu+ssh://root@host.example/system".into(),
            credentials: Some(Credentials::Ssh {
                private_key: "a secret".into(),
                known_hosts: "host.example ssh-ed25519 AAAA\n".into(),
            }),
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn credentials_are_in_a_folder_of_their_own_while_a_connection_is_opened() {
        let folder = tls()
            .open_with_credentials(|uri| {
                let folder = uri
                    .strip_prefix("qemu+tls://host.example/system?pkipath=")
                    .unwrap();
                let folder = Path::new(folder).to_owned();
                assert_eq!(mode(&folder), 0o700);
                for (name, content) in [
                    ("cacert.pem", "the CA\n"),
                    ("clientcert.pem", "the certificate\n"),
                    ("clientkey.pem", "a secret\n"),
                ] {
                    assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), content);
                    assert_eq!(mode(&folder.join(name)), 0o600);
                }
                Ok(folder)
            })
            .unwrap();
        assert!(!folder.exists());

        let mut kept = None;
        let failed = ssh().open_with_credentials(|uri| {
            let parameters = uri
                .strip_prefix("qemu+libssh://root@host.example/system?keyfile=")
                .unwrap();
            let (key, others) = parameters.split_once('&').unwrap();
            let folder = Path::new(key).parent().unwrap().to_owned();
            let hosts = folder.join("known_hosts");
            assert_eq!(fs::read_to_string(key).unwrap(), "a secret\n");
            assert_eq!(
                fs::read_to_string(&hosts).unwrap(),
                "host.example ssh-ed25519 AAAA\n"
            );
            assert_eq!((mode(&folder), mode(Path::new(key))), (0o700, 0o600));
            let hosts = hosts.display();
            let expected = format!("known_hosts={hosts}&known_hosts_verify=normal&sshauth=privkey");
            assert_eq!(others, expected);
            kept = Some(folder);
            Err::<(), _>(AccessError::Disconnected("no".into()))
        });
        assert_eq!(failed.unwrap_err().kind(), "Disconnected");
        assert!(!kept.unwrap().exists());
    }

    #[test]
    fn secrets_are_never_printed() {
        for target in [tls(), ssh()] {
            let text = format!("{target:?}");
            assert!(
                text.contains("host.example") && !text.contains("secret"),
                "{text}"
            );
            let opened = target
                .open_with_credentials(|uri| Ok(uri.to_owned()))
                .unwrap();
            assert!(!opened.contains("secret"), "{opened}");
        }
    }
}
