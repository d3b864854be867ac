//! [`Libvirt`]: one libvirtd, its networks and pools.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{process::Command, time::timeout};

use super::packages;
use crate::{
    Missing, Output,
    folder::Folder,
    process::{Process, Program},
    tools, wait,
};

/// Limit of a start. The first one on a machine queries the capabilities of QEMU, which takes 8 s on idle cores; later
/// ones read them from a cache.
const START: Duration = Duration::from_mins(5);

/// Limit of a virsh command: ending a frozen QEMU takes 12 s, and longer on two busy cores.
const COMMAND: Duration = Duration::from_mins(5);

/// The defined networks, each with DHCP and a bridge of its own.
pub const NETWORKS: [&str; 2] = ["default", "second"];

/// Sets up the namespaces for libvirtd and keeps them open. QEMUs whose libvirtd ended become its children; SIGCHLD
/// is ignored, so that they leave no zombies.
const HOLDER: &str = r#"
set -e
for place in etc lib log run; do
    case $place in
    etc) there=/etc/libvirt ;;
    run) there=/run/libvirt ;;
    *) there=/var/$place/libvirt ;;
    esac
    mkdir -p "$there"
    mount --bind "$1/$place" "$there"
done
mkdir -p /var/cache/libvirt
mount --bind "$2" /var/cache/libvirt
mount -t sysfs none /sys
ip link set lo up
ip link add plain type bridge
ip link set plain up
touch "$1/held"
exec env --ignore-signal=CHLD sleep infinity
"#;

/// QEMU runs as root, so that it can read the lab's folder and open `/dev/kvm`.
const QEMU: &str = r#"user = "root"
group = "root"
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
"#;

/// No authentication: only the lab is in the namespace.
const LIBVIRTD: &str = r#"auth_unix_ro = "none"
auth_unix_rw = "none"
"#;

/// The network filters that libvirt ships; each installation copies them to `/etc/libvirt/nwfilter`.
const FILTERS: &str = "/usr/share/libvirt/nwfilter";

/// A running libvirtd. Dropping it ends it and every guest.
#[derive(Debug)]
pub struct Libvirt {
    // Dropped in this order.
    daemon: Process,
    holder: Process,
    program: Program,
    folder: Folder,
}

impl Libvirt {
    /// Its URI for clients in its mount namespace.
    pub const URI: &str = "qemu:///system";

    /// Starts one, or returns the reason why none can run on this machine.
    pub async fn start() -> Result<Result<Self, Missing>> {
        if let Err(missing) = packages::host().await? {
            return Ok(Err(missing));
        }
        let folder = Folder::new()?;
        lay_out(&folder)?;
        let answers = tools::cache_home()?.join("kubevirt-operator-lab/libvirt");
        fs::create_dir_all(&answers)?;
        let unshare = Path::new("unshare");
        let mut holder = Program::new(unshare, &folder.join("holder.log"))
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
            .args(["sh", "-c", HOLDER, "holder"])
            .args([folder.path(), &answers].map(|path| path.display().to_string()))
            .start()?;
        let held = folder.join("held");
        wait::until("namespaces for libvirtd", async || {
            holder.check_alive()?;
            Ok(held.exists().then_some(()).ok_or("not yet"))
        })
        .await?;
        let program = Program::new(Path::new("nsenter"), &folder.join("libvirtd.log"))
            .args(entered(holder.id()))
            // With a /proc of its own PID namespace.
            .args(["unshare", "--mount-proc"])
            .args(["setpriv", "--pdeathsig", "KILL", "--"])
            // The default path is not in a mounted folder.
            .args(["libvirtd", "--pid-file", "/run/libvirt/libvirtd.pid"]);
        let mut libvirt = Self {
            daemon: program.start()?,
            holder,
            program,
            folder,
        };
        libvirt.wait_until_served().await?;
        for network in NETWORKS {
            libvirt.virsh(&["net-start", network]).await?.ok()?;
        }
        Ok(Ok(libvirt))
    }

    /// Waits until it answers virsh.
    pub async fn wait_until_served(&mut self) -> Result<()> {
        let mounts = self.mount_namespace_command();
        let mut alive = async || -> Result<Result<(), String>> {
            self.daemon.check_alive()?;
            let answer = run(virsh(mounts.clone(), &["version"])).await?;
            Ok((answer.code == 0).then_some(()).ok_or(answer.stderr))
        };
        wait::until_within(START, "libvirtd to answer", &mut alive).await
    }

    /// Runs virsh.
    pub async fn virsh(&self, arguments: &[&str]) -> Result<Output> {
        run(virsh(self.mount_namespace_command(), arguments)).await
    }

    /// The rules of its bridges that are in force, with the number of frames that each was applied to.
    pub async fn bridge_rules(&self) -> Result<String> {
        let mut command = Command::new("nsenter");
        command
            .args(entered(self.holder.id()))
            .args(["ebtables", "-t", "nat", "-L", "--Lc"]);
        run(command).await?.ok()
    }

    /// What a TCP connection to a port gets, as from a program on the host; waits a second for it.
    pub async fn connect_to(&self, address: &str, port: u16) -> Result<Output> {
        let mut command = Command::new("nsenter");
        let connect = format!("exec 3<>/dev/tcp/{address}/{port}");
        command
            .args(entered(self.holder.id()))
            .args(["timeout", "1", "bash", "-c", &connect]);
        run(command).await
    }

    /// A process whose mount namespace has its sockets at their default paths.
    pub(crate) fn mounts(&self) -> u32 {
        self.holder.id()
    }

    /// The command that runs another command in its mount namespace.
    pub fn mount_namespace_command(&self) -> [String; 2] {
        let mounts = namespace(self.holder.id(), "mnt");
        ["nsenter".to_owned(), format!("--mount={mounts}")]
    }

    /// A path in a folder that libvirtd can read.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Creates a pool with a folder of its own, and returns the folder.
    pub async fn pool(&self, name: &str) -> Result<PathBuf> {
        let target = self.folder.join("pools").join(name);
        fs::create_dir_all(&target)?;
        let path = target.display().to_string();
        let define = ["pool-define-as", name, "dir", "--target", &path];
        self.virsh(&define).await?.ok()?;
        self.virsh(&["pool-start", name]).await?.ok()?;
        self.virsh(&["pool-autostart", name]).await?.ok()?;
        Ok(target)
    }

    /// Copies a file into a pool as a volume.
    pub async fn volume(&self, pool: &Path, name: &str, from: &Path) -> Result<PathBuf> {
        let path = pool.join(name);
        fs::copy(from, &path).with_context(|| format!("copying to {}", path.display()))?;
        let pool = pool.file_name().context("a pool's folder")?;
        self.virsh(&["pool-refresh", &pool.to_string_lossy()])
            .await?
            .ok()?;
        Ok(path)
    }

    /// Kills the daemon, as the kernel does when memory runs out; guests keep running.
    pub fn kill(&mut self) {
        // Killing its parent, nsenter, kills it, too.
        self.daemon.kill();
    }

    /// Starts the daemon again after it was killed.
    pub async fn start_again(&mut self) -> Result<()> {
        self.daemon.kill();
        self.daemon = self.program.start()?;
        self.wait_until_served().await
    }

    /// Starts the daemon again as the one of a host with this UUID.
    pub async fn start_again_as(&mut self, host_uuid: &str) -> Result<()> {
        let configuration = format!("{LIBVIRTD}host_uuid = \"{host_uuid}\"\n");
        self.folder.write("etc/libvirtd.conf", &configuration)?;
        self.start_again().await
    }

    /// Freezes the daemon with SIGSTOP: its sockets accept connections, but it does not answer.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Thaws it with SIGCONT.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)?;
        // nsenter stops when its child stops, and has to be continued, too.
        signal(self.daemon.id(), Signal::CONT)
    }

    fn signal(&self, which: Signal) -> Result<()> {
        signal(child_of(self.daemon.id())?, which)
    }

    /// Kills the QEMU of a guest.
    pub async fn kill_guest(&self, domain: &str) -> Result<()> {
        let file = self.folder.join("run/qemu").join(format!("{domain}.pid"));
        let id =
            fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let mut kill = Command::new("nsenter");
        kill.args(entered(self.holder.id()))
            .args(["kill", "-9", id.trim()]);
        run(kill).await?.ok()?;
        Ok(())
    }

    /// QEMU's log of a guest.
    pub fn guest_log(&self, domain: &str) -> String {
        let file = self.folder.join("log/qemu").join(format!("{domain}.log"));
        fs::read_to_string(&file).unwrap_or_else(|error| format!("({}: {error})", file.display()))
    }

    /// The last lines of the daemon's log.
    pub fn log_tail(&self, lines: usize) -> String {
        self.daemon.log_tail(lines)
    }
}

/// Writes the configuration files that are mounted at `/etc/libvirt` and similar paths.
fn lay_out(folder: &Folder) -> Result<()> {
    for place in ["etc/qemu/networks", "lib", "log", "run", "pools"] {
        fs::create_dir_all(folder.join(place))?;
    }
    let filters = folder.join("etc/nwfilter");
    fs::create_dir_all(&filters)?;
    for file in fs::read_dir(FILTERS).context(FILTERS)? {
        let file = file?;
        fs::copy(file.path(), filters.join(file.file_name()))?;
    }
    folder.write("etc/qemu.conf", QEMU)?;
    folder.write("etc/libvirtd.conf", LIBVIRTD)?;
    for (number, name) in NETWORKS.iter().enumerate() {
        let network = format!(
            "<network><name>{name}</name><bridge name='lab{number}'/>\
             <ip address='192.168.{net}.1' netmask='255.255.255.0'>\
             <dhcp><range start='192.168.{net}.2' end='192.168.{net}.254'/></dhcp></ip></network>",
            net = 122 + number,
        );
        folder.write(&format!("etc/qemu/networks/{name}.xml"), &network)?;
    }
    Ok(())
}

/// A namespace of the process `unshare`. Of the PID namespace only its children are members.
fn namespace(unshare: u32, which: &str) -> String {
    format!("/proc/{unshare}/ns/{which}")
}

fn entered(unshare: u32) -> [String; 3] {
    [
        ("mount", "mnt"),
        ("net", "net"),
        ("pid", "pid_for_children"),
    ]
    .map(|(option, which)| format!("--{option}={}", namespace(unshare, which)))
}

fn virsh([nsenter, mounts]: [String; 2], arguments: &[&str]) -> Command {
    let mut command = Command::new(nsenter);
    command
        .args([&mounts, "virsh", "-q", "-c", Libvirt::URI])
        .args(arguments);
    command
}

async fn run(mut command: Command) -> Result<Output> {
    let running = command
        .stdin(Stdio::null())
        .env("LC_ALL", "C")
        .kill_on_drop(true)
        .output();
    let output = timeout(COMMAND, running)
        .await
        .with_context(|| format!("{command:?} did not end"))?
        .with_context(|| format!("starting {command:?}"))?;
    Ok(Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

fn child_of(id: u32) -> Result<u32> {
    let text = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
    let mut children = text.split_whitespace();
    match (children.next(), children.next()) {
        (Some(child), None) => Ok(child.parse()?),
        _ => bail!("process {id} has other than one child: {text:?}"),
    }
}

fn signal(id: u32, which: Signal) -> Result<()> {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw);
    let id = id.context("an invalid process id")?;
    kill_process(id, which).context("a signal to libvirtd")
}
