//! What Machines use of the quota of their namespace.

use crate::api::normalized::Normalized;
use crate::quantity::Bytes;

/// vCPUs, bytes of memory and bytes of storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// vCPUs.
    pub cpu: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// Capacity of disks and of the volumes of CD-ROM drives in bytes.
    pub storage: u64,
}

impl Usage {
    /// What a Machine with this block uses, whether or not it runs. Of its memory the largest size counts: a libvirt guest
    /// is started with it, and gives the rest back only if its balloon driver cooperates.
    pub fn of(block: &Normalized) -> Self {
        let disks = block.disks.iter().map(|disk| disk.size);
        let cdroms = block.cdroms.iter().filter_map(|cdrom| cdrom.size);
        Self {
            cpu: block.cpu.vcpus().into(),
            memory: amount(block.memory.max_size),
            storage: disks.chain(cdroms).map(amount).fold(0, u64::saturating_add),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// This without the other.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    /// Of each the larger one.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.with(other, u64::max)
    }

    fn with(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        Self {
            cpu: combine(self.cpu, other.cpu),
            memory: combine(self.memory, other.memory),
            storage: combine(self.storage, other.storage),
        }
    }
}

/// An amount of bytes; one that is larger than any storage counts as the largest number.
pub fn amount(bytes: Bytes) -> u64 {
    u64::try_from(bytes.get()).unwrap_or(u64::MAX)
}
