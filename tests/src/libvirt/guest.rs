//! The tiny guest: its disk, and the reports that it writes to its console.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{ErrorKind, Read as _},
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};
use tokio::process::Command;

use super::Libvirt;
use crate::{paths, tools, wait};

/// The files that the disk is built from.
const SOURCES: [&str; 4] = ["build", "init", "lease", "modules"];

/// Limit of a boot: it takes 5 to 20 s on idle cores, with EFI, and minutes without KVM on two busy ones.
const BOOT: Duration = Duration::from_mins(10);

/// The prefix of a console line with a report.
const LINE: &str = "lab-guest";

/// A report of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The boot id: differs after each boot.
    pub boot: String,
    /// Number of boots from this disk.
    pub boots: u32,
    /// The model of its CPU, as the kernel names it.
    pub cpu: String,
    /// `bios` or `efi`.
    pub firmware: String,
    /// 1 if Secure Boot is enabled.
    pub secure_boot: u8,
    /// The labels of the CDs in its drives.
    pub cdroms: Vec<String>,
    /// The file `user-data` of its NoCloud seed.
    #[serde(deserialize_with = "text")]
    pub user_data: String,
    /// The file `meta-data`.
    #[serde(deserialize_with = "text")]
    pub meta_data: String,
    /// The file `network-config`.
    #[serde(deserialize_with = "text")]
    pub network_config: String,
    /// The answer file of Windows Setup.
    #[serde(deserialize_with = "text")]
    pub answers: String,
    /// The size of each disk in bytes, by its name in the guest.
    pub disks: BTreeMap<String, u64>,
    /// The serial number of each disk on the bus virtio, by its name in the guest; empty for one without.
    pub serials: BTreeMap<String, String>,
    /// The network cards, by their name in the guest.
    pub nics: BTreeMap<String, Nic>,
}

/// A network card as the guest reports it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Nic {
    /// The MAC address.
    pub mac: String,
    pub mtu: u32,
    /// The address from DHCP; empty until it is assigned.
    pub address: String,
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let encoded = String::deserialize(deserializer)?;
    let bytes = BASE64_STANDARD
        .decode(encoded)
        .map_err(serde::de::Error::custom)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The path of the disk image, in raw format; built once and kept in the cache.
pub async fn image() -> Result<PathBuf> {
    let folder = paths::repository().join("tests/guest");
    let mut hash = Sha256::new();
    for name in SOURCES {
        hash.update(fs::read(folder.join(name)).with_context(|| format!("tests/guest/{name}"))?);
        hash.update([0]);
    }
    let cache = tools::cache_home()?.join("kubevirt-operator-lab/guest");
    fs::create_dir_all(&cache)?;
    let image = cache.join(format!("{}.raw", tools::key(hash)));
    let _lock = tools::lock(&cache.join(".lock"), "the guest's disk").await?;
    if image.exists() {
        return Ok(image);
    }
    eprintln!("lab: making the guest's disk from Debian's packages, once");
    let started = Instant::now();
    let draft = tempfile::tempdir_in(&cache)?;
    let output = Command::new(folder.join("build"))
        .arg(draft.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("starting tests/guest/build")?;
    ensure!(
        output.status.success(),
        "tests/guest/build: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(draft.path().join("guest.raw"), &image)?;
    eprintln!("lab: made it in {} s", started.elapsed().as_secs());
    Ok(image)
}

impl Libvirt {
    /// Reads a domain's serial console until the guest writes a report that satisfies `look`.
    pub async fn wait_for_report(
        &self,
        domain: &str,
        what: &str,
        mut look: impl FnMut(&Report) -> bool,
    ) -> Result<Report> {
        let mut console = Console::default();
        let what = format!("the guest {domain} to report {what}");
        let reported = wait::until_within(BOOT, &what, async || {
            if console.file.is_none() {
                let terminal = self.virsh(&["ttyconsole", domain]).await?;
                if terminal.code != 0 {
                    return Ok(Err(terminal.stderr));
                }
                console.open(terminal.stdout.trim());
            }
            for line in console.lines() {
                let Some(json) = line.strip_prefix(LINE) else {
                    continue;
                };
                // The first line may be incomplete if the console was opened late.
                let Ok(report) = serde_json::from_str::<Report>(json) else {
                    continue;
                };
                if look(&report) {
                    return Ok(Ok(report));
                }
                console.last = format!("{report:?}");
            }
            Ok(Err(console.last.clone()))
        });
        match reported.await {
            Ok(report) => Ok(report),
            Err(error) => {
                let processors = self.registers(domain).await;
                // The log is long, so that it comes last.
                Err(anyhow!(
                    "{error:#}\n{processors}\n{}",
                    self.guest_log(domain)
                ))
            }
        }
    }

    /// Where the processors of a guest are: in its firmware, in its kernel or halted.
    async fn registers(&self, domain: &str) -> String {
        let monitor = ["qemu-monitor-command", "--hmp", domain, "info registers -a"];
        let registers = match self.virsh(&monitor).await {
            Ok(output) => output.to_string(),
            Err(error) => return format!("{error:#}"),
        };
        let lines = registers.lines();
        let lines = lines.filter(|line| line.contains("CPU#") || line.contains("IP="));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// The client side of a serial port that QEMU provides as a pseudoterminal.
#[derive(Default)]
struct Console {
    file: Option<File>,
    text: Vec<u8>,
    /// The last line that was read, for the error of a wait that timed out.
    last: String,
}

impl Console {
    fn open(&mut self, terminal: &str) {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // If the terminal does not exist any more, the caller queries virsh for it again.
        self.file = rustix::fs::open(terminal, flags, Mode::empty())
            .ok()
            .map(File::from);
    }

    /// The lines written since the last call.
    fn lines(&mut self) -> Vec<String> {
        let mut buffer = [0; 4096];
        while let Some(file) = &mut self.file {
            match file.read(&mut buffer) {
                Ok(count) if count > 0 => self.text.extend(buffer.iter().take(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The guest has ended, so its terminal is closed.
                _ => self.file = None,
            }
        }
        let Some(end) = self.text.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let whole: Vec<u8> = self.text.drain(..=end).collect();
        let whole = String::from_utf8_lossy(&whole).into_owned();
        let lines: Vec<String> = whole.lines().map(|line| line.trim().to_owned()).collect();
        if let Some(line) = lines.iter().rfind(|line| !line.is_empty()) {
            self.last.clone_from(line);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that a guest has written.
    const REPORT: &str = r#"{"boot":"8bc7","boots":2,"cpu":"QEMU Virtual CPU version 2.5+","firmware":"efi","secureBoot":1,"cdroms":["cidata"],"userData":"I2Nsb3VkLWNvbmZpZwo=","metaData":"","networkConfig":"","answers":"PHVuYXR0ZW5kLz4=","disks":{"vda":51380224},"serials":{"vda":"root"},"nics":{"eth0":{"mac":"52:54:00:12:34:56","mtu":1500,"address":""}}}"#;

    #[test]
    fn a_report_of_the_guest_is_parsed() {
        let report: Report = serde_json::from_str(REPORT).unwrap();
        assert_eq!(report.user_data, "#cloud-config\n");
        assert_eq!(report.answers, "<unattend/>");
        assert_eq!(report.disks["vda"], 51_380_224);
        assert_eq!(report.serials["vda"], "root");
        assert_eq!(report.nics["eth0"].mtu, 1500);
        assert_eq!((report.boots, report.secure_boot), (2, 1));
        assert_eq!(report.cpu, "QEMU Virtual CPU version 2.5+");
    }

    #[test]
    fn an_incomplete_line_is_kept_until_its_end_is_read() {
        let mut console = Console {
            text: format!("noise\r\n{LINE}{REPORT}\r\n{LINE}{{\"boot\"").into_bytes(),
            ..Console::default()
        };
        let lines = console.lines();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1].strip_prefix(LINE), Some(REPORT));
        assert_eq!(console.text, format!("{LINE}{{\"boot\"").as_bytes());
        assert!(console.lines().is_empty());
    }
}
