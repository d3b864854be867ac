//! What to do about a Machine: a pure function of what is wished and what is there.
//!
//! ```text
//!            ┌─ deleted ──────▶ delete: VM → VM and VMI gone → claims by policy → finalizer
//! Machine ───┼─ not to act on ▶ status alone (no block, paused, another backend)
//!            └─ else ─────────▶ create: finalizer → network → storage → Secret → VM → status
//! ```
//! No clock, no API, no randomness: time is a parameter and everything known is in [`Observed`].
//! A plan is safe to repeat from any point: each action names the object by uid, or makes one that
//! must not exist yet.

pub(crate) mod action;
mod create;
mod delete;
mod import;
mod network;
pub(crate) mod observed;
mod pending;
mod release;
mod restart;
mod status;
mod storage;
#[cfg(test)]
mod tests;
mod vm;
mod volume;

pub(crate) use self::action::Action;
pub(crate) use self::create::plan;
pub(crate) use self::delete::teardown;
pub(crate) use self::observed::Observed;
