//! What to do about a Machine on a libvirt host: a pure function of the desired state and what was observed.
//!
//! ```text
//!            ┌─ deleted ───────▶ guest off → definition gone → volumes by policy → seed → finalizer
//! Machine ───┼─ not to act on ─▶ status alone (no block, host unreachable or in maintenance)
//!            ├─ unbound ───────▶ bind it to a host, and nothing else
//!            ├─ moved ─────────▶ leave the host that it was on, and nothing else
//!            └─ else ──────────▶ images → volumes → seed → definition or devices → DHCP entries → power → deletions → growth →
//!                              password → reset → status
//! ```
//! No clock, no host, no randomness. A plan is safe to repeat from any point: an operation of several steps is
//! recorded in the domain's metadata before the first of them, and a domain is touched only if its uuid and its
//! metadata are the Machine's.

pub(crate) mod action;
pub(crate) mod create;
mod definition;
pub(crate) mod delete;
mod desired;
mod dhcp;
pub(crate) mod disks;
mod display;
mod hardware;
pub(crate) mod held;
mod moving;
mod other_hosts;
mod power;
mod release;
mod room;
mod seed;
mod status;
mod steps;
#[cfg(test)]
mod tests;
mod unseen;
mod volumes;
