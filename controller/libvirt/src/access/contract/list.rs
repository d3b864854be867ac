//! The contracts.

use super::{ALL, Contract, Driver, RUNNING, definitions, guests, volumes};

pub(super) const CONTRACTS: &[Contract] = &[
    Contract {
        name: "info",
        binds: ALL,
        test: definitions::info,
    },
    Contract {
        name: "pools, networks, interfaces",
        binds: ALL,
        test: definitions::surroundings,
    },
    Contract {
        name: "addresses that a DHCP server keeps",
        binds: ALL,
        test: definitions::dhcp,
    },
    Contract {
        name: "define, redefine, undefine",
        binds: ALL,
        test: definitions::definition,
    },
    Contract {
        name: "an access port of Open vSwitch without a VLAN",
        binds: RUNNING,
        test: definitions::access_port,
    },
    Contract {
        name: "a name has one uuid and a uuid one name",
        binds: ALL,
        test: definitions::clashes,
    },
    Contract {
        name: "an invalid definition is refused",
        binds: ALL,
        test: definitions::nonsense,
    },
    Contract {
        name: "objects that do not exist are absent",
        binds: ALL,
        test: definitions::absent,
    },
    Contract {
        name: "our metadata",
        binds: ALL,
        test: definitions::metadata,
    },
    Contract {
        name: "start and stop",
        binds: ALL,
        test: guests::power,
    },
    Contract {
        name: "only a domain that is shut off is undefined",
        binds: ALL,
        test: guests::undefine_running,
    },
    Contract {
        name: "create, resize, delete a volume",
        binds: ALL,
        test: volumes::volumes,
    },
    Contract {
        name: "overlays and copies",
        binds: RUNNING,
        test: volumes::overlays,
    },
    Contract {
        name: "an overlay made from outside keeps its base",
        binds: &[Driver::Qemu],
        test: volumes::overlay_from_outside,
    },
    Contract {
        name: "a pool and a network that are not defined are absent",
        binds: ALL,
        test: volumes::missing_parts,
    },
    Contract {
        name: "content",
        binds: RUNNING,
        test: volumes::content,
    },
    Contract {
        name: "volumes that domains refer to",
        binds: ALL,
        test: volumes::references,
    },
    Contract {
        name: "devices of the host that domains have",
        binds: ALL,
        test: definitions::host_devices,
    },
    Contract {
        name: "CPUs of the host that domains are pinned to",
        binds: ALL,
        test: definitions::pinning,
    },
    Contract {
        name: "a running guest's volume is deleted without a check",
        binds: RUNNING,
        test: volumes::deleted_under,
    },
    Contract {
        name: "devices of a domain that is shut off",
        binds: RUNNING,
        test: guests::devices,
    },
    Contract {
        name: "devices, processors and memory of a guest",
        binds: RUNNING,
        test: guests::live,
    },
    Contract {
        name: "missing objects are found at the start",
        binds: RUNNING,
        test: guests::start_fails,
    },
    Contract {
        name: "a guest without an agent ignores a shutdown request",
        binds: RUNNING,
        test: guests::no_agent,
    },
    Contract {
        name: "NVRAM is removed with the definition, and not before",
        binds: &[Driver::Qemu],
        test: guests::nvram,
    },
];
