//! Which host, and with which credentials.
//!
//! libvirt takes credentials as files only. They are on the disk while a connection is opened, in a folder
//! that nobody else can enter.

use std::fmt;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use tempfile::TempDir;

use super::{AccessError, Result};

/// Where a connection goes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub uri: String,
    pub credentials: Option<Credentials>,
}

/// What a host wants to see, as PEM or in the forms of OpenSSH.
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
    /// Does `open` with the whole URI, while the credentials are where it says.
    pub(super) fn reachable<T>(&self, open: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        let Some(credentials) = &self.credentials else {
            return open(&self.uri);
        };
        let written = credentials.write().map_err(|error| {
            AccessError::Disconnected(format!(
                "the credentials cannot be handed to libvirt: {error}"
            ))
        })?;
        let folder = written.path().to_string_lossy();
        let parameters = match credentials {
            Credentials::Tls { .. } => format!("pkipath={folder}"),
            Credentials::Ssh { .. } => format!("command={folder}/{SSH}"),
        };
        let joint = if self.uri.contains('?') { '&' } else { '?' };
        open(&format!("{}{joint}{parameters}", self.uri))
    }
}

/// What libvirt runs as ssh: it can be told of a key, but not of a file of known hosts.
const SSH: &str = "ssh";

impl Credentials {
    fn write(&self) -> io::Result<TempDir> {
        let folder = tempfile::Builder::new()
            .prefix("libvirt-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir()?;
        let put =
            |name: &str, mode: u32, content: &str| put(&folder.path().join(name), mode, content);
        match self {
            Self::Tls {
                ca,
                certificate,
                key,
            } => {
                put("cacert.pem", 0o600, ca)?;
                put("clientcert.pem", 0o600, certificate)?;
                put("clientkey.pem", 0o600, key)?;
            }
            Self::Ssh {
                private_key,
                known_hosts,
            } => {
                put("key", 0o600, private_key)?;
                put("known_hosts", 0o600, known_hosts)?;
                put(SSH, 0o700, SSH_SCRIPT)?;
            }
        }
        Ok(folder)
    }
}

/// Nothing of the user's configuration counts: this key, these hosts, and no questions, which nobody would
/// answer.
const SSH_SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$0")
exec ssh -F none -i "$here/key" -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=yes \
    -o UserKnownHostsFile="$here/known_hosts" -o GlobalKnownHostsFile=none \
    -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 "$@"
"#;

fn put(path: &Path, mode: u32, content: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(content.as_bytes())?;
    // OpenSSH reads no key without an end of its last line.
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
    use std::process::Command;

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
            .reachable(|uri| {
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
        let failed = ssh().reachable(|uri| {
            let command = uri
                .strip_prefix("qemu+ssh://root@host.example/system?command=")
                .unwrap();
            kept = Some(Path::new(command).parent().unwrap().to_owned());
            Err::<(), _>(AccessError::Disconnected("no".into()))
        });
        assert_eq!(failed.unwrap_err().kind(), "Disconnected");
        assert!(!kept.unwrap().exists());
    }

    #[test]
    fn ssh_is_run_with_this_key_and_these_hosts_and_asks_nobody() {
        let bin = tempfile::tempdir().unwrap();
        put(
            &bin.path().join("ssh"),
            0o700,
            "#!/bin/sh\nprintf '%s\\n' \"$@\"",
        )
        .unwrap();
        let path = format!(
            "{}:{}",
            bin.path().display(),
            std::env::var("PATH").unwrap()
        );
        let said = ssh().reachable(|uri| {
            let command = uri.split_once("command=").unwrap().1;
            let output = Command::new(command)
                .args(["-l", "root", "--", "host.example", "true"])
                .env("PATH", &path)
                .output()
                .unwrap();
            let folder = command.strip_suffix("/ssh").unwrap();
            assert_eq!(
                fs::read_to_string(format!("{folder}/key")).unwrap(),
                "a secret\n"
            );
            Ok(String::from_utf8(output.stdout)
                .unwrap()
                .replace(folder, "HERE"))
        });
        let expected = "-F none -i HERE/key -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=yes \
            -o UserKnownHostsFile=HERE/known_hosts -o GlobalKnownHostsFile=none -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 \
            -l root -- host.example true";
        let said = said.unwrap();
        let said: Vec<&str> = said.lines().flat_map(str::split_whitespace).collect();
        assert_eq!(said, expected.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn secrets_are_never_printed() {
        for target in [tls(), ssh()] {
            let text = format!("{target:?}");
            assert!(
                text.contains("host.example") && !text.contains("secret"),
                "{text}"
            );
            let opened = target.reachable(|uri| Ok(uri.to_owned())).unwrap();
            assert!(!opened.contains("secret"), "{opened}");
        }
    }
}
