//! The order in which the faults of an object are reported.

use crate::violation::Findings;

/// The fields below `spec` of all kinds, in one order for all: mostly that in which each kind declares them.
const FIELDS: [&str; 61] = [
    "description",
    "deprecated",
    "uri",
    "credentialsSecretRef",
    "virtType",
    "cpuMode",
    "schedulable",
    "maintenance",
    "overcommit",
    "reserved",
    "storage",
    "imagePool",
    "consoleLogPool",
    "existingVolumes",
    "imageSources",
    "template",
    "backend",
    "powerState",
    "guestShutdownStops",
    "deletionProtection",
    "source",
    "os",
    "minDiskSize",
    "firmware",
    "defaultUser",
    "drivers",
    "resources",
    "disks",
    "networks",
    "bootOrder",
    "cdroms",
    "dedicatedCpus",
    "devices",
    "watchdog",
    "probes",
    "cloudInit",
    "display",
    "console",
    "domain",
    "terminationGracePeriodSeconds",
    "evictionStrategy",
    "hardware",
    "placement",
    "nodeSelector",
    "backendOverrides",
    "normalized",
    "vlan",
    "bridge",
    "ipam",
    "mtu",
    "networkAttachmentDefinition",
    "namespaceSelector",
    "annotations",
    "backends",
    "templates",
    "storageClasses",
    "libvirtHosts",
    "images",
    "reclaimPolicies",
    "limits",
    "quota",
];

/// Sorts faults by the field that they name. Faults of the name, the labels and the annotations come first.
pub(super) fn sort(findings: &mut Findings) {
    findings.violations.sort_by_cached_key(|violation| {
        let field = violation.field.strip_prefix("spec.").unwrap_or_default();
        let end = field.find(['.', '[']).unwrap_or(field.len());
        let (first, rest) = field.split_at(end);
        let index: Option<usize> = rest
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
            .and_then(|(index, _)| index.parse().ok());
        (FIELDS.iter().position(|name| *name == first), index)
    });
}

// The CRDs have the fields of the API.
#[cfg(all(test, feature = "kube"))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use crate::api::crd_files;

    #[test]
    fn every_field_of_the_reviewed_kinds_has_a_place() {
        let files = crd_files().unwrap();
        let reviewed = files.iter().filter(|it| it.file != "machineaddresses.yaml");
        let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
        let fields: BTreeSet<&str> = reviewed
            .flat_map(|it| it.definition.pointer(spec).unwrap().as_object().unwrap())
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(fields, BTreeSet::from(FIELDS));
    }
}
