//! Memory and processor time of a process, from `/proc`.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};

/// The unit of processor times in `/proc`, on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// Resident memory of a process, in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Current value (`VmRSS`).
    pub now: u64,
    /// The maximum since the process started (`VmHWM`).
    pub peak: u64,
}

/// Resident memory of a process.
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

/// Processor time of a process, user and system.
pub fn processor_time(process: u32) -> Result<Duration> {
    Ok(TICK * stat(process, ticks)?)
}

/// Processor time of a process and of those of its descendants that have ended and were waited for.
pub fn processor_time_of_all(process: u32) -> Result<Duration> {
    Ok(TICK * stat(process, times)?.iter().sum())
}

/// What is read from the stat file of a process.
fn stat<T>(process: u32, read: fn(&str) -> Option<T>) -> Result<T> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    read(&stat).with_context(|| format!("not a stat file: {stat}"))
}

fn ticks(stat: &str) -> Option<u32> {
    let [user, system, ..] = times(stat)?;
    Some(user + system)
}

/// User and system time of a process, then of its descendants.
fn times(stat: &str) -> Option<[u32; 4]> {
    // The second field is the program's name in parentheses, which may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11);
    let mut next = || times.next()?.parse().ok();
    Some([next()?, next()?, next()?, next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_times_are_parsed_after_a_name_with_parentheses() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 5 0 0 0 30 12 5 1 20 0 3 0 99";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(times(stat), Some([30, 12, 5, 1]));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn memory_and_processor_time_of_this_process_are_positive() {
        let memory = memory(std::process::id()).unwrap();
        assert!(memory.now > 0 && memory.peak >= memory.now, "{memory:?}");
        let before = processor_time(std::process::id()).unwrap();
        while processor_time(std::process::id()).unwrap() == before {}
    }
}
