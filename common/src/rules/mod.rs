//! The rules, a file per family, a function per rule.
//!
//! A family's `resolve`-like function turns its part of a [`Merged`](crate::normalize::Merged)
//! intent into the typed part of the block; what stands in the way becomes a violation. So a value
//! that reached a block has passed every rule about it, and no rule is written twice.
//!
//! | file | what it judges |
//! |---|---|
//! | `form` | choices, names, sizes: what any field may need |
//! | `limits` | lengths of lists and texts, before anything walks them |
//! | `references`, `classes` | templates, networks and storage classes against the catalog |
//! | `sizing`, `disks`, `images`, `image_url`, `networks`, `boot`, `firmware`, `machine` | their parts of the block |
//! | `cloud_init` | what cloud-init is given: user data, network data, Secrets |
//! | `names` | names of objects |
//! | `update` | what may become of a Machine that exists |
//! | `uniqueness` | names and addresses against what other Machines have |
//! | `libvirt`, `hosts` | what libvirt cannot do, and what its hosts have not |
//! | `networkconfigurations`, `libvirthosts` | those kinds |
//!
//! `tests/cases` holds a table for each family: what is told of which object, and what passes.

pub(crate) mod boot;
pub(crate) mod classes;
pub(crate) mod cloud_init;
pub(crate) mod disks;
pub(crate) mod firmware;
pub(crate) mod form;
pub(crate) mod hosts;
mod image_url;
mod images;
pub(crate) mod libvirt;
pub(crate) mod libvirthosts;
pub(crate) mod limits;
pub(crate) mod machine;
pub(crate) mod names;
pub(crate) mod networkconfigurations;
pub(crate) mod networks;
pub(crate) mod references;
pub(crate) mod sizing;
pub(crate) mod uniqueness;
pub(crate) mod update;

use crate::api::normalized::{BLOCK_VERSION, Normalized};
use crate::bounds::VCPUS_MAX;
use crate::normalize::{Intent, Merged, Pins, TemplateChoice, merge};
use crate::violation::Findings;

/// Computes the block of an intent, as far as it has one. Faults of the intent are added to
/// `findings`; with any, the block is not fit to be written.
pub fn normalize(intent: &Intent<'_>, pins: &Pins, findings: &mut Findings) -> Option<Normalized> {
    let merged = merge(intent, &pins.template);
    resolve(intent, &merged, pins, VCPUS_MAX, findings)
}

/// [`normalize`] for an intent that is merged already, with the vCPUs an administrator allows.
pub(crate) fn resolve(
    intent: &Intent<'_>,
    merged: &Merged<'_>,
    pins: &Pins,
    max_vcpus: u32,
    findings: &mut Findings,
) -> Option<Normalized> {
    limits::merged_lists(merged, findings);
    let backend = machine::backend(merged, pins.backend, findings);
    // A wrong backend is one fault; what rests on it is judged for the pinned one, and not told.
    let assumed = backend.unwrap_or(pins.backend);
    let power_state = machine::power_state(merged, findings);
    let cpu = sizing::cpu(merged, max_vcpus, findings);
    let memory = sizing::memory(merged, findings);
    let mut disks = disks::disks(merged, assumed, pins, findings);
    let mut networks = networks::networks(merged, findings);
    let mut cdroms = boot::cdroms(merged, assumed, pins, findings);
    let order = boot::boot_order(merged, assumed, findings);
    let features = firmware::features(merged, findings);
    let machine_type = firmware::machine_type(merged, assumed, findings);
    let firmware = firmware::firmware(merged, machine_type, findings);
    machine::node_selector(merged, findings);
    if let (Some(order), Some(disks), Some(networks), Some(cdroms)) =
        (&order, &mut disks, &mut networks, &mut cdroms)
    {
        boot::number(order, disks, cdroms, networks);
    }
    Some(Normalized {
        version: BLOCK_VERSION,
        intent_hash: intent.hash.to_owned(),
        template: match &pins.template {
            TemplateChoice::Pinned(pin) => Some(pin.as_ref().clone()),
            TemplateChoice::None | TemplateChoice::Unknown => None,
        },
        backend: backend?,
        power_state: power_state?,
        guest_shutdown_stops: merged.user().guest_shutdown_stops.unwrap_or(false),
        cpu: cpu?,
        memory: memory?,
        machine_type: machine_type?,
        firmware,
        features,
        disks: disks?,
        cdroms: cdroms?,
        networks: networks?,
        node_selector: merged.user().node_selector.clone().unwrap_or_default(),
    })
}
