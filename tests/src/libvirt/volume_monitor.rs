//! [`VolumeMonitor`]: observes which volumes the guests of one libvirtd have open, as the kernel reports it.
//!
//! ```text
//! /proc/<QEMU>/fd      ──▶ a volume that two guests write     two guests on one disk destroy it
//!                      ──▶ a volume that is deleted           the guest loses it at its next start
//! its time and length  ──▶ an image that changes while it is  every overlay of it is destroyed
//!                          the backing file of a guest
//! ```
//! It knows nothing of libvirt or of the controller, so it finds a fault of either.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Result, anyhow};

/// Interval between two looks: shorter than any guest lives.
const INTERVAL: Duration = Duration::from_millis(100);

/// The kernel appends it to the path of a file that was deleted while it is open.
const DELETED: &str = " (deleted)";

/// Looks at the guests in the background until it is finished.
#[derive(Debug)]
pub struct VolumeMonitor {
    is_finished: Arc<AtomicBool>,
    looks: JoinHandle<Observed>,
}

/// A volume that a guest has open.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OpenVolume {
    guest: String,
    /// Path of the file, with [`DELETED`] if it is.
    path: String,
    is_written: bool,
}

/// Modification time in nanoseconds, and length.
type Version = (i64, i64, u64);

#[derive(Debug, Default)]
struct Observed {
    violations: BTreeSet<String>,
    /// The images that guests have open for reading.
    images: BTreeMap<String, Version>,
    guests: BTreeSet<String>,
}

impl VolumeMonitor {
    /// Starts to observe the guests that have files below this folder open.
    pub fn start(pools: PathBuf) -> Self {
        let is_finished = Arc::<AtomicBool>::default();
        let finished = is_finished.clone();
        let looks = thread::spawn(move || {
            let mut observed = Observed::default();
            while !finished.load(Ordering::Acquire) {
                observed.look(&open_volumes(&pools), version);
                thread::sleep(INTERVAL);
            }
            observed
        });
        Self { is_finished, looks }
    }

    /// Ends it. Returns what it has found; an error if it has seen no guest at all.
    pub fn finish(self) -> Result<Vec<String>> {
        self.is_finished.store(true, Ordering::Release);
        let observed = self.looks.join();
        let observed = observed.map_err(|_| anyhow!("the monitor has panicked"))?;
        anyhow::ensure!(!observed.guests.is_empty(), "the monitor has seen no guest");
        Ok(observed.violations.into_iter().collect())
    }
}

impl Observed {
    fn look(&mut self, open: &[OpenVolume], version: impl Fn(&str) -> Option<Version>) {
        let mut writers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut images = BTreeMap::new();
        for OpenVolume {
            guest,
            path,
            is_written,
        } in open
        {
            self.guests.insert(guest.clone());
            if let Some(path) = path.strip_suffix(DELETED) {
                let lost = format!("{path} is deleted, and the guest {guest} has it open");
                self.violations.insert(lost);
            } else if *is_written {
                writers.entry(path).or_default().insert(guest);
            } else if let Some(now) = version(path) {
                let before = self.images.get(path);
                if before.is_some_and(|before| *before != now) {
                    let changed = format!(
                        "{path} has changed, and the guest {guest} uses it as a backing file"
                    );
                    self.violations.insert(changed);
                }
                images.insert(path.clone(), now);
            }
        }
        // An image that no guest has open may change, or be removed and made again.
        self.images = images;
        for (path, guests) in writers {
            if guests.len() > 1 {
                let shared = format!("{path} is written by several guests: {guests:?}");
                self.violations.insert(shared);
            }
        }
    }
}

/// The version of a file; `None` if it is gone.
fn version(path: &str) -> Option<Version> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
}

/// The files below a folder that running QEMUs have open. A process that ends meanwhile has none.
fn open_volumes(pools: &Path) -> Vec<OpenVolume> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut open = Vec::new();
    for process in processes.map(|entry| entry.path()) {
        let Some(guest) = guest_of(&process) else {
            continue;
        };
        let files = fs::read_dir(process.join("fd"));
        for file in files.into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(file.path()) else {
                continue;
            };
            let information = process.join("fdinfo").join(file.file_name());
            let information = fs::read_to_string(information).unwrap_or_default();
            if target.starts_with(pools) {
                open.push(OpenVolume {
                    guest: guest.clone(),
                    path: target.display().to_string(),
                    is_written: is_written(&information),
                });
            }
        }
    }
    open
}

/// The name of the guest, and the id of its process, so that a guest that runs twice is two of them.
fn guest_of(process: &Path) -> Option<String> {
    let command = fs::read(process.join("cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command);
    let mut words = command.split('\0');
    words.next().filter(|it| it.contains("qemu-system"))?;
    let name = words.find_map(|word| word.strip_prefix("guest="))?;
    let name = name.split(',').next().unwrap_or(name);
    let id = process.file_name()?.to_string_lossy();
    Some(format!("{name} (process {id})"))
}

/// Whether a file is open for writing, from the octal flags in `fdinfo`, whose last two bits are the access mode.
fn is_written(information: &str) -> bool {
    let mut lines = information.lines();
    let flags = lines.find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & 3 != 0)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn open(guest: &str, path: &str, is_written: bool) -> OpenVolume {
        OpenVolume {
            guest: guest.to_owned(),
            path: path.to_owned(),
            is_written,
        }
    }

    fn violations(looks: &[(&[OpenVolume], u64)]) -> Vec<String> {
        let mut observed = Observed::default();
        for (open, length) in looks {
            observed.look(open, |_| Some((0, 0, *length)));
        }
        observed.violations.into_iter().collect()
    }

    #[test]
    fn a_disk_of_two_guests_and_a_deleted_one_are_reported() {
        let ours = open("web (process 1)", "/pools/volumes/web", true);
        let twin = open("web (process 2)", "/pools/volumes/web", true);
        let lost = open("app (process 3)", "/pools/volumes/app (deleted)", true);
        assert_eq!(
            violations(&[(from_ref(&ours), 1), (from_ref(&ours), 2)]),
            [""; 0]
        );
        assert_eq!(
            violations(&[(&[ours, twin, lost], 1)]),
            [
                "/pools/volumes/app is deleted, and the guest app (process 3) has it open",
                "/pools/volumes/web is written by several guests: {\"web (process 1)\", \"web (process 2)\"}",
            ]
        );
    }

    #[test]
    fn an_image_may_be_shared_and_may_change_only_while_no_guest_has_it() {
        let one = open("web (process 1)", "/pools/images/debian", false);
        let other = open("app (process 2)", "/pools/images/debian", false);
        let both = [one.clone(), other];
        assert_eq!(violations(&[(&both, 1), (&[], 1), (&both, 2)]), [""; 0]);
        assert_eq!(
            violations(&[(&both[..1], 1), (&both[..1], 2)]),
            [
                "/pools/images/debian has changed, and the guest web (process 1) uses it as a backing file"
            ]
        );
    }

    #[test]
    fn the_access_mode_is_read_from_the_flags() {
        assert!(is_written("pos:\t0\nflags:\t02100002\nmnt_id:\t29\n"));
        assert!(!is_written("pos:\t0\nflags:\t02100000\n"));
        assert!(!is_written(""));
    }
}
