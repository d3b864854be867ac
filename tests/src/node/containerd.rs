//! A containerd of the lab's own: its files are in the lab's folder, its sockets in the lab's `/run`.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{process::Command, time::sleep};

use super::{ends::Ends, images, network};
use crate::{
    command,
    process::{Process, Program},
    wait,
};

/// Where Debian installs the CNI plugins.
pub(super) const CNI_PLUGINS: &str = "/usr/lib/cni";

/// A running containerd.
#[derive(Debug)]
pub(super) struct Containerd {
    pub(super) socket: String,
    process: Process,
    program: Program,
    ends: Ends,
}

impl Containerd {
    /// Starts the one of this node, with its files in the folder.
    pub(super) async fn start(node: &str, folder: &Path, ends: &Ends) -> Result<Self> {
        let cni = folder.join("cni");
        std::fs::create_dir_all(&cni)?;
        std::fs::write(cni.join("lab.conflist"), network::cni().to_string())?;
        let path = folder.join("containerd.toml");
        std::fs::write(&path, configuration(node, folder, &cni))?;
        let program = Program::new(Path::new("containerd"), &folder.join("containerd.log"))
            .args(["--config".to_owned(), path.display().to_string()]);
        let mut containerd = Self {
            socket: socket(node),
            process: program.start()?,
            program,
            ends: ends.clone(),
        };
        containerd.ends.watch(&containerd.process);
        containerd.wait_until_served().await?;
        Ok(containerd)
    }

    async fn wait_until_served(&mut self) -> Result<()> {
        wait::until("containerd to answer", async || {
            self.process.check_alive()?;
            Ok(ctr(&self.socket, &["version"])
                .await
                .map_err(|error| error.to_string()))
        })
        .await?;
        Ok(())
    }

    /// Kills it, and starts it again after this time. Containers continue.
    pub(super) async fn restart(&mut self, down: Duration) -> Result<()> {
        self.ends.forget(&self.process);
        self.process.kill();
        sleep(down).await;
        self.process = self.program.start()?;
        self.ends.watch(&self.process);
        self.wait_until_served().await
    }

    /// Kills it as if it had crashed.
    pub(super) fn kill(&mut self) {
        self.process.kill();
    }

    pub(super) fn check_alive(&mut self) -> Result<()> {
        self.process.check_alive()
    }

    /// Whether an image has been imported.
    pub(super) async fn has_image(&self, name: &str) -> Result<bool> {
        let images = ctr(&self.socket, &["images", "list", "--quiet"]).await?;
        Ok(images.lines().any(|image| image == name))
    }

    /// Imports the images of an archive.
    pub(super) async fn import(&self, archive: &Path) -> Result<()> {
        let path = archive.display().to_string();
        let arguments = ["images", "import", "--snapshotter=native", &path];
        let imported = ctr(&self.socket, &arguments).await;
        imported.map(drop).with_context(|| {
            format!("importing the image {path}: if it is incomplete, make it again with tests/lab image")
        })
    }
}

/// Runs containerd's own client. Returns its output.
async fn ctr(socket: &str, arguments: &[&str]) -> Result<String> {
    let mut ctr = Command::new("ctr");
    ctr.args(["--address", socket, "--namespace", "k8s.io"]);
    let output = command::stdout(ctr.args(arguments)).await?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

fn socket(node: &str) -> String {
    format!("/run/containerd-{node}/containerd.sock")
}

fn configuration(node: &str, folder: &Path, cni: &Path) -> String {
    format!(
        r#"version = 2
root = "{root}"
state = "/run/containerd-{node}/state"
[grpc]
address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{opt}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{sandbox}"
# Where a process may not have less than its own score, runc fails.
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd]
# On any file system.
snapshotter = "native"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PLUGINS}"
conf_dir = "{cni}"
"#,
        root = folder.join("containerd").display(),
        socket = socket(node),
        opt = folder.join("opt").display(),
        sandbox = images::SANDBOX,
        cni = cni.display(),
    )
}
