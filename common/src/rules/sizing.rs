//! CPU and memory.

use crate::api::machine::{Cpu, MachineSpec, Memory};
use crate::api::normalized::{NormalizedCpu, NormalizedMemory};
use crate::api::template::TemplateContent;
use crate::code::Code;
use crate::normalize::{Leaf, Merged, Place};
use crate::quantity::Bytes;
use crate::violation::{Findings, Kind, Violation};

use super::form::{self, Bounds};

/// Most vCPUs of a machine: what QEMU's q35 offers without an emulated IOMMU.
pub const VCPUS_MAX: u32 = 255;
/// Step in which memory grows under a running guest; KubeVirt demands it of both sizes.
const HOTPLUG_STEP: Bytes = Bytes::mib(2);
/// From what the smallest guests boot with to what the largest hosts have.
const MEMORY: Bounds = Bounds {
    min: Bytes::mib(32),
    max: Bytes::tib(12),
    too_small: Code::MemoryTooSmall,
    too_large: Code::MemoryTooLarge,
    example: "2Gi",
};

/// The CPU topology: rules [`Code::InvalidCpuCount`], [`Code::TooManyVcpus`],
/// [`Code::MaxSocketsTooSmall`].
pub(crate) fn cpu(merged: &Merged<'_>, findings: &mut Findings) -> Option<NormalizedCpu> {
    let pick = |field, get: fn(&Cpu) -> Option<i64>| {
        merged.pick(
            field,
            |spec| spec.resources.as_ref()?.cpu.as_ref().and_then(get),
            |template| template.resources.as_ref()?.cpu.as_ref().and_then(get),
        )
    };
    let cores_at = pick("resources.cpu.cores", |cpu| cpu.cores);
    let threads_at = pick("resources.cpu.threads", |cpu| cpu.threads);
    let sockets_at = pick("resources.cpu.sockets", |cpu| cpu.sockets);
    let max_at = pick("resources.cpu.maxSockets", |cpu| cpu.max_sockets);
    let cores = count(cores_at, findings);
    let threads = count(threads_at, findings);
    let sockets = count(sockets_at, findings);
    let max_sockets = match max_at.value {
        None => sockets,
        Some(_) => count(max_at, findings),
    };
    let (cores, threads, sockets, max_sockets) = (cores?, threads?, sockets?, max_sockets?);
    let cpu = NormalizedCpu {
        sockets,
        cores,
        threads,
        max_sockets,
    };
    if cpu.vcpus() > VCPUS_MAX {
        let largest = [
            (cores, cores_at),
            (threads, threads_at),
            (sockets, sockets_at),
        ]
        .into_iter()
        .max_by_key(|(count, _)| *count)
        .map_or(cores_at.place, |(_, leaf)| leaf.place);
        findings.deny(too_many_vcpus(largest, &cpu, VCPUS_MAX));
        return None;
    }
    if max_sockets < sockets {
        let detail = format!("must be at least sockets, which is {sockets}");
        findings.deny(
            Violation::new(
                max_at.place,
                Code::MaxSocketsTooSmall,
                Kind::Invalid,
                detail,
            )
            .value(max_sockets),
        );
        return None;
    }
    let grown = NormalizedCpu {
        sockets: max_sockets,
        ..cpu
    };
    if grown.vcpus() > VCPUS_MAX {
        findings.deny(too_many_vcpus(max_at.place, &grown, VCPUS_MAX));
        return None;
    }
    Some(cpu)
}

/// One count of the topology; absent is 1.
fn count(leaf: Leaf<i64>, findings: &mut Findings) -> Option<u32> {
    let value = leaf.value.unwrap_or(1);
    let count = u32::try_from(value)
        .ok()
        .filter(|count| (1..=VCPUS_MAX).contains(count));
    if count.is_none() {
        let detail = format!("must be from 1 to {VCPUS_MAX}");
        findings.deny(
            Violation::new(leaf.place, Code::InvalidCpuCount, Kind::Invalid, detail).value(value),
        );
    }
    count
}

/// Rule [`Code::TooManyVcpus`] against the limit an administrator set.
pub(crate) fn vcpu_limit(cpu: &NormalizedCpu, max: u32, findings: &mut Findings) {
    let grown = NormalizedCpu {
        sockets: cpu.max_sockets,
        ..*cpu
    };
    if grown.vcpus() > max {
        findings.deny(too_many_vcpus(Place::Field("resources.cpu"), &grown, max));
    }
}

fn too_many_vcpus(place: Place, cpu: &NormalizedCpu, max: u32) -> Violation {
    let NormalizedCpu {
        sockets,
        cores,
        threads,
        ..
    } = cpu;
    let detail = format!(
        "{sockets} sockets × {cores} cores × {threads} threads are {} vCPUs; at most {max} are allowed",
        cpu.vcpus()
    );
    Violation::new(place, Code::TooManyVcpus, Kind::Invalid, detail)
}

fn memory_leaf<'a>(
    merged: &Merged<'a>,
    field: &'static str,
    get: fn(&'a Memory) -> Option<&'a str>,
) -> Leaf<&'a str> {
    merged.pick(
        field,
        |spec: &'a MachineSpec| spec.resources.as_ref()?.memory.as_ref().and_then(get),
        |template: &'a TemplateContent| template.resources.as_ref()?.memory.as_ref().and_then(get),
    )
}

/// Guest memory: rules [`Code::MemoryRequired`], [`Code::MaxMemoryTooSmall`],
/// [`Code::MemoryNotAligned`] and the bounds.
pub(crate) fn memory(merged: &Merged<'_>, findings: &mut Findings) -> Option<NormalizedMemory> {
    let size_at = memory_leaf(merged, "resources.memory.size", |memory| {
        memory.size.as_deref()
    });
    let max_at = memory_leaf(merged, "resources.memory.maxSize", |memory| {
        memory.max_size.as_deref()
    });
    if size_at.value.is_none() && merged.is_complete() {
        let detail = "give a size such as '2Gi', or a template that has one";
        findings.deny(Violation::new(
            size_at.place,
            Code::MemoryRequired,
            Kind::Required,
            detail,
        ));
    }
    let size = form::bytes(size_at, &MEMORY, findings);
    let max_size = match max_at.value {
        None => size,
        Some(_) => form::bytes(max_at, &MEMORY, findings),
    };
    let memory = NormalizedMemory {
        size: size?,
        max_size: max_size?,
    };
    let NormalizedMemory { size, max_size } = memory;
    if max_size < size {
        let detail = format!("must be at least the size, which is {size}");
        findings.deny(
            Violation::new(max_at.place, Code::MaxMemoryTooSmall, Kind::Invalid, detail)
                .text(&max_size.to_string()),
        );
        return None;
    }
    if max_size > size {
        let misaligned = [(size, size_at.place), (max_size, max_at.place)]
            .into_iter()
            .filter(|(bytes, _)| !bytes.is_multiple_of(HOTPLUG_STEP));
        let before = findings.violations.len();
        for (bytes, place) in misaligned {
            let detail = format!(
                "must be a multiple of {HOTPLUG_STEP}, because the machine can grow to {max_size}; the next one is {}",
                bytes.round_up_to(HOTPLUG_STEP)
            );
            findings.deny(
                Violation::new(place, Code::MemoryNotAligned, Kind::Invalid, detail)
                    .text(&bytes.to_string()),
            );
        }
        if findings.violations.len() > before {
            return None;
        }
    }
    Some(memory)
}
