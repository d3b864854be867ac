//! Every name that the product writes to objects or reads from them.

use std::net::IpAddr;

use sha2::{Digest as _, Sha256};

use crate::bounds::NAME_MAX;

/// API group of the kinds.
pub const GROUP: &str = "vitistack.io";
/// Version of the kinds.
pub const VERSION: &str = "v1alpha1";

/// Label, written by users: the cluster of a Machine.
pub const LABEL_CLUSTER_NAME: &str = "cluster.vitistack.io/cluster-name";
/// Label, written by users: the template, if `spec.template` is absent.
pub const LABEL_TEMPLATE: &str = "vitistack.io/machine-template";
/// Label of objects that the controller creates: [`MANAGED_BY`].
pub const LABEL_MANAGED_BY: &str = "vitistack.io/managed-by";
/// Value of [`LABEL_MANAGED_BY`].
pub const MANAGED_BY: &str = "kubevirt-operator";
/// Label of objects that the controller creates: the Machine's name.
pub const LABEL_MACHINE: &str = "vitistack.io/machine";
/// Label of a guest's pod: the group of Machines that are kept apart.
pub const LABEL_GROUP: &str = "vitistack.io/anti-affinity-group";
/// Kubernetes' label of a node, and of a LibvirtHost: the zone that it is in.
pub const LABEL_ZONE: &str = "topology.kubernetes.io/zone";
/// Annotation of an instance with a digest of the affinity that its pod was started with, if the Machine requests one.
pub const ANNOTATION_AFFINITY: &str = "machine.vitistack.io/affinity";
/// Annotation of an instance with a digest of the constraints on the spread that its pod was started with.
pub const ANNOTATION_SPREAD: &str = "machine.vitistack.io/topology-spread";
/// Annotation of an instance with a digest of the overrides that its guest was started with, if the Machine has any.
pub const ANNOTATION_OVERRIDES: &str = "machine.vitistack.io/backend-overrides";
/// Annotation of an instance with the CPU model that its guest was started with, if the Machine requested one. KubeVirt
/// puts its default into an instance without one.
pub const ANNOTATION_CPU_MODEL: &str = "machine.vitistack.io/cpu-model";
/// Annotation of a guest on KubeVirt: its group, scope and whether that is required.
pub const ANNOTATION_GROUP: &str = "machine.vitistack.io/anti-affinity-group";
/// Label of a claim: the name of its disk.
pub const LABEL_DISK: &str = "vitistack.io/disk";

/// Label of an import of a MachineImage: digest of what is imported.
pub const LABEL_IMAGE_SOURCE: &str = "vitistack.io/image-source";
/// Annotation of an import of a MachineImage: name of the MachineImage for which it was made first.
pub const ANNOTATION_IMAGE: &str = "machine.vitistack.io/image";
/// Annotation that CDI reads: `true` binds the volume of a DataVolume although no pod uses it.
pub const CDI_BIND_IMMEDIATELY: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
/// Annotation that CDI reads: `false` keeps a DataVolume after it has finished.
pub const CDI_DELETE_AFTER_COMPLETION: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";
/// Label of a claim that KubeVirt made for EFI variables and the TPM: name of the VirtualMachine. KubeVirt finds the claim
/// by it, gives it to any VirtualMachine of the name, and deletes it when that one persists neither (v1.4 and later,
/// `PVCPrefix` in `pkg/storage/backend-storage`).
pub const LABEL_STATE: &str = "persistent-state-for";
/// Label of such a claim that is kept after its Machine: the Machine's name.
pub const LABEL_RETAINED_STATE: &str = "vitistack.io/retained-state";

/// Label that the controller sets on the objects of a Machine whose spec has `deletionProtection: true`, and that
/// administrators set on namespaces: with the value `true` a ValidatingAdmissionPolicy refuses the deletion.
pub const LABEL_DELETION_PROTECTION: &str = "vitistack.io/deletion-protection";

/// Annotation of an object with [`LABEL_DELETION_PROTECTION`], written with it: `true` while the object has to have the
/// label, so that a label that another client has removed differs from one that was never set.
pub const ANNOTATION_PROTECTED: &str = "machine.vitistack.io/protected";

/// Annotation of an instance: the labels of the Machine with which it was started, as `key=value`, separated by commas.
pub const ANNOTATION_LABELS: &str = "machine.vitistack.io/labels";

/// Annotation of an instance with a digest of the annotations of the Machine with which it was started, if there were any.
pub const ANNOTATION_ANNOTATIONS: &str = "machine.vitistack.io/annotations";

/// Annotation, written by users: a new value merges the template's current content into the Machine.
pub const ANNOTATION_REFRESH_TEMPLATE: &str = "machine.vitistack.io/refresh-template";
/// Annotation, written by users: a new value restarts the machine once.
pub const ANNOTATION_RESTART_REQUESTED: &str = "machine.vitistack.io/restart-requested";
/// Annotation, written by users: a new value resets the hardware of the running guest once, as a reset button does.
pub const ANNOTATION_RESET_REQUESTED: &str = "machine.vitistack.io/reset-requested";
/// Annotation, written by users: a new value moves the running guest on KubeVirt to another node, or the stopped
/// Machine on libvirt to another host, once.
pub const ANNOTATION_MIGRATE_REQUESTED: &str = "machine.vitistack.io/migrate-requested";
/// Annotation, written by users beside [`ANNOTATION_MIGRATE_REQUESTED`]: the node or LibvirtHost to move to.
pub const ANNOTATION_MIGRATE_TO: &str = "machine.vitistack.io/migrate-to";
/// Annotation, written by users: with `true` the controller only observes the machine.
pub const ANNOTATION_PAUSED: &str = "machine.vitistack.io/paused";
/// Annotation, written by users: with `true` a deletion does not wait for a host that does not answer.
pub const ANNOTATION_FORCE_DELETE: &str = "machine.vitistack.io/force-delete";
/// Annotation, written by users: names of disks, separated by commas. The controller deletes the kept volumes of these
/// disks on a libvirt host and removes the annotation. Of a LibvirtHost, written by administrators: kept volumes of the
/// host as `pool/volume`, separated by commas; the controller deletes them.
pub const ANNOTATION_RELEASE_VOLUME: &str = "machine.vitistack.io/release-volume";
/// Annotation, written by users: names of disks, separated by commas. The controller creates the claims or volumes of these
/// disks again if they were lost, and removes the annotation.
pub const ANNOTATION_RECREATE_VOLUME: &str = "machine.vitistack.io/recreate-volume";
/// Annotation of a LibvirtHost, written by administrators: UUIDs of hosts, separated by commas. Confirms that the LibvirtHost
/// leads to one of them from now on, and that no guest runs on the former host any more. The controller leaves it there.
pub const ANNOTATION_ACCEPT_HOST: &str = "machine.vitistack.io/accept-host";
/// Annotation, written by users: `efi`, `tpm` or both, separated by commas. Confirms that the EFI variables or the content
/// of the TPM may be discarded by a change of the spec. The controller removes the annotation after the change.
pub const ANNOTATION_DISCARD_STATE: &str = "machine.vitistack.io/discard-state";
/// Annotation of objects that the controller creates: uid of the Machine.
pub const ANNOTATION_MACHINE_UID: &str = "machine.vitistack.io/machine-uid";
/// Annotation of a claim: reclaim policy of its disk, so that a deletion does not depend on the spec.
pub const ANNOTATION_RECLAIM_POLICY: &str = "machine.vitistack.io/reclaim-policy";
/// Annotation of a retained claim: uid of the Machine that it was created for.
pub const ANNOTATION_RETAINED_FROM: &str = "machine.vitistack.io/retained-from";
/// Annotation of a claim that has grown, written by the controller. Size of the disk inside the guest while the claim is
/// larger, and the uid of the instance that still has that size; without a uid if there was no instance.
pub const ANNOTATION_SIZE_IN_GUEST: &str = "machine.vitistack.io/size-in-guest";

/// Annotation of objects that the controller creates: digest of the input that they were rendered from.
pub const ANNOTATION_RENDERED: &str = "machine.vitistack.io/rendered";

/// Annotation of a VirtualMachine: `spec.runStrategy` as the controller wrote it last. Another value of the field is
/// the change of another client.
pub const ANNOTATION_RUN_STRATEGY: &str = "machine.vitistack.io/run-strategy";

/// Annotation of a guest and of its cloud-init Secret: revision of the user's Secret with the user data,
/// as [`SecretRevision`](crate::render::SecretRevision).
pub const ANNOTATION_USER_DATA: &str = "machine.vitistack.io/user-data";
/// Annotation of a guest and of its cloud-init Secret: as [`ANNOTATION_USER_DATA`], for the network data.
pub const ANNOTATION_NETWORK_DATA: &str = "machine.vitistack.io/network-data";

/// The labels of this product.
pub const LABELS: [&str; 9] = [
    LABEL_CLUSTER_NAME,
    LABEL_TEMPLATE,
    LABEL_MANAGED_BY,
    LABEL_MACHINE,
    LABEL_GROUP,
    LABEL_DISK,
    LABEL_IMAGE_SOURCE,
    LABEL_RETAINED_STATE,
    LABEL_DELETION_PROTECTION,
];

/// The annotations of this product.
pub const ANNOTATIONS: [&str; 28] = [
    ANNOTATION_AFFINITY,
    ANNOTATION_SPREAD,
    ANNOTATION_OVERRIDES,
    ANNOTATION_CPU_MODEL,
    ANNOTATION_GROUP,
    ANNOTATION_IMAGE,
    ANNOTATION_PROTECTED,
    ANNOTATION_LABELS,
    ANNOTATION_ANNOTATIONS,
    ANNOTATION_REFRESH_TEMPLATE,
    ANNOTATION_RESTART_REQUESTED,
    ANNOTATION_RESET_REQUESTED,
    ANNOTATION_MIGRATE_REQUESTED,
    ANNOTATION_MIGRATE_TO,
    ANNOTATION_PAUSED,
    ANNOTATION_FORCE_DELETE,
    ANNOTATION_RELEASE_VOLUME,
    ANNOTATION_RECREATE_VOLUME,
    ANNOTATION_ACCEPT_HOST,
    ANNOTATION_DISCARD_STATE,
    ANNOTATION_MACHINE_UID,
    ANNOTATION_RECLAIM_POLICY,
    ANNOTATION_RETAINED_FROM,
    ANNOTATION_SIZE_IN_GUEST,
    ANNOTATION_RENDERED,
    ANNOTATION_RUN_STRATEGY,
    ANNOTATION_USER_DATA,
    ANNOTATION_NETWORK_DATA,
];

/// Finalizer of a Machine.
pub const FINALIZER: &str = "machine.vitistack.io/cleanup";
/// Finalizer of a NetworkConfiguration that a Machine uses.
pub const FINALIZER_IN_USE: &str = "machine.vitistack.io/in-use";
/// Field manager of the controller.
pub const FIELD_MANAGER: &str = "kubevirt-operator";

/// Name of the volume that holds cloud-init's data.
pub const CLOUD_INIT_DISK: &str = "cloudinitdisk";
/// Names of volumes that KubeVirt 1.8 adds to the pod of a guest
/// (`pkg/virt-controller/services/rendervolumes.go`). Each disk is a volume of its own name in the pod, and
/// the API server refuses a pod with two volumes of one name.
pub const POD_VOLUMES: [&str; 13] = [
    "cloudinitdisk-ndata",
    "cloudinitdisk-udata",
    "container-disks",
    "ephemeral-disks",
    "hotplug-disks",
    "libvirt-runtime",
    "private",
    "private-libvirt",
    "private-libvirt-qemu",
    "public",
    "sockets",
    "virt-bin-share-dir",
    "vm-state",
];
/// Name of the network card of a machine whose spec lists none.
pub const DEFAULT_NIC: &str = "default";
/// Name of the network that a libvirt host offers to cards without a NetworkConfiguration.
pub const DEFAULT_NETWORK: &str = "default";
/// Storage class of the built-in templates: a class of this name, else the cluster's default.
pub const DEFAULT_STORAGE_CLASS: &str = "default";

/// Number of random characters at the end of a name that the API server generates.
pub const GENERATED_SUFFIX: usize = 5;

/// What a name that is generated from `generateName` begins with: the API server cuts it, so that the whole name is a
/// DNS label.
pub fn base_of_generated(generate_name: &str) -> &str {
    let base = generate_name.get(..NAME_MAX - GENERATED_SUFFIX);
    base.unwrap_or(generate_name)
}

/// Annotations that mark a StorageClass as the default. Kubernetes still accepts the second, older one.
const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// Whether a StorageClass is marked as that of claims that name none. `annotation`: reads one of its annotations.
pub fn is_default_class<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> bool {
    DEFAULT_CLASS
        .iter()
        .any(|key| annotation(key) == Some("true"))
}

/// Whether a label or an annotation is one of this product.
pub fn is_ours(key: &str) -> bool {
    key.split_once('/')
        .is_some_and(|(domain, _)| is_of(domain, GROUP))
}

/// Whether a domain is this one or a subdomain of it.
fn is_of(domain: &str, parent: &str) -> bool {
    domain
        .strip_suffix(parent)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Domains of labels that are not carried from a Machine to its guest, each with its subdomains: those on which
/// Kubernetes, KubeVirt and this product act, and those by which delivery tools find the objects that they have applied.
const RESERVED_DOMAINS: [&str; 7] = [
    GROUP,
    "kubernetes.io",
    "k8s.io",
    "kubevirt.io",
    "argoproj.io",
    "fluxcd.io",
    "helm.sh",
];

/// Whether a label of a Machine is carried to its VirtualMachine, its instance and its pod.
pub fn is_carried_label(key: &str) -> bool {
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    key != LABEL_STATE && !RESERVED_DOMAINS.iter().any(|kept| is_of(domain, kept))
}

/// Domains of annotations, each with its subdomains, by which a pod gets another network, or a container runtime or the
/// platform treats it otherwise: Multus, OVN-Kubernetes, Calico, Cilium, CRI-O and OpenShift.
const POD_DOMAINS: [&str; 7] = [
    "cncf.io",
    "multus-cni.io",
    "ovn.org",
    "projectcalico.org",
    "cilium.io",
    "crio.io",
    "openshift.io",
];

/// Beginnings of keys without a domain that container runtimes read: CRI-O, Kata Containers and containerd.
const RUNTIME_KEYS: [&str; 3] = ["io.kubernetes.", "io.katacontainers.", "io.containerd."];

/// Whether an annotation of a Machine may be carried to its instance and its pod. A MachinePolicy names those that are.
/// Never the ones on which the cluster acts: hook sidecars of KubeVirt, networks of the pod, devices of the container.
pub fn may_carry_annotation(key: &str) -> bool {
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    let mut refused = RESERVED_DOMAINS.iter().chain(&POD_DOMAINS);
    let is_of_runtime = || RUNTIME_KEYS.iter().any(|start| key.starts_with(start));
    !refused.any(|refused| is_of(domain, refused)) && !is_of_runtime()
}

/// The first bytes of the SHA-256 digest of a text, in hexadecimal.
pub(crate) fn digest(text: &str, bytes: usize) -> String {
    let digest = Sha256::digest(text);
    let digits = digest.iter().take(bytes);
    digits.fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Name of the claim of a disk.
pub fn claim(machine: &str, disk: &str) -> String {
    [machine, "-", disk].concat()
}

/// All pairs of Machine and disk whose claim would have this name: `a-b-c` is that of disk `b-c` of `a` and of
/// disk `c` of `a-b`.
pub fn disks_of_claim(claim: &str) -> impl Iterator<Item = (&str, &str)> {
    let dashes = claim.match_indices('-').map(|(at, _)| at);
    dashes.map(|at| (&claim[..at], &claim[at + 1..]))
}

/// Name of the VirtualMachineInstanceMigration of a request: one request makes one object, however often it is repeated.
/// `uid`: that of the Machine.
pub fn migration(machine: &str, uid: &str, request: &str) -> String {
    let digest = digest(&format!("{uid}/{request}"), REQUEST_DIGEST);
    format!("{machine}-{digest}")
}

/// Bytes of the digest in the name of a migration.
const REQUEST_DIGEST: usize = 6;

/// Name of the MachineAddress of an IP address on a network segment: the address, with dashes and in full, and a
/// digest of the segment. Two addresses or two segments never have one name, apart from a collision of 64 bits, which
/// would only refuse an address that is free.
pub fn machine_address(segment: &str, address: IpAddr) -> String {
    let digits = match address {
        IpAddr::V4(address) => address.octets().map(|byte| byte.to_string()).join("-"),
        IpAddr::V6(address) => address
            .segments()
            .map(|part| format!("{part:04x}"))
            .join("-"),
    };
    format!("{digits}.{}", digest(segment, SEGMENT_DIGEST))
}

/// Bytes of the digest in the name of a MachineAddress.
const SEGMENT_DIGEST: usize = 8;

/// Name of the Secret that holds a machine's cloud-init data.
pub fn cloud_init_secret(machine: &str) -> String {
    format!("{machine}-cloudinit")
}

#[cfg(test)]
mod tests {
    use super::{ANNOTATIONS, LABELS, is_carried_label, is_ours, may_carry_annotation};

    /// What is missing in a list would be dropped from the objects that the controller reads.
    #[test]
    fn the_lists_have_every_label_and_annotation_of_this_product() {
        let values = |start: &str| -> Vec<_> {
            let lines = include_str!("names.rs").lines();
            let constants = lines.filter_map(|line| line.strip_prefix(start));
            let values = constants.filter_map(|line| line.split('"').nth(1));
            values.filter(|key| is_ours(key)).collect()
        };
        assert_eq!(values("pub const LABEL_"), LABELS);
        assert_eq!(values("pub const ANNOTATION_"), ANNOTATIONS);
    }

    #[test]
    fn annotations_on_which_the_cluster_acts_are_never_carried() {
        for (key, may_carry) in [
            ("team", true),
            ("example.com/team", true),
            ("prometheus.io/scrape", true),
            ("notcncf.io/a", true),
            ("hooks.kubevirt.io/hookSidecars", false),
            ("kubevirt.io/memfd", false),
            ("cdi.kubevirt.io/storage.import.source", false),
            ("cdi.k8s.io/gpu", false),
            ("k8s.v1.cni.cncf.io/networks", false),
            ("v1.multus-cni.io/default-network", false),
            ("k8s.ovn.org/pod-networks", false),
            ("cni.projectcalico.org/ipAddrs", false),
            ("kubernetes.io/ingress-bandwidth", false),
            (
                "container.apparmor.security.beta.kubernetes.io/compute",
                false,
            ),
            ("cpu-load-balancing.crio.io", false),
            ("io.kubernetes.cri-o.Devices", false),
            ("io.katacontainers.config.hypervisor.path", false),
            ("machine.vitistack.io/restart-requested", false),
            ("kubectl.kubernetes.io/last-applied-configuration", false),
            ("argocd.argoproj.io/tracking-id", false),
        ] {
            assert_eq!(may_carry_annotation(key), may_carry, "{key}");
        }
    }

    #[test]
    fn labels_of_kubernetes_kubevirt_this_product_and_delivery_tools_are_not_carried() {
        for (key, carried) in [
            ("app", true),
            ("example.com/team", true),
            ("notkubernetes.io/name", true),
            ("app.kubernetes.io/name", false),
            ("kubernetes.io/arch", false),
            ("kubevirt.io", false),
            ("vm.kubevirt.io/name", false),
            ("persistent-state-for", false),
            ("vitistack.io/machine", false),
            ("argocd.argoproj.io/instance", false),
            ("kustomize.toolkit.fluxcd.io/name", false),
        ] {
            assert_eq!(is_carried_label(key), carried, "{key}");
        }
    }
}
