//! Runs Machines as VirtualMachines of KubeVirt.
//!
//! ```text
//! watch    caches of KubeVirt's, CDI's and Multus' objects; which Machine an event is about
//! observe  caches ─▶ Observed          plan   Observed ─▶ actions and status (pure)
//! apply    one action at the API server
//! ```

mod apply;
mod backend;
mod caches;
#[cfg(test)]
mod environment;
mod evictions;
pub mod images;
pub mod metrics;
mod objects;
mod observe;
mod plan;
mod pod_events;
mod watch;

pub use self::backend::backend;
pub use self::caches::KubeVirtCaches;
pub use self::watch::start as watch;
