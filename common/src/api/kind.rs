//! The kinds of the API by name.

/// A kind that the webhook reviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// `Machine`
    Machine,
    /// `MachineTemplate`
    MachineTemplate,
    /// `NetworkConfiguration`
    NetworkConfiguration,
    /// `LibvirtHost`
    LibvirtHost,
    /// `MachinePolicy`
    MachinePolicy,
    /// `MachineImage`
    MachineImage,
}
