//! An SSH server of the test's own, on loopback, in front of the system's libvirtd.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::access::Credentials;

/// Limit for its start, which takes some milliseconds.
const START: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(10);

/// The process ends when this is dropped.
pub(super) struct Server {
    child: Child,
    folder: TempDir,
    pub(super) port: u16,
}

impl Server {
    /// A new one, or why there can be none.
    pub(super) fn start() -> Result<Self, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        let program = folders.map(|it| it.join("sshd")).find(|it| it.exists());
        // sshd refuses to start unless it is run by its absolute path.
        let program = program.ok_or("there is no sshd")?;
        let folder = tempfile::tempdir().unwrap();
        for key in ["host", "user", "other"] {
            let mut command = Command::new("ssh-keygen");
            command
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(folder.path().join(key));
            let made = command
                .status()
                .map_err(|error| format!("ssh-keygen: {error}"))?;
            assert!(made.success());
        }
        // The folder that the package's service creates.
        fs::create_dir_all("/run/sshd").map_err(|error| format!("/run/sshd: {error}"))?;
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let at = folder.path().display();
        let settings = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host\nAuthorizedKeysFile {at}/user.pub\n\
             StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nPidFile none\n"
        );
        let conf = folder.path().join("conf");
        fs::write(&conf, settings).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(["-D", "-e", "-f"])
            .arg(&conf)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Self {
            child,
            folder,
            port,
        };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = server.read("log");
            let ended = server.child.try_wait().unwrap();
            assert!(
                ended.is_none() && began.elapsed() < START,
                "{ended:?}: {log}"
            );
            thread::sleep(LOOK);
        }
        Ok(server)
    }

    /// Credentials of the user whose key is `user`, who trusts the host by the key `host`.
    pub(super) fn credentials(&self, user: &str, host: &str) -> Credentials {
        Credentials::Ssh {
            private_key: self.read(user),
            known_hosts: format!(
                "[127.0.0.1]:{} {}",
                self.port,
                self.read(&format!("{host}.pub"))
            ),
        }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
