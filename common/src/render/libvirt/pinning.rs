//! CPUs of the host that the threads of a guest run on.
//!
//! ```text
//! vcpu cpuset    the shared CPUs: all threads of a guest, unless a vCPU is pinned
//! vcpupin        one CPU for each vCPU of a guest with dedicated CPUs, also for those that are plugged in later
//! ```

use std::collections::{BTreeMap, BTreeSet};

use roxmltree::Node;

use super::xml::{self, Element, XmlError, all, attribute, find};
use crate::cpu_list::CpuList;

/// Where the vCPUs of a guest run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinning {
    /// CPU of each vCPU, by the number of the vCPU; empty: the guest has no dedicated CPUs.
    pub dedicated: Vec<u32>,
    /// CPUs of all other threads of the guest; `None`: any.
    pub shared: Option<CpuList>,
}

impl Pinning {
    pub(super) fn elements(&self) -> impl Iterator<Item = Element> {
        let pins = self.dedicated.iter().enumerate();
        pins.map(|(vcpu, cpu)| {
            Element::new("vcpupin")
                .attr("vcpu", vcpu)
                .attr("cpuset", cpu)
        })
    }

    /// The dedicated CPUs as text.
    pub(super) fn describe(&self) -> String {
        if self.dedicated.is_empty() {
            return "none".to_owned();
        }
        let cpus = self.dedicated.iter().copied().collect();
        format!("CPUs {}", CpuList(cpus))
    }

    /// What libvirt writes otherwise, as an administrator may, is as good as no pinning.
    pub(super) fn parse(domain: Node<'_, '_>) -> Self {
        let shared = attribute(domain, &["vcpu"], "cpuset");
        let pins: BTreeMap<u32, BTreeSet<u32>> = pins(domain).collect();
        let dedicated = pins.values().map(|cpus| match Vec::from_iter(cpus)[..] {
            [cpu] => Some(*cpu),
            _ => None,
        });
        Self {
            dedicated: dedicated.collect::<Option<_>>().unwrap_or_default(),
            shared: shared.and_then(|text| text.parse().ok()),
        }
    }
}

/// The CPUs that each vCPU of a domain is pinned to.
fn pins<'a>(domain: Node<'a, '_>) -> impl Iterator<Item = (u32, BTreeSet<u32>)> + use<'a> {
    let tune = find(domain, &["cputune"]).into_iter();
    let pins: Vec<_> = tune
        .flat_map(|tune| all(tune, "vcpupin"))
        .filter_map(|pin| {
            let cpus: CpuList = pin.attribute("cpuset")?.parse().ok()?;
            Some((pin.attribute("vcpu")?.parse().ok()?, cpus.0))
        })
        .collect();
    pins.into_iter()
}

/// The CPUs that vCPUs of a domain are pinned to. It accepts any domain, also one that this operator did not create.
pub fn pinned_cpus(xml: &str) -> Result<BTreeSet<u32>, XmlError> {
    let document = xml::document(xml)?;
    Ok(pins(document.root_element())
        .flat_map(|(_, cpus)| cpus)
        .collect())
}
