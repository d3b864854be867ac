//! The rules: which objects the webhook refuses, and what it warns of.
//!
//! [`ALL`] lists them in the order in which they run. Each entry names the family, the function, the
//! codes, the kinds and stages, and how much of it the CRDs refuse as well. It is in the file of
//! the rule, beside the function and the texts of the codes. Validation, the documentation and the
//! completeness tests read this list; a rule that is not in it does not run.
//!
//! A function of [`rule::Check::Part`] turns its part of a [merged](crate::normalize::Merged) spec into the typed part of the
//! block; what prevents that becomes a violation. So a value that reached a block has passed every rule
//! about it, and no rule is written twice.
//!
//! `tests/cases` holds a table for each family: objects that are refused with their messages, and
//! objects that are accepted.

mod affinity;
mod block;
mod boot;
mod boot_image;
mod classes;
mod clock;
pub(crate) mod cloud_init;
mod disks;
pub(crate) mod display;
mod existing_claims;
mod firmware;
pub(crate) mod form;
pub(crate) mod growth;
mod guest_os;
pub(crate) mod hardware;
mod health;
mod hosts;
mod image_names;
mod image_url;
mod images;
mod ipam;
mod kubevirt;
mod libvirt;
pub(crate) mod libvirthosts;
pub(crate) mod limits;
pub(crate) mod machine;
mod machineimages;
pub(crate) mod machinepolicies;
mod migration;
mod name_form;
mod names;
mod networkconfigurations;
mod networks;
mod nic_addresses;
mod offered;
mod overrides;
mod placement;
mod policies;
mod probes;
mod quantities;
mod references;
mod resolve;
mod room;
pub(crate) mod rule;
mod sizing;
mod stages;
mod state;
mod uniqueness;
pub mod update;

pub(crate) use block::{BLOCK, block_edited, block_mismatch, block_missing, more_differences};
pub(crate) use classes::{kept as kept_classes, restored as restored_classes};
pub use cloud_init::{CloudInitSchema, SchemaError};
pub(crate) use disks::hotplug::hotpluggable;
pub(crate) use disks::kept_reclaim_policies;
pub(crate) use firmware::kept as kept_defaults;
pub(crate) use image_names::kept as kept_images;
pub use migration::libvirt::{
    check_labels_of_policies, check_shared_storage, obstacle as obstacle_to_move,
};
pub(crate) use offered::device_kinds;
pub(crate) use policies::settings::{annotation_keys, default_reclaim_policy, policies_of};
pub use resolve::normalize;
pub(crate) use resolve::resolve;
pub(crate) use rule::{GuestReport, PendingValue};
pub use rule::{MissingNetworks, Rule, RuleStage, Settings};
pub(crate) use stages::{
    check_deletion, check_host, check_image, check_migration, check_name, check_network,
    check_policies, check_policy, check_template, check_update, choose_images, choose_template,
    look_up, warn_of_creation, warn_of_effects,
};

use crate::code::Code;

/// Every rule, file by file, in the order in which they run.
pub const ALL: &[&[Rule]] = &[
    form::RULES,
    quantities::RULES,
    limits::RULES,
    names::RULES,
    references::RULES,
    image_names::RULES,
    classes::RULES,
    libvirt::RULES,
    kubevirt::RULES,
    offered::RULES,
    migration::RULES,
    overrides::RULES,
    hosts::RULES,
    room::RULES,
    uniqueness::RULES,
    existing_claims::RULES,
    cloud_init::RULES,
    machine::RULES,
    placement::RULES,
    affinity::RULES,
    guest_os::RULES,
    sizing::RULES,
    growth::RULES,
    hardware::RULES,
    health::RULES,
    probes::RULES,
    disks::lists::RULES,
    disks::RULES,
    disks::existing::RULES,
    images::RULES,
    networks::RULES,
    nic_addresses::RULES,
    boot::RULES,
    firmware::RULES,
    display::RULES,
    state::RULES,
    clock::RULES,
    update::refused::RULES,
    update::discarded::RULES,
    update::deleting::RULES,
    update::warnings::RULES,
    update::kept::RULES,
    networkconfigurations::RULES,
    ipam::RULES,
    libvirthosts::RULES,
    libvirthosts::hardware::RULES,
    libvirthosts::images::RULES,
    libvirthosts::limits::RULES,
    machinepolicies::RULES,
    machineimages::RULES,
    policies::choices::RULES,
    policies::hardware::RULES,
    policies::limits::RULES,
    policies::networks::RULES,
    policies::placement::RULES,
    policies::quota::RULES,
    block::RULES,
];

/// The families, in the order of the documentation. Each has a table of cases of its name.
pub const FAMILIES: [&str; 23] = [
    "form",
    "references",
    "sizing",
    "hardware",
    "health",
    "disks",
    "networks",
    "boot",
    "firmware",
    "display",
    "machine",
    "migration",
    "overrides",
    "cloud-init",
    "names",
    "networkconfigurations",
    "libvirt",
    "libvirthosts",
    "policies",
    "machinepolicies",
    "machineimages",
    "update",
    "block",
];

/// Every rule, in the order in which they run.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    ALL.iter().copied().flatten()
}

/// Every code once, family by family.
pub fn codes() -> Vec<Code> {
    let mut codes: Vec<Code> = Vec::new();
    for family in FAMILIES {
        for code in all().flat_map(|rule| rule.codes) {
            if code.family() == family && !codes.contains(code) {
                codes.push(*code);
            }
        }
    }
    codes
}
