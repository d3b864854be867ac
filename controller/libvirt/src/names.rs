//! The name of a domain, by which its volumes are recognised.

use common::render::libvirt::domain_name;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// Name of the domain of a Machine.
pub(crate) fn domain_of(machine: &Machine) -> String {
    domain_name(machine.namespace(), machine.name(), machine.uid())
}

/// Name of the domain of the Machine that a record of a LibvirtHost names: `<namespace>/<name>` and uid.
pub(crate) fn domain_of_record(machine: &str, uid: &str) -> String {
    let (namespace, name) = machine.split_once('/').unwrap_or_default();
    domain_name(namespace, name, uid)
}
