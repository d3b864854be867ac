//! The rules as their users meet them: objects in, verdicts out.
//!
//! ```text
//! cases/*.yaml ──▶ cases       each says what is refused, warned of, or what it becomes
//!                  properties  what holds for any object: faults add up, stages agree, no panic
//!                  agreement   what the rules accept, the CRDs accept
//! harness          objects, catalogs, both stages of a review       paths  where a fault is told
//! ```
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod agreement;
mod cases;
mod harness;
mod machines;
mod paths;
mod properties;
