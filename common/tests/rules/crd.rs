//! Which codes each CEL rule of the CRDs corresponds to. The API types cannot refer to rules, which are in
//! a layer above, so this table connects the two.

use std::collections::BTreeSet;

use common::code::{Code, CrdCoverage};
use common::rules;
use serde_json::Value;

use crate::corpus::KINDS;
use crate::harness::kind_name;
use crate::paths::schema;

/// The beginning of each CEL rule's message, and the codes under which the webhook refuses the same.
const CEL: [(&str, &[Code]); 74] = [
    ("an answer file is in place of", &[Code::SysprepExclusive]),
    ("persistent needs efi", &[Code::PersistentNeedsEfi]),
    (
        "persistent needs a TPM that is enabled",
        &[Code::PersistentNeedsTpm],
    ),
    ("the name of a ", &[Code::InvalidName]),
    (
        "small, medium and large are built in",
        &[Code::TemplateNameReserved],
    ),
    ("backend cannot change", &[Code::BackendChanged]),
    (
        "normalized.backend cannot change",
        &[Code::NormalizedEdited],
    ),
    (
        "disks and CD-ROMs share one set of names",
        &[Code::DuplicateDiskName],
    ),
    (
        "each network card needs a MAC address",
        &[Code::DuplicateMac],
    ),
    (
        "no CD-ROM holds an image to boot from",
        &[Code::BootWithoutCdrom],
    ),
    (
        "KubeVirt imports the image of a CD-ROM",
        &[Code::CdromSizeRequired],
    ),
    (
        "image.volume needs backend: libvirt",
        &[Code::ImageVolumeNeedsLibvirt],
    ),
    (
        "image.secretRef needs backend: libvirt",
        &[Code::ImageSecretNeedsLibvirt],
    ),
    (
        "secretRef needs a url that begins with https://",
        &[Code::InvalidImageSecret],
    ),
    (
        "KubeVirt runs pc-q35 only",
        &[Code::MachineTypeNeedsLibvirt],
    ),
    (
        "KubeVirt's VNC takes no password",
        &[Code::DisplayPasswordNeedsLibvirt],
    ),
    (
        "a machine without a display takes no other field",
        &[Code::NoDisplay],
    ),
    (
        "selector and claimName of a disk need",
        &[Code::VolumeNeedsKubevirt],
    ),
    (
        "a libvirt host is not drained",
        &[Code::EvictionStrategyNeedsKubevirt],
    ),
    (
        "a libvirt host has no taints",
        &[Code::TolerationsNeedKubevirt],
    ),
    (
        "a toleration of taints of any key needs",
        &[Code::InvalidToleration],
    ),
    (
        "operator: Exists tolerates any value",
        &[Code::InvalidToleration],
    ),
    ("tolerationSeconds needs", &[Code::InvalidToleration]),
    (
        "image.persistentVolumeClaim needs",
        &[Code::ImageNeedsKubevirt],
    ),
    (
        "an image.url that begins with docker://",
        &[Code::ImageNeedsKubevirt],
    ),
    (
        "a device can be offered by one name only",
        &[Code::DuplicateOffer],
    ),
    (
        "a host that is reached by tls or ssh",
        &[Code::CredentialsRequired],
    ),
    (
        "each value may occur only once",
        &[Code::DuplicateBootDevice],
    ),
    (
        "size must be from 32Mi",
        &[
            Code::MemoryTooSmall,
            Code::MemoryTooLarge,
            Code::UnitMissing,
        ],
    ),
    (
        "maxSize must be from 32Mi",
        &[Code::MemoryTooSmall, Code::MemoryTooLarge],
    ),
    (
        "size must be from 1Mi",
        &[Code::DiskTooSmall, Code::DiskTooLarge],
    ),
    ("maxSize must be at least size", &[Code::MaxMemoryTooSmall]),
    (
        "size and maxSize must be multiples",
        &[Code::MemoryNotAligned],
    ),
    (
        "is reserved for a volume that the operator",
        &[Code::ReservedDiskName],
    ),
    (
        "maxSockets must be at least sockets",
        &[Code::MaxSocketsTooSmall],
    ),
    (
        "maxCores and maxSockets exclude each other",
        &[Code::MaxCoresWithMaxSockets],
    ),
    (
        "with maxCores each core is a socket",
        &[Code::MaxCoresWithSockets],
    ),
    ("dedicated CPUs cannot grow", &[Code::MaxCoresWithDedicated]),
    ("maxCores must be at least cores", &[Code::MaxCoresTooSmall]),
    ("cores × threads × sockets must be", &[Code::TooManyVcpus]),
    (
        "a core of dedicated CPUs has at most two threads",
        &[Code::TooManyDedicatedThreads],
    ),
    (
        "no scheduler places a Machine on libvirt",
        &[Code::AffinityNeedsKubevirt],
    ),
    (
        "a libvirt host stops no guest to make room for another one",
        &[Code::PriorityClassNeedsKubevirt],
    ),
    (
        "there is no VirtualMachine on libvirt",
        &[Code::OverridesNeedKubevirt],
    ),
    (
        "a libvirt host only asks whether the guest agent answers",
        &[Code::ProbesNeedKubevirt],
    ),
    ("a probe is made by exactly one of", &[Code::InvalidProbe]),
    (
        "the successThreshold of liveness is 1",
        &[Code::InvalidProbe],
    ),
    ("a disk with remove: true", &[Code::RemovedDiskHasFields]),
    (
        "selector and volumeName exclude",
        &[Code::VolumeChosenTwice],
    ),
    (
        "a disk with an image cannot bind",
        &[Code::ImageOnBoundDisk],
    ),
    (
        "claimName uses a claim as it is",
        &[Code::ExistingDiskHasFields],
    ),
    (
        "shareable needs claimName",
        &[Code::ShareableNeedsExistingDisk],
    ),
    (
        "claimName names an object of one namespace",
        &[Code::ClaimNameInTemplate],
    ),
    ("matchLabels must have a label", &[Code::EmptySelector]),
    ("an image has exactly one of", &[Code::ImageSource]),
    (
        "the source of a MachineImage is exactly one of",
        &[Code::ImageSource],
    ),
    (
        "checksum needs a url that begins with",
        &[Code::InvalidImageChecksum],
    ),
    (
        "a docker:// url of a MachineImage",
        &[Code::ImageDigestRequired],
    ),
    (
        "minDiskSize must be from 1Mi",
        &[Code::DiskTooSmall, Code::DiskTooLarge],
    ),
    ("checksum needs url", &[Code::InvalidImageChecksum]),
    (
        "a network card cannot have the address zero",
        &[Code::MacNotUnicast],
    ),
    (
        "a network card cannot have a multicast address",
        &[Code::MacNotUnicast],
    ),
    (
        "secureBoot needs the machine type",
        &[Code::SecureBootNeedsQ35],
    ),
    ("efi needs acpi", &[Code::EfiNeedsAcpi]),
    ("hyperv needs acpi", &[Code::HypervNeedsAcpi]),
    ("secureBoot needs efi", &[Code::SecureBootNeedsEfi]),
    (
        "a template cannot give addresses",
        &[Code::AddressInTemplate],
    ),
    ("vlan cannot change", &[Code::SegmentChanged]),
    ("bridge cannot change", &[Code::SegmentChanged]),
    ("bridge is required unless", &[Code::BridgeRequired]),
    (
        "format raw needs provisioning: copy",
        &[Code::OverlayNeedsQcow2],
    ),
    (
        "a plain bridge is in one VLAN at most",
        &[Code::ManyVlansOnBridge],
    ),
    (
        "libvirt cannot isolate ports of Open vSwitch",
        &[Code::IsolationOnOvs],
    ),
    (
        "source must be the name of a Linux interface",
        &[Code::InvalidBridge],
    ),
];

/// The messages of all CEL rules in a schema.
fn messages(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                if key == "x-kubernetes-validations" {
                    let rules = value.as_array().unwrap().iter();
                    found.extend(rules.map(|rule| rule["message"].as_str().unwrap().to_owned()));
                } else {
                    messages(value, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| messages(item, found)),
        _ => {}
    }
}

#[test]
fn every_cel_rule_of_the_crds_belongs_to_codes_that_say_so() {
    let mut used = BTreeSet::new();
    for kind in KINDS {
        let mut found = BTreeSet::new();
        messages(schema(kind), &mut found);
        for message in found {
            let row = CEL.iter().position(|(start, _)| message.starts_with(start));
            let row = row.unwrap_or_else(|| panic!("{}: no code for: {message}", kind_name(kind)));
            used.insert(row);
            for code in CEL[row].1 {
                assert_ne!(
                    code.crd_coverage(),
                    CrdCoverage::Nothing,
                    "{code}: {message}"
                );
                let is_listed = rules::all()
                    .any(|rule| rule.codes.contains(code) && rule.kinds.contains(&kind));
                assert!(is_listed, "{code} is not reported for {}", kind_name(kind));
            }
        }
    }
    let unused = (0..CEL.len()).filter(|row| !used.contains(row));
    let unused: Vec<_> = unused.map(|row| CEL[row].0).collect();
    assert!(unused.is_empty(), "no CRD has: {unused:?}");
}
