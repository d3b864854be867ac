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
