//! The block `spec.normalized` that a request brings. `admission` compares it with the computed one; the
//! messages are here.

use crate::code::Code;
use crate::violation::{Kind, Violation};
use crate::words::counted;

use super::rule::{Check, rules};

/// Path of the block.
pub(crate) const BLOCK: &str = "spec.normalized";

rules! {
    "block" Check::Block, on MACHINES, Update {
        Refuse NormalizedEdited = "spec.normalized was edited by hand."
            because "The block is what the spec resolved to; edited by hand it would contradict the spec."
            fix "Delete `spec.normalized` from the file and edit the field that the message names."
            crd Some,
    }
    "block" Check::Block, on MACHINES, Always {
        Refuse NormalizedMismatch = "spec.normalized is not what the rest of the spec resolves to."
            because "Only what the mutating webhook computed may be stored; something changed or bypassed it."
            fix "Send the object without `spec.normalized`; if that does not help, look at other webhooks and at the installation."
            crd Nothing,
    }
}

/// Rule [`Code::NormalizedEdited`]: the value at `path` was changed by hand. It is computed from the
/// field `source`.
pub(crate) fn block_edited(path: &str, source: &str) -> Violation {
    let detail =
        format!("is written by the webhook; delete {BLOCK} from your file and edit {source}");
    Violation::new(path, Code::NormalizedEdited, Kind::Forbidden, detail)
}

/// Rule [`Code::NormalizedMismatch`] for an object without a block.
pub(crate) fn block_missing() -> Violation {
    let detail = "the mutating webhook did not write it; check that its configuration is installed";
    Violation::new(BLOCK, Code::NormalizedMismatch, Kind::Required, detail)
}

/// Rule [`Code::NormalizedMismatch`]: the value at `path` is not the one that is computed from the field
/// `source`.
pub(crate) fn block_mismatch(path: &str, source: &str) -> Violation {
    let detail = format!(
        "does not follow from the rest of the spec; delete {BLOCK} from your file and edit {source}"
    );
    Violation::new(path, Code::NormalizedMismatch, Kind::Invalid, detail)
}

/// Detail of the violation for the values beyond those that are reported one by one.
pub(crate) fn more_differences(count: usize) -> String {
    let more = counted(count, "more difference");
    format!("has {more}; delete {BLOCK} from your file")
}
