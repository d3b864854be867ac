//! Schemas of textual fields. A marker type stands in a field's `#[schemars(with = ..)]`; the
//! bounds are the constants the rules use, so that the schema refuses nothing that a rule accepts.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// Longest DNS label (RFC 1123); the bound of every name that ends up in one.
pub const NAME_MAX: usize = 63;
/// Longest name of a Kubernetes object (DNS subdomain).
pub const OBJECT_NAME_MAX: usize = 253;
/// Longest quantity: room for any exact value, too short to be a burden.
pub const QUANTITY_MAX: usize = 32;
/// Longest user data or network data; etcd stores objects up to 1.5 MiB.
pub const USER_DATA_MAX: usize = 256 * 1024;
/// Longest free text.
pub const TEXT_MAX: usize = 1024;
/// Most disks of a machine; q35 has no more room without bridges.
pub const DISKS_MAX: usize = 64;
/// Most CD-ROMs of a machine.
pub const CDROMS_MAX: usize = 16;
/// Most network cards of a machine.
pub const NETWORKS_MAX: usize = 32;
/// Most labels of a selector.
pub const LABELS_MAX: usize = 64;
/// Most storage classes of a libvirt host.
pub const HOST_CLASSES_MAX: usize = 64;
/// Most networks of a libvirt host.
pub const HOST_NETWORKS_MAX: usize = 256;
/// Most VLANs of a network of a libvirt host.
pub const HOST_VLANS_MAX: usize = 512;
/// Most machine types of a libvirt host; QEMU 10 has 120 on x86.
pub const MACHINE_TYPES_MAX: usize = 512;
/// Most Machines whose deletion a libvirt host has yet to learn of.
pub const TOMBSTONES_MAX: usize = 1024;
/// Longest URI of a libvirt host: scheme, user, port and path beside a name of DNS.
pub const HOST_URI_MAX: usize = 512;
/// Longest interface name of Linux: `IFNAMSIZ` less the terminating zero.
pub const INTERFACE_NAME_MAX: usize = 15;

/// DNS label, RFC 1123.
pub const LABEL_PATTERN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// DNS subdomain, RFC 1123.
pub const OBJECT_NAME_PATTERN: &str =
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// A non-negative Kubernetes quantity.
pub const QUANTITY_PATTERN: &str = "^\\+?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]{1,2})?$";

/// What [`HostUri`](crate::host_uri::HostUri) reads.
pub const HOST_URI_PATTERN: &str = "^(qemu:///(system|session)|qemu\\+tls://([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\\[[0-9A-Fa-f:.]+\\])(:[1-9][0-9]{0,4})?/system|qemu\\+ssh://([A-Za-z0-9_][-A-Za-z0-9_.]*@)?([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\\[[0-9A-Fa-f:.]+\\])(:[1-9][0-9]{0,4})?/system|test:///[-A-Za-z0-9._/]+|test\\+tls://([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\\[[0-9A-Fa-f:.]+\\])(:[1-9][0-9]{0,4})?/default)$";

macro_rules! text_schemas {
    ($( $(#[$doc:meta])* $name:ident = { $($schema:tt)* } )+) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", $($schema)* })
            }
        }
    )+};
}

text_schemas! {
    /// A DNS label of at most 63 characters.
    Label = { "minLength": 1, "maxLength": NAME_MAX, "pattern": LABEL_PATTERN }
    /// The name of a Kubernetes object.
    ObjectName = { "minLength": 1, "maxLength": OBJECT_NAME_MAX, "pattern": OBJECT_NAME_PATTERN }
    /// The name of a storage class; empty is Kubernetes' "no class".
    StorageClassName = { "maxLength": OBJECT_NAME_MAX }
    /// The name of the storage class of a CD-ROM, which binds no volume that has none.
    CdromClassName = { "minLength": 1, "maxLength": OBJECT_NAME_MAX }
    /// The name of a network card inside a machine.
    NicName = { "minLength": 1, "maxLength": NAME_MAX, "pattern": "^[A-Za-z0-9_-]+$" }
    /// An amount of bytes.
    QuantityText = { "minLength": 1, "maxLength": QUANTITY_MAX, "pattern": QUANTITY_PATTERN }
    /// A MAC address of six bytes, with colons, dashes or dots.
    MacText = { "minLength": 14, "maxLength": 17, "pattern": "^([0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{2}(-[0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{4}(\\.[0-9A-Fa-f]{4}){2})$" }
    /// The value of a label.
    LabelValue = { "maxLength": NAME_MAX, "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$" }
    /// The key of a Secret.
    SecretKey = { "minLength": 1, "maxLength": OBJECT_NAME_MAX, "pattern": "^\\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*$" }
    /// Text of a cloud-init document.
    UserData = { "maxLength": USER_DATA_MAX }
    /// Free text.
    FreeText = { "maxLength": TEXT_MAX }
    /// Where an image is fetched from.
    ImageUrl = { "minLength": 1, "maxLength": TEXT_MAX, "pattern": "^(https|http|docker)://.+$" }
    /// The checksum of an image.
    Checksum = { "maxLength": 71, "pattern": "^sha256:[0-9a-f]{64}$" }
    /// The name of a Linux bridge.
    BridgeName = { "minLength": 1, "maxLength": INTERFACE_NAME_MAX, "pattern": "^[^\\s/:]+$" }
    /// The URI of a libvirt host.
    HostUriText = { "minLength": 1, "maxLength": HOST_URI_MAX, "pattern": HOST_URI_PATTERN }
    /// The name of a storage class that a libvirt host offers.
    HostClassName = { "minLength": 1, "maxLength": OBJECT_NAME_MAX, "pattern": OBJECT_NAME_PATTERN }
    /// The name of a pool or a network of libvirt's.
    LibvirtName = { "minLength": 1, "maxLength": OBJECT_NAME_MAX, "pattern": "^[^/\\s]+$" }
    /// How many times what a host has it may give away.
    Factor = { "minLength": 1, "maxLength": 7, "pattern": "^[0-9]{1,3}(\\.[0-9]{1,3})?$" }
    /// A moment, RFC 3339.
    Timestamp = { "format": "date-time" }
}
