//! What the guest of a stored Machine runs with. Its block may have changes that wait for a restart.

use std::str::FromStr;

use super::{Normalized, NormalizedCpu, NormalizedMemory};

/// Paths in the block of what a running guest has of the quota of its namespace, or on which that depends.
const COUNTED: [&str; 8] = [
    "cpu.sockets",
    "cpu.maxSockets",
    "cpu.cores",
    "cpu.threads",
    "cpu.dedicated",
    "memory.size",
    "memory.maxSize",
    "features.acpi",
];

/// Whether a pending change of this path in the block decides what the guest counts with: see [`Normalized::running`].
pub fn is_counted(field: &str) -> bool {
    COUNTED.contains(&field)
}

impl Normalized {
    /// This block with the sizes and features that the running guest has in place of the pending ones. `pending`: path in the
    /// block and current value, as in `status.pendingChanges`. A value that cannot be read is left out.
    #[must_use]
    pub fn running<'p>(&self, pending: impl IntoIterator<Item = (&'p str, &'p str)>) -> Self {
        let mut runs = self.clone();
        for (field, current) in pending.into_iter().filter(|(field, _)| is_counted(field)) {
            match field {
                "cpu.cores" => set(&mut runs.cpu.cores, current),
                "cpu.threads" => set(&mut runs.cpu.threads, current),
                "cpu.sockets" => set(&mut runs.cpu.sockets, current),
                "cpu.maxSockets" => set(&mut runs.cpu.max_sockets, current),
                "memory.size" => set(&mut runs.memory.size, current),
                "memory.maxSize" => set(&mut runs.memory.max_size, current),
                // Which ones depends on the host.
                "cpu.dedicated" if current.starts_with("CPUs ") => {
                    runs.hardware.get_or_insert_default().dedicated_cpu = true;
                }
                "features.acpi" => set(&mut runs.features.acpi, current),
                _ => {}
            }
        }
        runs
    }

    /// The sizes in which a guest that runs with these differs from the block: path in the block, value of the guest, value of
    /// the block.
    pub fn other_sizes(
        &self,
        cpu: NormalizedCpu,
        memory: NormalizedMemory,
    ) -> Vec<(&'static str, String, String)> {
        let of_guest = sizes(cpu, memory).into_iter();
        let both = of_guest.zip(sizes(self.cpu, self.memory));
        let differs = both.filter(|((_, current), (_, desired))| current != desired);
        differs
            .map(|((field, current), (_, desired))| (field, current, desired))
            .collect()
    }
}

fn sizes(cpu: NormalizedCpu, memory: NormalizedMemory) -> [(&'static str, String); 6] {
    [
        ("cpu.sockets", cpu.sockets.to_string()),
        ("cpu.maxSockets", cpu.max_sockets.to_string()),
        ("cpu.cores", cpu.cores.to_string()),
        ("cpu.threads", cpu.threads.to_string()),
        ("memory.size", memory.size.to_string()),
        ("memory.maxSize", memory.max_size.to_string()),
    ]
}

fn set<T: FromStr>(at: &mut T, text: &str) {
    if let Ok(value) = text.parse() {
        *at = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::choice::Backend;
    use crate::api::normalized::fixture::block;

    #[test]
    fn each_counted_field_changes_what_the_guest_runs_with() {
        let block = block(Backend::Libvirt);
        for field in COUNTED {
            let current = match field {
                "cpu.dedicated" => "CPUs 2-3",
                "features.acpi" => "false",
                field if field.starts_with("memory.") => "3Gi",
                _ => "7",
            };
            assert_ne!(block.running([(field, current)]), block, "{field}");
        }
        assert_eq!(block.running([("timezone", "UTC")]), block);
    }
}
