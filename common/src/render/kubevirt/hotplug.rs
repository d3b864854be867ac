//! What KubeVirt gives a running guest of more vCPUs and memory, by a live migration. Admission announces by these functions, and
//! the controller reports by them. The rules are those of KubeVirt 1.9 (`handleCPUChangeRequest`, `handleMemoryHotplugRequest`).

use crate::api::normalized::NormalizedCpu;
use crate::quantity::Bytes;

/// Whether the sockets of an instance become those that are desired: only ever more, up to its maximum, and only if nothing
/// else of the vCPUs changes. The instance has sockets before its guest has them.
pub fn takes_sockets(instance: NormalizedCpu, desired: NormalizedCpu) -> bool {
    let sockets = desired.sockets;
    let is_same = NormalizedCpu {
        sockets,
        ..instance
    } == desired;
    is_same && (instance.sockets..=instance.max_sockets).contains(&sockets)
}

/// Whether a guest is given this amount of memory: not less than it was started with (`least`), and not more than the maximum of
/// its instance (`most`).
pub fn takes_memory(least: Bytes, most: Bytes, desired: Bytes) -> bool {
    (least..=most).contains(&desired)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAS: NormalizedCpu = NormalizedCpu {
        cores: 2,
        max_sockets: 4,
        sockets: 2,
        threads: 1,
    };

    #[test]
    fn sockets_are_added_up_to_the_maximum_and_while_nothing_else_changes() {
        for (desired, takes) in [
            (NormalizedCpu { sockets: 1, ..HAS }, false),
            (HAS, true),
            (NormalizedCpu { sockets: 4, ..HAS }, true),
            (NormalizedCpu { sockets: 5, ..HAS }, false),
            (
                NormalizedCpu {
                    sockets: 3,
                    cores: 1,
                    ..HAS
                },
                false,
            ),
            (
                NormalizedCpu {
                    sockets: 3,
                    threads: 2,
                    ..HAS
                },
                false,
            ),
            (
                NormalizedCpu {
                    sockets: 3,
                    max_sockets: 8,
                    ..HAS
                },
                false,
            ),
        ] {
            assert_eq!(takes_sockets(HAS, desired), takes, "{desired:?}");
        }
    }

    #[test]
    fn memory_is_between_that_of_the_start_and_the_maximum() {
        for (mib, takes) in [(1023, false), (1024, true), (4096, true), (4097, false)] {
            let takes_it = takes_memory(Bytes::mib(1024), Bytes::mib(4096), Bytes::mib(mib));
            assert_eq!(takes_it, takes, "{mib}");
        }
    }
}
