//! Third-party kinds in a lab: KubeVirt's and Multus' CRDs, and storage classes.
//!
//! The CRDs here are thin: they accept any field. That is enough for the simulator, but checks no fields.
//! With [`KubevirtCrds::Real`] the lab installs KubeVirt's own schemas instead.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{install, paths};

/// The definitions of KubeVirt's kinds in a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubevirtCrds {
    /// None: KubeVirt is not installed.
    Absent,
    /// Thin ones, which accept any field.
    Thin,
    /// KubeVirt's own, from beside the repository.
    Real,
}

impl KubevirtCrds {
    /// [`KubevirtCrds::Real`] if a checkout of them is beside the repository. If there is none, the calling test
    /// continues with thin ones and is listed as skipped, because it checks no field against KubeVirt's schemas.
    pub fn best() -> Self {
        if paths::real_kubevirt_crds().is_some() {
            return Self::Real;
        }
        crate::skip("fields are not checked: KubeVirt's own CRDs are not beside the repository");
        Self::Thin
    }

    pub(crate) fn objects(self) -> Result<Vec<Value>> {
        match self {
            Self::Absent => Ok(Vec::new()),
            Self::Thin => Ok(vec![
                thin_crd("kubevirt.io", "v1", "VirtualMachine", &["vm", "vms"], true),
                // As in KubeVirt: the status of an instance is not a subresource.
                thin_crd(
                    "kubevirt.io",
                    "v1",
                    "VirtualMachineInstance",
                    &["vmi", "vmis"],
                    false,
                ),
                thin_crd("kubevirt.io", "v1", "KubeVirt", &["kv"], true),
                migrations(),
            ]),
            Self::Real => {
                let folder = paths::real_kubevirt_crds()
                    .context("KubeVirt's own CRDs are not beside the repository")?;
                ["virtualmachines", "virtualmachineinstances", "kubevirts"]
                    .iter()
                    .map(|name| {
                        let path = folder.join(format!("{name}.kubevirt.io.yaml"));
                        let text = fs::read_to_string(&path)
                            .with_context(|| format!("reading {}", path.display()))?;
                        let mut objects = install::parse(&text)?;
                        objects.pop().context("an empty file")
                    })
                    .chain([Ok(migrations())])
                    .collect()
            }
        }
    }
}

/// The CRD of KubeVirt's migrations. Its schema is not among those that are beside the repository.
fn migrations() -> Value {
    let kind = "VirtualMachineInstanceMigration";
    thin_crd("kubevirt.io", "v1", kind, &["vmim", "vmims"], true)
}

/// The CRD of Multus' `NetworkAttachmentDefinition`.
pub(crate) fn network_attachment_definitions() -> Value {
    let mut crd = thin_crd(
        "k8s.cni.cncf.io",
        "v1",
        "NetworkAttachmentDefinition",
        &["net-attach-def"],
        false,
    );
    // Not the kind with an `s`, as all others are.
    let plural = "network-attachment-definitions";
    crd["metadata"]["name"] = json!(format!("{plural}.k8s.cni.cncf.io"));
    crd["spec"]["names"]["plural"] = json!(plural);
    crd["spec"]["names"]["singular"] = json!("network-attachment-definition");
    crd
}

/// A third-party CRD whose objects may have any field.
pub fn thin_crd(group: &str, version: &str, kind: &str, short: &[&str], status: bool) -> Value {
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    let subresources = if status {
        json!({"status": {}})
    } else {
        json!({})
    };
    let column = |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": kind, "listKind": format!("{kind}List"),
                "plural": plural, "singular": singular, "shortNames": short,
            },
            "versions": [{
                "name": version, "served": true, "storage": true,
                "subresources": subresources,
                "additionalPrinterColumns": [
                    column("Phase", ".status.phase"),
                    column("Status", ".status.printableStatus"),
                    column("Node", ".status.nodeName"),
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                }},
            }],
        },
    })
}

/// The provisioner that the simulator replaces.
pub(crate) const PROVISIONER: &str = "simulator.vitistack.io";

/// `standard` is the default and cannot grow; `fast-ssd` can; so can `replicated`.
pub(crate) fn storage_classes() -> Vec<Value> {
    [
        ("standard", true, false),
        ("fast-ssd", false, true),
        ("replicated", false, true),
    ]
    .iter()
    .map(|(name, default, expansion)| storage_class(name, *default, *expansion))
    .collect()
}

/// A storage class whose claims the simulator binds.
pub fn storage_class(name: &str, default: bool, expansion: bool) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": name,
            "annotations": {
                "storageclass.kubernetes.io/is-default-class": default.to_string(),
            },
        },
        "provisioner": PROVISIONER,
        "allowVolumeExpansion": expansion,
    })
}
