//! Every name the product gives or reads, in one place.

/// API group of the kinds.
pub const GROUP: &str = "vitistack.io";
/// Version of the kinds.
pub const VERSION: &str = "v1alpha1";

/// Label of users: the cluster a Machine belongs to.
pub const LABEL_CLUSTER_NAME: &str = "cluster.vitistack.io/cluster-name";
/// Label of users: the template, when `spec.template` is absent.
pub const LABEL_TEMPLATE: &str = "vitistack.io/machine-template";
/// Label of what the controller makes.
pub const LABEL_MANAGED_BY: &str = "vitistack.io/managed-by";
/// Value of [`LABEL_MANAGED_BY`].
pub const MANAGED_BY: &str = "kubevirt-operator";
/// Label of what the controller makes: the Machine's name.
pub const LABEL_MACHINE: &str = "vitistack.io/machine";
/// Label of a claim: the name of its disk.
pub const LABEL_DISK: &str = "vitistack.io/disk";

/// Annotation of users: a new text expands the template again.
pub const ANNOTATION_REFRESH_TEMPLATE: &str = "machine.vitistack.io/refresh-template";
/// Annotation of users: a new text restarts the machine once.
pub const ANNOTATION_RESTART_REQUESTED: &str = "machine.vitistack.io/restart-requested";
/// Annotation of users: `true` makes the controller observe only.
pub const ANNOTATION_PAUSED: &str = "machine.vitistack.io/paused";
/// Annotation of users: `true` deletes a Machine whose host cannot be asked.
pub const ANNOTATION_FORCE_DELETE: &str = "machine.vitistack.io/force-delete";
/// Annotation of what the controller makes: uid of the Machine it belongs to.
pub const ANNOTATION_MACHINE_UID: &str = "machine.vitistack.io/machine-uid";
/// Annotation of a claim: its disk's reclaim policy, so that deletion needs no spec.
pub const ANNOTATION_RECLAIM_POLICY: &str = "machine.vitistack.io/reclaim-policy";
/// Annotation of a retained claim: uid of the Machine it was made for.
pub const ANNOTATION_RETAINED_FROM: &str = "machine.vitistack.io/retained-from";

/// Annotation of what the controller makes: digest of what it was rendered from.
pub const ANNOTATION_RENDERED: &str = "machine.vitistack.io/rendered";

/// Annotation of a guest and of our cloud-init Secret: what the user's Secret held that the user data
/// comes from, as [`Mark`](crate::render::Mark).
pub const ANNOTATION_USER_DATA: &str = "machine.vitistack.io/user-data";
/// Annotation of a guest and of our cloud-init Secret: as [`ANNOTATION_USER_DATA`], of the network data.
pub const ANNOTATION_NETWORK_DATA: &str = "machine.vitistack.io/network-data";

/// Finalizer of a Machine.
pub const FINALIZER: &str = "machine.vitistack.io/cleanup";
/// Finalizer of a NetworkConfiguration that a Machine uses.
pub const FINALIZER_IN_USE: &str = "machine.vitistack.io/in-use";
/// Field manager of the controller.
pub const FIELD_MANAGER: &str = "kubevirt-operator";

/// Name of the volume that holds cloud-init's data.
pub const CLOUD_INIT_DISK: &str = "cloudinitdisk";
/// Names of volumes in the pod of a guest that are not its disks': KubeVirt 1.8 gives them to it in
/// `pkg/virt-controller/services/rendervolumes.go`. A disk has a volume of its own name there, and the
/// API server takes no pod with two of one name.
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
/// Name of the network card a machine has when its user names none.
pub const DEFAULT_NIC: &str = "default";
/// What a libvirt host calls the network of cards that name none.
pub const DEFAULT_NETWORK: &str = "default";
/// Storage class of the built-in templates: a class of this name, else the cluster's default.
pub const DEFAULT_STORAGE_CLASS: &str = "default";

/// Whether a label or an annotation is one of this product.
pub fn is_ours(key: &str) -> bool {
    key.split_once('/')
        .is_some_and(|(domain, _)| domain == GROUP || domain.ends_with(".vitistack.io"))
}

/// Name of the claim of a disk.
pub fn claim(machine: &str, disk: &str) -> String {
    format!("{machine}-{disk}")
}

/// The Machines and disks whose claim would have this name: `a-b-c` is that of disk `b-c` of `a` and of
/// disk `c` of `a-b`.
pub fn disks_of_claim(claim: &str) -> impl Iterator<Item = (&str, &str)> {
    let dashes = claim.match_indices('-').map(|(at, _)| at);
    dashes.map(|at| (&claim[..at], &claim[at + 1..]))
}

/// Name of the Secret that holds a machine's cloud-init data.
pub fn cloud_init_secret(machine: &str) -> String {
    format!("{machine}-cloudinit")
}
