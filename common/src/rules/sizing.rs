//! CPU and memory.

use crate::api::machine::{Cpu, MachineSpec, Memory};
use crate::api::normalized::{NormalizedCpu, NormalizedMemory};
use crate::api::template::TemplateContent;
use crate::bounds::{self, VCPUS_MAX};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Leaf, Merged};
use crate::quantity::Bytes;
use crate::violation::{Findings, Kind, Violation};
use crate::words::counted;

use super::guest_os;
use super::quantities::{self, Range};
use super::rule::{Check, Parts, Subject, rules};

rules! {
    "sizing" Check::Part(cpu), on MACHINES_AND_TEMPLATES, Always {
        Refuse InvalidCpuCount = "A CPU count is not from 1 to 255."
            because "A topology has at least one of everything, and no backend has more than 255 vCPUs."
            fix "Give a count from 1 to 255."
            crd All,
        Refuse TooManyVcpus = "Cores times threads times sockets are more vCPUs than allowed."
            because "The product counts, not its factors: the machine would be refused by QEMU or be unschedulable."
            fix "Lower cores, threads or sockets."
            crd Some,
        Refuse MaxSocketsTooSmall = "The sockets to grow to are below the sockets to start with."
            because "A machine cannot start with more sockets than it can ever have."
            fix "Raise `maxSockets`, or leave it out."
            crd Some,
        Refuse MaxCoresTooSmall = "The cores to grow to are below the cores to start with."
            because "A machine cannot start with more cores than it can ever have."
            fix "Raise `maxCores`, or leave it out."
            crd Some,
    }
    "sizing" Check::Part(memory), on MACHINES_AND_TEMPLATES, Always, and [InvalidQuantity, UnitMissing] {
        Refuse MemoryRequired = "Neither the Machine nor its template gives a memory size."
            because "No backend starts a machine without memory, and any default would be a guess."
            fix "Give `resources.memory.size`, or a template that has one."
            crd Nothing,
        Refuse MemoryTooSmall = "Memory is below what any guest boots with."
            because "No guest boots with so little; QEMU itself needs more."
            fix "Give at least the size that the message names."
            crd All,
        Refuse MemoryTooLarge = "Memory is above what the backends can give."
            because "No host has so much; the machine would stay unschedulable."
            fix "Give at most the size that the message names."
            crd All,
        Refuse MaxMemoryTooSmall = "The memory to grow to is below the memory to start with."
            because "KubeVirt refuses a guest that starts with more than its maximum."
            fix "Raise `maxSize`, or leave it out."
            crd Some,
        Refuse MemoryNotAligned = "Memory that grows while the guest runs is not in whole steps of 2Mi."
            because "Memory is plugged in whole blocks; KubeVirt refuses other sizes when a maximum is given."
            fix "Take the next multiple, which the message names."
            crd Some,
    }
}

/// Memory is plugged into a running guest in blocks of this size.
const MEMORY_BLOCK: Bytes = Bytes::new(bounds::MEMORY_BLOCK);
const MEMORY: Range = Range {
    min: Bytes::new(bounds::MEMORY_MIN),
    max: Bytes::new(bounds::MEMORY_MAX),
    too_small: Code::MemoryTooSmall,
    too_large: Code::MemoryTooLarge,
    example: "2Gi",
    // A bare 256 most likely means 256Mi, not 256Gi.
    likely_max: Bytes::mib(128 * 1024),
};

/// The requested cores of each socket, threads of each core, sockets, and most sockets. With `maxCores` the cores are
/// sockets, and on Windows unless there is a number of sockets: vCPUs that are sockets can grow while the guest runs.
pub(crate) fn cpu_leaves(merged: &Merged<'_>) -> [Leaf<i64>; 4] {
    let cores = cpu_leaf(merged, "resources.cpu.cores", |cpu| cpu.cores);
    let threads = cpu_leaf(merged, "resources.cpu.threads", |cpu| cpu.threads);
    let sockets = cpu_leaf(merged, "resources.cpu.sockets", |cpu| cpu.sockets);
    let most_cores = max_cores(merged);
    if most_cores.value.is_some() {
        return [sockets, threads, cores, most_cores];
    }
    let most = max_sockets(merged);
    if sockets.value.is_none() && guest_os::is_windows(merged) {
        [sockets, threads, cores, most]
    } else {
        [cores, threads, sockets, most]
    }
}

/// The requested largest number of cores.
pub(super) fn max_cores(merged: &Merged<'_>) -> Leaf<i64> {
    cpu_leaf(merged, "resources.cpu.maxCores", |cpu| cpu.max_cores)
}

/// The requested largest number of sockets.
pub(crate) fn max_sockets(merged: &Merged<'_>) -> Leaf<i64> {
    cpu_leaf(merged, "resources.cpu.maxSockets", |cpu| cpu.max_sockets)
}

pub(super) fn cpu_leaf<'a, T>(
    merged: &Merged<'a>,
    field: &'static str,
    get: fn(&'a Cpu) -> Option<T>,
) -> Leaf<T> {
    merged.pick(
        field,
        |spec: &'a MachineSpec| spec.resources.as_ref()?.cpu.as_ref().and_then(get),
        |template: &'a TemplateContent| template.resources.as_ref()?.cpu.as_ref().and_then(get),
    )
}

/// The CPU topology: rules [`Code::InvalidCpuCount`], [`Code::TooManyVcpus`], [`Code::MaxSocketsTooSmall`] and
/// [`Code::MaxCoresTooSmall`]. `max_vcpus` is what an administrator allows.
fn cpu(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    parts.cpu = topology(subject.merged, subject.max_vcpus, findings);
}

pub(crate) fn topology(
    merged: &Merged<'_>,
    max_vcpus: u32,
    findings: &mut Findings,
) -> Option<NormalizedCpu> {
    let [cores_at, threads_at, sockets_at, max_at] = cpu_leaves(merged);
    let cores = count(cores_at, findings);
    let threads = count(threads_at, findings);
    let sockets = count(sockets_at, findings);
    let max_sockets = match max_at.value {
        None => sockets,
        Some(_) => count(max_at, findings),
    };
    if let (Some(sockets), Some(max)) = (sockets, max_sockets)
        && max < sockets
    {
        let names = if max_cores(merged).value.is_some() {
            (Code::MaxCoresTooSmall, "cores", "maxCores")
        } else {
            (Code::MaxSocketsTooSmall, "sockets", "maxSockets")
        };
        findings.deny(too_small(
            names,
            (max_at.path, max),
            (sockets_at.path, sockets),
        ));
    }
    let cpu = NormalizedCpu {
        sockets: sockets?,
        cores: cores?,
        threads: threads?,
        max_sockets: max_sockets?,
    };
    let factors = [
        (cpu.cores, cores_at.path),
        (cpu.threads, threads_at.path),
        (cpu.sockets, sockets_at.path),
    ];
    vcpus(
        &cpu,
        factors,
        max_at.path,
        max_vcpus.min(VCPUS_MAX),
        findings,
    );
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
            Violation::new(leaf.path, Code::InvalidCpuCount, Kind::Invalid, detail).value(value),
        );
    }
    count
}

/// A maximum below the number to start with: code, name of the number, name of the maximum.
fn too_small(
    (code, name, max_name): (Code, &str, &str),
    (max_at, max): (FieldPath, u32),
    (sockets_at, sockets): (FieldPath, u32),
) -> Violation {
    if max_at.or_user_path(sockets_at) == max_at {
        let detail = format!("must be at least {name}, which is {sockets}");
        Violation::new(max_at, code, Kind::Invalid, detail).value(max)
    } else {
        let detail = format!(
            "must be at most {max_name}, which is {max} in the template; set {max_name} too"
        );
        Violation::new(sockets_at, code, Kind::Invalid, detail).value(sockets)
    }
}

/// Rule [`Code::TooManyVcpus`], at the largest factor.
fn vcpus(
    cpu: &NormalizedCpu,
    factors: [(u32, FieldPath); 3],
    max_at: FieldPath,
    max: u32,
    findings: &mut Findings,
) {
    let grown = NormalizedCpu {
        sockets: cpu.max_sockets.max(cpu.sockets),
        ..*cpu
    };
    let (topology, value, path) = match largest(factors) {
        Some((count, path)) if cpu.vcpus() > max => (cpu, count, path),
        _ if grown.vcpus() > max => (&grown, grown.sockets, max_at),
        _ => return,
    };
    let verb = if max == 1 { "is" } else { "are" };
    let detail = format!(
        "{} are {} vCPUs; at most {max} {verb} allowed",
        layout(topology),
        topology.vcpus()
    );
    findings.deny(Violation::new(path, Code::TooManyVcpus, Kind::Invalid, detail).value(value));
}

/// The factors of the vCPUs.
pub(super) fn layout(cpu: &NormalizedCpu) -> String {
    format!(
        "{} × {} × {}",
        counted(cpu.sockets, "socket"),
        counted(cpu.cores, "core"),
        counted(cpu.threads, "thread")
    )
}

/// The path of the largest factor of the vCPUs, where their number is best changed; of equal ones the cores.
pub(crate) fn largest_factor(merged: &Merged<'_>) -> FieldPath {
    let [cores, threads, sockets, _] = cpu_leaves(merged);
    let factors = [sockets, threads, cores].map(|leaf| (leaf.value.unwrap_or(1), leaf.path));
    largest(factors).map_or(cores.path, |(_, path)| path)
}

/// The largest factor; a factor that the user wrote overrides one of the template.
pub(super) fn largest<N: Copy + Ord + From<u8>>(
    factors: [(N, FieldPath); 3],
) -> Option<(N, FieldPath)> {
    let one = N::from(1);
    let factors = factors.into_iter();
    factors.max_by_key(|(count, path)| (path.is_from_user() && *count > one, *count))
}

/// The requested memory `size` and `maxSize`.
pub(crate) fn memory_leaves<'a>(merged: &Merged<'a>) -> [Leaf<&'a str>; 2] {
    [
        memory_leaf(merged, "resources.memory.size", |memory| {
            memory.size.as_deref()
        }),
        memory_leaf(merged, "resources.memory.maxSize", |memory| {
            memory.max_size.as_deref()
        }),
    ]
}

/// The field that decides how much memory a guest can have at most.
pub(crate) fn largest_memory<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    let [size, max] = memory_leaves(merged);
    if max.value.is_some() { max } else { size }
}

pub(super) fn memory_leaf<'a>(
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
fn memory(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    parts.memory = guest_memory(subject.merged, findings);
}

pub(crate) fn guest_memory(
    merged: &Merged<'_>,
    findings: &mut Findings,
) -> Option<NormalizedMemory> {
    let [size_at, max_at] = memory_leaves(merged);
    if size_at.value.is_none() && merged.is_complete() {
        let detail = "give a size such as '2Gi', or a template that has one";
        let fault = Violation::new(size_at.path, Code::MemoryRequired, Kind::Required, detail);
        findings.deny(fault.unless_faulty(FieldPath::TEMPLATE_LABEL));
    }
    let size = quantities::bytes(size_at, &MEMORY, findings);
    let max_size = match max_at.value {
        None => size,
        Some(_) => quantities::bytes(max_at, &MEMORY, findings),
    };
    let memory = NormalizedMemory {
        size: size?,
        max_size: max_size?,
    };
    if memory.max_size < memory.size {
        findings.deny(max_memory_too_small(&memory, size_at, max_at));
    } else if memory.max_size > memory.size {
        aligned(memory.size, size_at, memory.max_size, findings);
        aligned(memory.max_size, max_at, memory.max_size, findings);
    }
    Some(memory)
}

fn max_memory_too_small(
    memory: &NormalizedMemory,
    size_at: Leaf<&str>,
    max_at: Leaf<&str>,
) -> Violation {
    let NormalizedMemory { size, max_size } = memory;
    let code = Code::MaxMemoryTooSmall;
    if max_at.path.or_user_path(size_at.path) == max_at.path {
        let detail = format!("must be at least the size, which is {size}");
        let shown = max_at.value.unwrap_or_default();
        Violation::new(max_at.path, code, Kind::Invalid, detail).text(shown)
    } else {
        let detail = format!(
            "must be at most maxSize, which is {max_size} in the template; set maxSize too"
        );
        let shown = size_at.value.unwrap_or_default();
        Violation::new(size_at.path, code, Kind::Invalid, detail).text(shown)
    }
}

/// Rule [`Code::MemoryNotAligned`] for one of two sizes of memory that can grow.
fn aligned(bytes: Bytes, leaf: Leaf<&str>, max: Bytes, findings: &mut Findings) {
    if !bytes.is_multiple_of(MEMORY_BLOCK) {
        let detail = format!(
            "must be a multiple of {MEMORY_BLOCK}, because the machine can grow to {max}; the next one is {}",
            bytes.round_up_to(MEMORY_BLOCK)
        );
        let fault = Violation::new(leaf.path, Code::MemoryNotAligned, Kind::Invalid, detail);
        findings.deny(fault.text(leaf.value.unwrap_or_default()));
    }
}
