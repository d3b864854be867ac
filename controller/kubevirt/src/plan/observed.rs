//! What is known of the cluster that matters to one Machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::render::{Reading, SecretKey};
use controller_core::machine::Machine;
use controller_core::objects::{Network, Secret, Template};

use crate::objects::{Attachment, Claim, DataVolume, Instance, VirtualMachine};

/// What is known of the cluster that matters to one Machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Uid of the cluster.
    pub(crate) cluster: Arc<str>,
    /// Whether KubeVirt's kinds are served.
    pub(crate) kubevirt: bool,
    /// Whether Multus' kind is served.
    pub(crate) multus: bool,
    /// Whether CDI's kind is served.
    pub(crate) cdi: bool,
    /// The VirtualMachine of the Machine's name, whoever made it.
    pub(crate) vm: Option<Arc<VirtualMachine>>,
    /// The instance of the Machine's name.
    pub(crate) instance: Option<Arc<Instance>>,
    /// Claims labelled with the Machine, and claims of the names its volumes' claims have; by name.
    pub(crate) claims: BTreeMap<String, Arc<Claim>>,
    /// DataVolumes, as the claims they are to make.
    pub(crate) data_volumes: BTreeMap<String, Arc<DataVolume>>,
    /// Claims that exist, of those the Machine's volumes are clones of.
    pub(crate) sources: BTreeSet<String>,
    /// Uids of living Machines among those that the claims and DataVolumes were made for.
    pub(crate) living: BTreeSet<String>,
    /// The Secret of the name of the Machine's cloud-init Secret.
    pub(crate) secret: Option<Arc<Secret>>,
    /// Contents of the user's Secrets, as far as they had to be read; `None`: not there.
    pub(crate) contents: BTreeMap<SecretKey, Option<Reading>>,
    /// What the API server answered when a Secret for cloud-init could not be read. `secret` and `contents` are
    /// incomplete then; everything else was observed.
    pub(crate) secrets_error: Option<String>,
    /// Other Machines that have an address of this one on the same network.
    pub(crate) conflicts: Vec<Arc<Machine>>,
    /// NetworkConfigurations the Machine names, by name.
    pub(crate) networks: BTreeMap<String, Arc<Network>>,
    /// Attachments these stand for, by name.
    pub(crate) attachments: BTreeMap<String, Arc<Attachment>>,
    /// StorageClasses the Machine names that exist, and whether their volumes can grow.
    pub(crate) classes: BTreeMap<String, bool>,
    /// The MachineTemplate the block was expanded from, as it is now.
    pub(crate) template: Option<Arc<Template>>,
}
