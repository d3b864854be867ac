//! The rules as their users meet them: objects in, verdicts out.
//!
//! ```text
//! cases/*.yaml ──▶ cases   each says what is refused, what is warned of, or what it becomes
//!            ├───▶ blocks  cases/blocks: what each accepted one becomes, field by field
//!            └───▶ cloud_init  any document gets a verdict, and none is repeated in it
//! cases/late.yaml ─▶ late  what others find late or never
//! cases/corpus ──▶ corpus  sound objects, faults and variations of them
//!                  faults  they add up: alone, with each other, all together
//! machines ──┬──▶ properties  stages agree, anything gets a verdict, what is stored stays
//!            ├──▶ laws        what a block depends on, and what not
//!            ├──▶ agreement   what the rules accept, the CRDs accept
//!            └──▶ policies    what an update may change
//! crd        the CEL rules of the CRDs belong to codes
//!                stages      what lies between them is not always ours
//!                bounds      however long an object is, what is told of it is not
//! harness    objects, catalogs, both stages of a review       paths    where a fault is told
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
