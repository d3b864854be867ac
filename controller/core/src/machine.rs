//! A Machine as the controller keeps it: what is wished, parsed once, at the edge.
//!
//! ```text
//! API server ──wire──▶ Machine ──packed──▶ CachedMachine, in the store ──opened──▶ Machine, for a pass
//! ```

use common::api::choice::{Backend, Phase, TemplateSource};
use common::api::libvirt_host::HostResources;
use common::api::machine::CloudInit;
use common::api::normalized::{BLOCK_VERSION, Normalized};
use common::api::status::MachineStatus;
use common::bounds::TEXT_MAX;
use common::names;
use common::normalize::intent_hash;
use common::quantity::Bytes;
use common::render::{CloudInitPlan, Identity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cache::compressed::Compressed;
use crate::objects::{Meta as _, lenient, prune};
use crate::resource;

/// A Machine, as a pass works on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub metadata: ObjectMeta,
    pub block: Block,
    pub cloud_init: CloudInitPlan,
    pub status: MachineStatus,
}
resource!(
    Machine,
    "Machine",
    "vitistack.io",
    "v1alpha1",
    "machines",
    NamespaceResourceScope
);

/// A Machine at rest, and what is asked of all of them at once.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Wire")]
pub struct CachedMachine {
    /// Which Machine it is, and which version of it: the rest is packed.
    metadata: ObjectMeta,
    pub phase: Option<Phase>,
    /// The template of its block, and where that came from.
    pub template: Option<(TemplateSource, Box<str>)>,
    networks: Names,
    classes: Names,
    /// Secrets that cloud-init is given.
    secrets: Names,
    /// Of a Machine that runs, or is to run, on a libvirt host.
    pub place: Option<Box<Place>>,
    machine: Compressed<Machine>,
}
resource!(
    CachedMachine,
    "Machine",
    "vitistack.io",
    "v1alpha1",
    "machines",
    NamespaceResourceScope
);

/// No resources.
pub const NOTHING: HostResources = HostResources {
    cpu: 0,
    memory: Bytes::new(0),
};

/// vCPUs and memory of a block, on a libvirt host. A guest boots with the most memory that it may have.
pub fn needs(block: &Normalized) -> HostResources {
    HostResources {
        cpu: block.cpu.vcpus(),
        memory: block.memory.max_size.max(block.memory.size),
    }
}

/// NetworkConfigurations that a block names.
pub fn named_networks(block: &Normalized) -> impl Iterator<Item = &str> {
    block
        .networks
        .iter()
        .filter_map(|nic| nic.network_name.as_deref())
}

/// Where a Machine is, and how much room it takes there.
#[derive(Clone, Debug)]
pub struct Place {
    /// LibvirtHost it is bound to.
    pub host: Option<Box<str>>,
    pub needs: HostResources,
}

type Names = Box<[Box<str>]>;

fn names<'a>(names: impl Iterator<Item = &'a str>) -> Names {
    names.map(Box::from).collect()
}

/// Whether there is anything to act on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Block {
    /// The block belongs to its intent.
    Matching(Box<Normalized>),
    /// No block: the webhook was bypassed.
    Missing,
    /// A block of a layout that this release does not know, or that does not decode.
    Unreadable(String),
    /// The block was made of another intent.
    Stale,
}

/// A Machine as the API server sends it.
#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default, deserialize_with = "lenient")]
    status: MachineStatus,
}

impl From<Wire> for Machine {
    fn from(wire: Wire) -> Self {
        let label = wire
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(names::LABEL_TEMPLATE));
        let cloud_init = wire
            .spec
            .get("cloudInit")
            .and_then(|wish| serde_json::from_value::<CloudInit>(wish.clone()).ok())
            .map(|wish| CloudInitPlan::from(&wish))
            .unwrap_or_default();
        Self {
            block: Block::of(&wire.spec, label.map(String::as_str)),
            cloud_init,
            status: wire.status,
            metadata: wire.metadata,
        }
    }
}

impl From<Wire> for CachedMachine {
    fn from(wire: Wire) -> Self {
        Self::from(Machine::from(wire))
    }
}

impl From<Machine> for CachedMachine {
    fn from(mut machine: Machine) -> Self {
        prune(&mut machine.metadata);
        let metadata = ObjectMeta {
            name: machine.metadata.name.clone(),
            namespace: machine.metadata.namespace.clone(),
            uid: machine.metadata.uid.clone(),
            resource_version: machine.metadata.resource_version.clone(),
            ..ObjectMeta::default()
        };
        let wish = || machine.desired().into_iter();
        let pin = machine.desired().and_then(|block| block.template.as_ref());
        let disks = wish().flat_map(|block| &block.disks);
        let disks = disks.map(|disk| disk.storage_class.as_str());
        let cdroms = wish().flat_map(|block| &block.cdroms);
        let cdroms = cdroms.filter_map(|cdrom| cdrom.storage_class.as_deref());
        let secrets = machine.cloud_init.references();
        let place = machine.is_on_libvirt().then(|| {
            let host = machine.status.host.as_deref().map(Box::from);
            let needs = machine.desired().map_or(NOTHING, needs);
            Box::new(Place { host, needs })
        });
        Self {
            place,
            metadata,
            phase: machine.status.phase,
            template: pin.map(|pin| (pin.source, pin.name.as_str().into())),
            networks: names(wish().flat_map(named_networks)),
            classes: names(disks.chain(cdroms)),
            secrets: names(secrets.map(|secret| secret.name.as_str())),
            machine: Compressed::of(&machine),
        }
    }
}

impl CachedMachine {
    /// The Machine, for a pass.
    pub fn open(&self) -> Machine {
        self.machine.open()
    }

    /// What runs the Machine, or is to run it.
    pub fn backend(&self) -> Backend {
        match self.place {
            Some(_) => Backend::Libvirt,
            None => Backend::Kubevirt,
        }
    }

    /// NetworkConfigurations that its block names.
    pub fn networks(&self) -> impl Iterator<Item = &str> {
        self.networks.iter().map(|name| &**name)
    }

    pub fn uses_network(&self, name: &str) -> bool {
        self.networks().any(|known| known == name)
    }

    /// Whether its block names a StorageClass.
    pub fn uses_class(&self, name: &str) -> bool {
        self.classes.iter().any(|known| **known == *name)
    }

    pub fn uses_template(&self, name: &str) -> bool {
        let template = self.template.as_ref();
        template.is_some_and(|(_, known)| **known == *name)
    }

    /// Whether it refers to a Secret of this namespace and name.
    pub fn refers_to(&self, namespace: &str, name: &str) -> bool {
        self.namespace() == namespace && self.secrets.iter().any(|known| **known == *name)
    }

    pub fn refers_to_secrets(&self) -> bool {
        !self.secrets.is_empty()
    }
}

impl Block {
    /// The digest alone tells whether a block belongs to its intent: no lookup, no normalizer.
    fn of(spec: &Value, template_label: Option<&str>) -> Self {
        let Some(raw) = spec.get("normalized").filter(|block| !block.is_null()) else {
            return Self::Missing;
        };
        match raw.get("version").and_then(Value::as_u64) {
            Some(version) if (1..=u64::from(BLOCK_VERSION)).contains(&version) => {}
            Some(version) => {
                return Self::Unreadable(format!(
                    "its version {version} is not known to this release"
                ));
            }
            None => return Self::Unreadable("it has no version".into()),
        }
        let block: Normalized = match serde_json::from_value(raw.clone()) {
            Ok(block) => block,
            Err(error) => return Self::Unreadable(error.to_string()),
        };
        if block.intent_hash == intent_hash(spec, template_label) {
            Self::Matching(Box::new(block))
        } else {
            Self::Stale
        }
    }
}

impl Machine {
    /// Who everything that is made for it belongs to.
    pub fn identity<'a>(&'a self, cluster: &'a str) -> Identity<'a> {
        Identity {
            cluster,
            namespace: self.namespace(),
            name: self.name(),
            uid: self.uid(),
        }
    }

    pub fn generation(&self) -> Option<i64> {
        self.metadata.generation
    }

    /// Whether it runs, or is to run, on a libvirt host. A bound one is told by its status, however broken its
    /// spec may be.
    pub fn is_on_libvirt(&self) -> bool {
        let wish = self.desired();
        self.status.host.is_some() || wish.is_some_and(|block| block.backend == Backend::Libvirt)
    }

    pub fn is_paused(&self) -> bool {
        self.annotation(names::ANNOTATION_PAUSED) == Some("true")
    }

    /// The text that asks for a restart, as far as the status can hold it.
    pub fn restart_request(&self) -> Option<String> {
        let text = self.annotation(names::ANNOTATION_RESTART_REQUESTED)?;
        (!text.is_empty()).then(|| text.chars().take(TEXT_MAX).collect())
    }

    /// What is wished, when there is something to act on.
    pub fn desired(&self) -> Option<&Normalized> {
        match &self.block {
            Block::Matching(block) => Some(block),
            Block::Missing | Block::Unreadable(_) | Block::Stale => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn decode(spec: &Value) -> Machine {
        let stored: CachedMachine =
            serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        stored.open()
    }

    fn spec() -> Value {
        let mut spec = json!({"template": "small", "cloudInit": {"userData": "#cloud-config\n"}});
        let mut block = serde_json::to_value(fixtures::block()).unwrap();
        block["intentHash"] = intent_hash(&spec, None).into();
        spec["normalized"] = block;
        spec
    }

    #[test]
    fn a_block_belongs_to_the_intent_it_was_made_of() {
        let machine = decode(&spec());
        assert!(machine.desired().is_some());
        assert!(!machine.cloud_init.needs_secret());

        let mut edited = spec();
        edited["template"] = "large".into();
        assert_eq!(decode(&edited).block, Block::Stale);
        let mut newer = spec();
        newer["normalized"]["version"] = 7.into();
        assert!(matches!(decode(&newer).block, Block::Unreadable(why) if why.contains('7')));
        let mut broken = spec();
        broken["normalized"]["cpu"] = "many".into();
        assert!(matches!(decode(&broken).block, Block::Unreadable(_)));
        assert_eq!(decode(&json!({"template": "small"})).block, Block::Missing);
        assert_eq!(decode(&Value::Null).block, Block::Missing);
    }

    #[test]
    fn a_field_only_a_newer_release_knows_is_part_of_the_intent() {
        let mut newer = spec();
        newer["someday"] = true.into();
        assert_eq!(decode(&newer).block, Block::Stale);
    }
}
