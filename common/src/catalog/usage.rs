//! What Machines use of the quota of their namespace.

use crate::api::normalized::Normalized;
use crate::quantity::Bytes;

/// What Machines use of the resources of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of vCPUs.
    pub cpu: u64,
    /// Memory in bytes, the largest size that guests can get.
    pub memory: u64,
    /// Capacity of disks and of the volumes of CD-ROM drives in bytes.
    pub storage: u64,
}

impl Usage {
    /// What a Machine with this block uses, whether or not it runs. Of dedicated CPUs on libvirt those up to maxSockets count. Of its memory the largest size counts: a libvirt guest
    /// is started with it, and gives the rest back only if its balloon driver cooperates.
    pub fn of(block: &Normalized) -> Self {
        let disks = block.disks.iter().map(|disk| disk.size);
        let cdroms = block.cdroms.iter().filter_map(|cdrom| cdrom.size);
        Self {
            cpu: block.counted_vcpus().into(),
            // A running guest that is to have less may have more than the largest size of its block.
            memory: amount(block.memory.max_size.max(block.memory.size)),
            storage: disks.chain(cdroms).map(amount).fold(0, u64::saturating_add),
        }
    }

    /// This much storage, and nothing else.
    pub fn of_storage(bytes: u64) -> Self {
        Self {
            storage: bytes,
            ..Self::default()
        }
    }

    /// The sum of both, each amount up to 2⁶⁴ − 1.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// This minus the other, each amount at least 0.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    /// The larger amount of each resource.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.with(other, u64::max)
    }

    /// The smaller amount of each resource.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.with(other, u64::min)
    }

    /// Whether there is less of something than in the other.
    pub fn is_less_in_part(self, other: Self) -> bool {
        self.max(other) != self
    }

    fn with(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        Self {
            cpu: combine(self.cpu, other.cpu),
            memory: combine(self.memory, other.memory),
            storage: combine(self.storage, other.storage),
        }
    }
}

/// A sum of which every summand can be taken back: the 64 bits of a [`Usage`] may overflow, because a Machine that was
/// stored without a review can claim any amount.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    cpu: u128,
    memory: u128,
    storage: u128,
}

impl Sum {
    pub(super) fn add(&mut self, usage: Usage) {
        self.cpu += u128::from(usage.cpu);
        self.memory += u128::from(usage.memory);
        self.storage += u128::from(usage.storage);
    }

    /// Takes back what was added.
    pub(super) fn remove(&mut self, usage: Usage) {
        self.cpu -= u128::from(usage.cpu);
        self.memory -= u128::from(usage.memory);
        self.storage -= u128::from(usage.storage);
    }

    pub(super) fn usage(self) -> Usage {
        let amount = |sum| u64::try_from(sum).unwrap_or(u64::MAX);
        Usage {
            cpu: amount(self.cpu),
            memory: amount(self.memory),
            storage: amount(self.storage),
        }
    }
}

/// An amount of bytes; one that is larger than any storage counts as the largest number.
pub fn amount(bytes: Bytes) -> u64 {
    u64::try_from(bytes.get()).unwrap_or(u64::MAX)
}
