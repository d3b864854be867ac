//! What the guest of a stored Machine runs with. Its block may have changes that wait for a restart.

use std::str::FromStr;

use super::Normalized;

impl Normalized {
    /// This block with the sizes and features that the running guest has in place of the pending ones. `pending`: path in the
    /// block and current value, as in `status.pendingChanges`. A value that cannot be read is left out.
    #[must_use]
    pub fn running<'p>(&self, pending: impl IntoIterator<Item = (&'p str, &'p str)>) -> Self {
        let mut runs = self.clone();
        for (field, current) in pending {
            match field {
                "cpu.cores" => set(&mut runs.cpu.cores, current),
                "cpu.threads" => set(&mut runs.cpu.threads, current),
                "cpu.sockets" => set(&mut runs.cpu.sockets, current),
                "cpu.maxSockets" => set(&mut runs.cpu.max_sockets, current),
                "memory.size" => set(&mut runs.memory.size, current),
                "memory.maxSize" => set(&mut runs.memory.max_size, current),
                "features.acpi" => set(&mut runs.features.acpi, current),
                _ => {}
            }
        }
        runs
    }
}

fn set<T: FromStr>(at: &mut T, text: &str) {
    if let Ok(value) = text.parse() {
        *at = value;
    }
}
