//! Machines and NetworkConfigurations, compared with the MachinePolicies of their namespace.
//!
//! ```text
//! choices   backend, template, storage classes, hosts     images   what disks are filled with
//! networks  cards and NetworkConfigurations               limits   sizes and numbers of one Machine
//! hardware  dedicated CPUs, huge pages, devices, priorities
//! placement tolerations, affinities, spreads
//! quota     all Machines of the namespace together     settings  what they set for its Machines
//! ```
//! Each function reads one policy, and all policies of a namespace hold. A message names the policy and what it
//! allows. It does not depend on other policies, so a violation that the stored object has as well becomes a warning;
//! of an amount, only growth is refused.

pub(super) mod choices;
pub(super) mod hardware;
mod images;
pub(super) mod limits;
mod message;
pub(super) mod networks;
pub(super) mod placement;
pub(super) mod quota;
pub(super) mod settings;
