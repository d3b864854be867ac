//! Lists of CPUs of a host, as the kernel and libvirt write them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::bounds::HOST_CPU_MAX;

/// Numbers of CPUs. The text is a list of numbers and ranges, such as `2-7,10`, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(pub BTreeSet<u32>);

/// The text is no list of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a list of numbers and ranges of CPUs, such as '2-7,10', up to {HOST_CPU_MAX}")]
pub struct CpuListError;

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for &cpu in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        for (index, (first, last)) in ranges.into_iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
            let number: u32 = digits.parse().ok().filter(|_| is_number)?;
            (number <= HOST_CPU_MAX).then_some(number)
        };
        let range = |item: &str| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(first..=last)
        };
        let ranges = text.split(',').map(|item| range(item).ok_or(CpuListError));
        let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
        Ok(Self(ranges.into_iter().flatten().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_written_as_ranges() {
        for (text, written) in [
            ("3", "3"),
            ("2-7,10", "2-7,10"),
            ("10,2,4,3", "2-4,10"),
            ("0-1,1-2,5-5", "0-2,5"),
        ] {
            assert_eq!(text.parse::<CpuList>().unwrap().to_string(), written);
        }
        for text in [
            "", "a", "3-", "-3", "5-2", "1,,2", "0x3", "+1", " 1", "0-4096", "^3",
        ] {
            assert_eq!(text.parse::<CpuList>(), Err(CpuListError), "{text}");
        }
    }
}
