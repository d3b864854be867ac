//! The rules as their users meet them: objects in, verdicts out.
//!
//! ```text
//! cases/*.yaml ──▶ cases   each says what is refused, what is warned of, or what it becomes
//! machines ──┬──▶ faults      they add up
//!            ├──▶ properties  stages agree, anything gets a verdict, what is stored stays
//!            ├──▶ agreement   what the rules accept, the CRDs accept
//!            └──▶ policies    what an update may change
//!                stages      what lies between them is not always ours
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
mod cases;
mod corpus;
mod faults;
mod harness;
mod laws;
mod machines;
mod paths;
mod policies;
mod properties;
mod stages;
