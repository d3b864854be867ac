//! The plan for a Machine: a pure function of its desired and its observed state.
//!
//! ```text
//!            ┌─ deleted ──────▶ delete: protection off → state kept → VM → VM and VMI gone → claims by policy →
//!            │                          finalizer
//! Machine ───┼─ no block ─────▶ status alone
//!            └─ else ─────────▶ create: protection → networks → storage → Secret → VM → restart → releases →
//!                                       migration → growth → reset → status
//! ```
//! Time is a parameter and everything observed is in [`Observed`]; there is no API call and no randomness. A plan can
//! be repeated after an interruption at any point: each action names the object by uid, or creates one that must not
//! exist.

pub(crate) mod action;
mod changes;
mod create;
mod delete;
mod existing;
mod guest_size;
mod import;
mod loss;
mod migration;
mod network;
pub(crate) mod observed;
mod others;
mod pending;
mod protection;
mod release;
mod restart;
mod running;
mod shared_import;
pub(crate) mod state;
mod status;
mod storage;
#[cfg(test)]
mod tests;
mod vm;
mod volume;

pub(crate) use self::action::Action;
pub(crate) use self::create::{REASONS, plan, report_unfit};
pub(crate) use self::delete::teardown;
pub(crate) use self::existing::{guest_has, in_use};
pub(crate) use self::observed::{
    Eviction, ExistingClaim, Observed, POD_START_TIMEOUT, PodWarning, RequestedMigration,
};
pub(crate) use self::storage::can_adopt;
pub(crate) use self::vm::covers;
