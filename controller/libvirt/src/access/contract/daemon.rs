//! A libvirtd of the test's own, with the test driver alone: over its socket, and over TLS on loopback.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::access::{Credentials, Target, connector};

/// Limit for its start, which takes 0.1 s on an idle machine.
const START: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(10);

/// The process ends when this is dropped.
pub(super) struct Daemon {
    child: Child,
    folder: TempDir,
    port: u16,
    pub(super) credentials: Credentials,
}

impl Daemon {
    /// A new one, or why there can be none.
    pub(super) fn start() -> Result<Self, String> {
        let version = Command::new("libvirtd").arg("--version").output();
        version.map_err(|error| format!("libvirtd cannot be run: {error}"))?;
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let (certificate, key) = authority.issue(ExtendedKeyUsagePurpose::ServerAuth);
        for (name, content) in [
            ("ca.pem", &authority.certificate),
            ("cert.pem", &certificate),
            ("key.pem", &key),
        ] {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let (certificate, key) = authority.issue(ExtendedKeyUsagePurpose::ClientAuth);
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut daemon = Self {
            child: spawn(folder.path(), port),
            folder,
            port,
            credentials: Credentials::Tls {
                ca: authority.certificate,
                certificate,
                key,
            },
        };
        daemon.serves();
        Ok(daemon)
    }

    /// Over its socket.
    pub(super) fn local(&self) -> Target {
        let socket = self.folder.path().join("libvirt-sock");
        Target {
            uri: format!("test+unix:///default?socket={}", socket.display()),
            credentials: None,
        }
    }

    /// Over TLS.
    pub(super) fn remote(&self, credentials: Option<Credentials>) -> Target {
        Target {
            uri: format!("test+tls://127.0.0.1:{}/default", self.port),
            credentials,
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn start_again(&mut self) {
        self.child = spawn(self.folder.path(), self.port);
        self.serves();
    }

    fn serves(&mut self) {
        let began = Instant::now();
        while let Err(error) = connector().open(&self.local()) {
            let ended = self.child.try_wait().unwrap();
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(
                ended.is_none() && began.elapsed() < START,
                "{error}, {ended:?}: {log}"
            );
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(folder: &Path, port: u16) -> Child {
    let at = folder.display();
    let settings = format!(
        "unix_sock_dir = '{at}'\nauth_unix_rw = 'none'\nauth_unix_ro = 'none'\n\
         listen_tls = 1\nlisten_tcp = 0\nlisten_addr = '127.0.0.1'\ntls_port = '{port}'\nauth_tls = 'none'\n\
         ca_file = '{at}/ca.pem'\ncert_file = '{at}/cert.pem'\nkey_file = '{at}/key.pem'\n"
    );
    let conf = folder.join("libvirtd.conf");
    fs::write(&conf, settings.replace('\'', "\"")).unwrap();
    let log = fs::File::create(folder.join("log")).unwrap();
    // The daemon ends with the test, however that ends.
    Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "--",
            "libvirtd",
            "--listen",
            "--config",
        ])
        .arg(&conf)
        .arg("--pid-file")
        .arg(folder.join("pid"))
        // Without its other drivers it manages no guests of this machine.
        .env("LIBVIRT_DRIVER_DIR", folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// A CA.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    pub(super) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(vec![]).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = parameters.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(parameters, key),
            certificate,
        }
    }

    /// A certificate with its key, for 127.0.0.1.
    fn issue(&self, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        parameters.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        parameters.extended_key_usages = vec![purpose];
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Credentials of a client that trusts this CA only.
    pub(super) fn client(self) -> Credentials {
        let (certificate, key) = self.issue(ExtendedKeyUsagePurpose::ClientAuth);
        Credentials::Tls {
            ca: self.certificate,
            certificate,
            key,
        }
    }
}
