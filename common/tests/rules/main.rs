//! The rules through the interface of the webhook: objects in, verdicts out.
//!
//! ```text
//! cases/*.yaml ──▶ cases   each object is refused, warned of or accepted as its table says
//!            ├───▶ blocks  cases/blocks: the block of each accepted object, field by field
//!            └───▶ cloud_init  any document gets a verdict that repeats none of its values
//! cases/late.yaml ─▶ late  faults that other components find late or never
//! cases/corpus ──▶ corpus  valid objects, faults and variations of them
//!                  faults  faults are reported alone, in pairs and all together
//! machines ──┬──▶ properties  both stages agree, any JSON gets a verdict, a stored object is kept
//!            ├──▶ laws        the inputs that a block depends on
//!            └──▶ agreement   the CRDs accept what the rules accept
//! updates    changes of each field have the effect of the table of update effects
//! crd        CEL rules of the CRDs and the codes of the same rules
//! stages     catalog and object may change between the two stages
//! bounds     the answer about a very large object has a bounded size
//! harness    objects, catalogs, both stages of a review       paths    fields of violations exist
//! ```
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod agreement;
mod anything;
mod blocks;
mod bounds;
mod cases;
mod cloud_init;
#[path = "../cases/clusters.rs"]
mod clusters;
mod corpus;
mod crd;
mod deletion;
mod faults;
mod harness;
mod hosts;
mod late;
mod laws;
#[path = "../cases/long_texts.rs"]
mod long_texts;
mod machines;
mod paths;
mod properties;
mod stages;
mod updates;
