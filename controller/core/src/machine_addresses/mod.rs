//! IP addresses of Machines: which they need, the locks that they hold, and the release of those locks.
//!
//! ```text
//! pass of a Machine   needs (pure) ─▶ held? ── yes ──▶ given to the backend with the Machine
//!                                      │ no
//!                                      ▼
//!                     create the MachineAddress: its name is the address on its segment, so creating it is the lock
//!                                      │ exists already: another Machine has it ─▶ NetworkReady=False
//! all the time        MachineAddresses whose Machine is gone ─▶ read the Machine live ─▶ delete
//! ```
//! The API server decides who gets an address: two replicas, two namespaces and a restored backup all create an object of
//! the same name. Machines without addresses of their own cost no read and no write.

mod acquire;
mod needs;
pub(crate) mod objects;
mod release;
mod usage;
pub(crate) mod waiting;

use common::render::network_config;

pub(crate) use self::acquire::acquire;
pub use self::objects::{Lock, MachineAddress};
pub use self::release::{Guests, release_addresses};
pub use self::usage::{Attachments, publish};
pub use self::waiting::Waiting;

use crate::machine::Machine;

impl Machine {
    /// Gives the guest its addresses by cloud-init, unless the user gives network data.
    pub(crate) fn render_addresses(&mut self, cluster: &str) {
        let Some(block) = self.desired() else { return };
        let configs = &self.addresses.configs;
        let identity = self.identity(cluster);
        let network = network_config(&identity, &block.networks, |card| configs.get(card));
        let plan = std::mem::take(&mut self.cloud_init);
        self.cloud_init = plan.with_network_configuration(network);
    }
}
