//! What a process has taken of the machine, as the kernel counts it.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};

/// The unit of processor times in `/proc`, on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// Memory of a process, in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// At this moment.
    pub now: u64,
    /// The most it ever was.
    pub peak: u64,
}

/// How much memory a process has.
pub fn memory(process: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let field = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let value = line.with_context(|| format!("no {name} of process {process}"))?;
        Ok(value.trim().trim_end_matches(" kB").parse::<u64>()? / 1_024)
    };
    Ok(Memory {
        now: field("VmRSS:")?,
        peak: field("VmHWM:")?,
    })
}

/// How long processors have worked for a process, in its own code and in the kernel.
pub fn processor_time(process: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let ticks = ticks(&stat).with_context(|| format!("not a stat file: {stat}"))?;
    Ok(TICK * ticks)
}

fn ticks(stat: &str) -> Option<u32> {
    // The second field is the program's name in parentheses, which may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11);
    let user: u32 = times.next()?.parse().ok()?;
    let system: u32 = times.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 5 0 0 0 30 12 0 0 20 0 3 0 99";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn this_process_has_taken_something() {
        let memory = memory(std::process::id()).unwrap();
        assert!(memory.now > 0 && memory.peak >= memory.now, "{memory:?}");
        let before = processor_time(std::process::id()).unwrap();
        while processor_time(std::process::id()).unwrap() == before {}
    }
}
