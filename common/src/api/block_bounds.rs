//! What every block that admission writes holds and the schema of the CRD cannot say: amounts, products and unique
//! names. A block that does not hold it was written without admission.

use std::collections::BTreeSet;
use std::fmt;

use super::choice::Backend;
use super::normalized::{Normalized, NormalizedCpu};
use crate::bounds::{CAPACITY_MAX, CAPACITY_MIN, MEMORY_MAX, MEMORY_MIN, VCPUS_MAX};
use crate::names::may_carry_annotation;
use crate::quantity::Bytes;
use crate::words::quoted;

/// A value that admission does not write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, and {allowed}")]
pub struct OutOfBounds {
    /// Path of the value in the block, such as `memory.size`.
    pub field: String,
    /// The value as it is in the block.
    pub value: String,
    /// What is allowed, as part of a sentence: `it must be from 32Mi to 12Ti`.
    pub allowed: String,
}

impl Normalized {
    /// Checks the bounds of all amounts and that no name occurs twice. Returns the first value that is out of bounds.
    pub fn check_bounds(&self) -> Result<(), OutOfBounds> {
        self.cpu.check_bounds()?;
        let memory = &self.memory;
        let (least, most) = (Bytes::new(MEMORY_MIN), Bytes::new(MEMORY_MAX));
        within("memory.size", memory.size, least, most)?;
        within("memory.maxSize", memory.max_size, memory.size, most)?;

        let disks = self.disks.iter().map(|disk| (&disk.name, Some(disk.size)));
        let cdroms = self.cdroms.iter().map(|cdrom| (&cdrom.name, cdrom.size));
        let existing = self.existing_disks.iter().map(|disk| (&disk.name, None));
        let lists = disks.map(|disk| ("disks", disk));
        let lists = lists.chain(existing.map(|disk| ("existingDisks", disk)));
        let lists = lists.chain(cdroms.map(|cdrom| ("cdroms", cdrom)));
        let (least, most) = (Bytes::new(CAPACITY_MIN), Bytes::new(CAPACITY_MAX));
        let mut volumes = BTreeSet::new();
        for (list, (name, size)) in lists {
            unique(list, name, &mut volumes)?;
            if let Some(size) = size {
                within(format!("{list}[{name}].size"), size, least, most)?;
            }
        }
        let is_carried = |key: &str| self.backend == Backend::Kubevirt && may_carry_annotation(key);
        if let Some(key) = self.annotation_keys.iter().find(|key| !is_carried(key)) {
            return Err(OutOfBounds {
                field: "annotationKeys".to_owned(),
                value: quoted(key),
                allowed: "guests have no annotation of this key from a Machine".to_owned(),
            });
        }
        for disk in &self.existing_disks {
            let (field, has_it) = match self.backend {
                Backend::Kubevirt => ("claimName", (true, false)),
                Backend::Libvirt => ("volumeName", (false, true)),
            };
            let is_shared = self.backend == Backend::Libvirt && disk.shareable;
            let has = (disk.claim_name.is_some(), disk.volume_name.is_some());
            if has != has_it || is_shared {
                return Err(OutOfBounds {
                    field: format!("existingDisks[{}]", disk.name),
                    value: quoted(disk.source()),
                    allowed: format!("{field} alone, and shareable on KubeVirt only"),
                });
            }
        }
        let mut cards = BTreeSet::new();
        let mut names = self.networks.iter().map(|nic| &nic.name);
        names.try_for_each(|name| unique("networks", name, &mut cards))
    }
}

impl NormalizedCpu {
    fn check_bounds(&self) -> Result<(), OutOfBounds> {
        let grown = Self {
            sockets: self.max_sockets,
            ..*self
        };
        within("cpu.sockets", self.sockets, 1, VCPUS_MAX)?;
        within("cpu.maxSockets", self.max_sockets, self.sockets, VCPUS_MAX)?;
        within("cpu", grown.vcpus(), 1, VCPUS_MAX)
    }
}

fn within<T: Ord + Copy + fmt::Display>(
    field: impl Into<String>,
    value: T,
    least: T,
    most: T,
) -> Result<(), OutOfBounds> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(OutOfBounds {
        field: field.into(),
        value: value.to_string(),
        allowed: format!("it must be from {least} to {most}"),
    })
}

/// Adds the name; fails if it was there.
fn unique<'a>(list: &str, name: &'a str, known: &mut BTreeSet<&'a str>) -> Result<(), OutOfBounds> {
    if known.insert(name) {
        return Ok(());
    }
    Err(OutOfBounds {
        field: format!("{list}[].name"),
        value: name.to_owned(),
        allowed: "it must occur only once".to_owned(),
    })
}
