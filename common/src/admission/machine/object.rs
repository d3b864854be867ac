//! A Machine as a review gets it: as it was sent, and as it is stored.

use crate::admission::block::{Block, BlockHeader};
use crate::admission::decode::{self, Metadata, RawObject, Status};
use crate::api::choice::{Backend, Choice as _};
use crate::api::machine::MachineSpec;
use crate::api::normalized::{BLOCK_VERSION, Normalized};
use crate::normalize::{Intent, hash};
use crate::rules::limits;
use crate::violation::Findings;

/// A Machine as sent or as stored.
pub(super) struct Object<'a> {
    pub(super) metadata: Metadata,
    pub(super) spec: MachineSpec,
    pub(super) hash: String,
    /// The block of the spec, which may be any JSON.
    pub(super) block: Option<Block<'a>>,
    pub(super) status: Status,
}

impl<'a> Object<'a> {
    pub(super) fn decode(text: &'a str, findings: &mut Findings) -> Self {
        let RawObject {
            metadata,
            spec,
            status,
        } = decode::object(text, findings);
        Self {
            hash: hash(&spec.intent, metadata.template_label()),
            spec: decode::spec(spec.intent, limits::truncate_machine, findings),
            metadata,
            // Any JSON is accepted here: a wrong block is not a fault of the intent.
            block: spec.block.map(Block),
            status,
        }
    }

    pub(super) fn intent(&self) -> Intent<'_> {
        Intent {
            spec: &self.spec,
            template_label: self.metadata.template_label(),
            hash: &self.hash,
        }
    }

    /// The block, if this release can read it and admission can have written it.
    fn readable_block(&self) -> Option<Normalized> {
        let block = self.block.as_ref()?.parse()?;
        block.check_bounds().is_ok().then_some(block)
    }

    /// The block, if it is readable and matches the intent of the same object.
    pub(super) fn matching_block(&self) -> Option<Normalized> {
        self.readable_block()
            .filter(|block| block.intent_hash == self.hash)
    }

    /// As [`Self::matching_block`], of a new object: its author may have written the block.
    pub(super) fn restored_block(&self) -> Option<Normalized> {
        let block = self.matching_block()?;
        let json = serde_json::from_str(&self.block.as_ref()?.0).ok()?;
        limits::are_lists_within_bounds(json).then_some(block)
    }

    /// Whether another release wrote the block, and its digest matches the intent.
    pub(super) fn has_block_of_another_release(&self) -> bool {
        self.block.as_ref().is_some_and(|block| {
            let BlockHeader {
                version,
                intent_hash,
                ..
            } = block.header();
            intent_hash.as_deref() == Some(&self.hash) && version != Some(BLOCK_VERSION)
        })
    }
}

/// The stored object and its block, if the block matches the intent.
pub(super) struct Old<'a> {
    pub(super) object: Object<'a>,
    pub(super) block: Option<Normalized>,
    /// The block if it does not match the intent: the spec changed, and faults that were not new gave no other block. The
    /// controller made the guest and its disks as it says.
    pub(super) outdated_block: Option<Normalized>,
    /// Faults found while decoding it.
    pub(super) faults: Findings,
}

impl<'a> Old<'a> {
    pub(super) fn decode(text: &'a str) -> Self {
        let mut faults = Findings::default();
        let object = Object::decode(text, &mut faults);
        let (block, outdated_block) = match object.readable_block() {
            Some(block) if block.intent_hash == object.hash => (Some(block), None),
            other => (None, other),
        };
        Self {
            object,
            block,
            outdated_block,
            faults,
        }
    }

    /// The backend that the stored block names, even if the block does not match the intent.
    pub(super) fn backend(&self) -> Option<Backend> {
        let own = self.block.as_ref().map(|block| block.backend);
        own.or_else(|| Backend::parse(self.object.block.as_ref()?.header().backend.as_deref()?))
    }
}
