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
        name: "a definition's life",
        binds: ALL,
        test: definitions::definition,
    },
    Contract {
        name: "an access port of Open vSwitch without a VLAN",
        binds: RUNNING,
        test: definitions::access_port,
    },
    Contract {
        name: "names and uuids belong together",
        binds: ALL,
        test: definitions::clashes,
    },
    Contract {
        name: "nonsense is refused",
        binds: ALL,
        test: definitions::nonsense,
    },
    Contract {
        name: "what is not there is absent",
        binds: ALL,
        test: definitions::absent,
    },
    Contract {
        name: "our metadata",
        binds: ALL,
        test: definitions::metadata,
    },
    Contract {
        name: "on and off",
        binds: ALL,
        test: guests::power,
    },
    Contract {
        name: "only what is off is undefined",
        binds: ALL,
        test: guests::undefine_running,
    },
    Contract {
        name: "a volume's life",
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
        name: "who refers to what",
        binds: ALL,
        test: volumes::references,
    },
    Contract {
        name: "a running guest's volume is deleted all the same",
        binds: RUNNING,
        test: volumes::deleted_under,
    },
    Contract {
        name: "devices of one that is off",
        binds: RUNNING,
        test: guests::devices,
    },
    Contract {
        name: "devices, processors and memory of a guest",
        binds: RUNNING,
        test: guests::live,
    },
    Contract {
        name: "what is missing shows at the start",
        binds: RUNNING,
        test: guests::start_fails,
    },
    Contract {
        name: "a guest that does not listen",
        binds: RUNNING,
        test: guests::deaf,
    },
    Contract {
        name: "NVRAM goes with the definition, and not before",
        binds: &[Driver::Qemu],
        test: guests::nvram,
    },
];
