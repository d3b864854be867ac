//! What exceeds the quota of a namespace: admission refuses it, and the controller does not carry it out.

use super::policies::Quota;
use super::usage::Usage;
use crate::quantity::Bytes;
use crate::words::counted;

/// A resource that a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Number of vCPUs.
    Cpu,
    /// Memory of guests, in bytes.
    Memory,
    /// Capacity of disks, kept ones included, and of the volumes of CD-ROM drives, in bytes.
    Storage,
}

impl Resource {
    /// All resources, in the order of messages.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Storage];

    /// Name of its field in `quota` of a MachinePolicy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Storage => "storage",
        }
    }

    /// The used amount of it: a number of vCPUs, or bytes.
    pub fn used(self, usage: Usage) -> u64 {
        match self {
            Self::Cpu => usage.cpu,
            Self::Memory => usage.memory,
            Self::Storage => usage.storage,
        }
    }

    /// The limit of a quota, in the unit of [`used`](Self::used); `None`: it has none.
    pub fn limit(self, quota: &Quota) -> Option<u64> {
        match self {
            Self::Cpu => quota.cpu,
            Self::Memory => quota.memory,
            Self::Storage => quota.storage,
        }
    }

    /// An amount of it, as messages say it.
    fn show(self, amount: u64) -> String {
        match self {
            Self::Cpu => amount.to_string(),
            Self::Memory | Self::Storage => Bytes::new(amount.into()).to_string(),
        }
    }

    /// An amount of it, and what it is.
    fn titled(self, amount: u64) -> String {
        match self {
            Self::Cpu => counted(amount, "vCPU"),
            Self::Memory => format!("{} of memory", self.show(amount)),
            Self::Storage => format!("{} of storage", self.show(amount)),
        }
    }

    /// What else in the namespace has some of it.
    fn others(self) -> &'static str {
        match self {
            Self::Cpu | Self::Memory => "its other Machines",
            Self::Storage => "its other Machines and kept disks",
        }
    }
}

/// A resource of which a Machine asks for more than the quota leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The resource.
    pub resource: Resource,
    /// What the Machine asks for.
    pub asked: String,
    /// What the policy gives the namespace, and what is used of it.
    pub detail: String,
}

impl Quota {
    /// The resources of which a Machine asks for more than is left besides what others use. `has`: what the Machine has
    /// already, which is not taken from it, and what counts already of what it takes back. `policy`: the name of the policy.
    pub fn excess(&self, policy: &str, others: Usage, asked: Usage, has: Usage) -> Vec<Excess> {
        let excess = |resource: Resource| {
            let limit = resource.limit(self)?;
            let (used, asked) = (resource.used(others), resource.used(asked));
            let grows = asked > resource.used(has);
            (grows && asked > limit.saturating_sub(used)).then(|| {
                let (limit, used) = (resource.titled(limit), resource.show(used));
                let others = resource.others();
                Excess {
                    resource,
                    asked: resource.show(asked),
                    detail: format!(
                        "policy '{policy}' gives the namespace {limit}, and {others} have {used}"
                    ),
                }
            })
        };
        Resource::ALL.into_iter().filter_map(excess).collect()
    }
}
