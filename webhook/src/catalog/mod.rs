//! The objects of the cluster that the rules may read, in memory.
//!
//! ```text
//!  watches ──▶ Cache (small parsed rows) ◀── Overlay (adds the live reads of one review) ◀── rules
//!                                                 ▲
//!             API server ◀── SingleFlight ◀── look_up_all (what the cache does not have)
//! ```

mod admitted;
mod cache;
mod claim;
mod host;
mod lookup;
mod machine;
mod network;
mod node;
mod overlay;
mod rows;
mod single_flight;
mod table;
mod watches;

pub use self::cache::Cache;
pub use self::claim::Claim;
pub use self::host::Host;
pub use self::lookup::{ApiLookup, Found, LiveReads, Lookup, ReadError, look_up_all};
pub use self::machine::Machine;
pub use self::network::Network;
pub use self::overlay::{LiveRow, Overlay};
pub use self::rows::{MachineEntry, template_row};
pub use self::single_flight::{CONCURRENT_READS, SingleFlight};
pub use self::watches::start;

#[cfg(test)]
mod tests;
