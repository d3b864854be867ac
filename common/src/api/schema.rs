//! Schemas of text fields: marker types for a field's `#[schemars(with = ..)]`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::bounds::{
    ADDRESS_MAX, CPU_LIST_MAX, CPU_MODEL_MAX, DIGEST_MAX, HOST_URI_MAX, INTERFACE_NAME_MAX,
    LABEL_KEY_MAX, NAME_MAX, OBJECT_FIELDS_MAX, OBJECT_NAME_MAX, OVERRIDE_PATH_MAX, OVERRIDES_MAX,
    PCI_ADDRESS_MAX, QUANTITY_MAX, RANGE_MAX, SERIAL_MAX, TEMPLATE_DATA_MAX, TEXT_MAX,
    TIME_ZONE_MAX, USER_DATA_MAX, VLAN_RANGE_MAX,
};

/// DNS label, RFC 1123.
pub const LABEL_PATTERN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// DNS subdomain, RFC 1123.
pub const OBJECT_NAME_PATTERN: &str =
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// A non-negative Kubernetes quantity.
pub const QUANTITY_PATTERN: &str = "^\\+?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]{1,2})?$";

/// The characters of an IP address. The webhook parses it.
pub const ADDRESS_PATTERN: &str = "^[0-9A-Fa-f]*[.:][0-9A-Fa-f.:]*$";
/// The characters of an IP network. The webhook parses it.
pub const CIDR_PATTERN: &str = "^[0-9A-Fa-f]*[.:][0-9A-Fa-f.:]*/[0-9]{1,3}$";
/// The characters of a range of addresses. The webhook parses it.
pub const RANGE_PATTERN: &str =
    "^\\s*[0-9A-Fa-f]*[.:][0-9A-Fa-f.:]*\\s*(-\\s*[0-9A-Fa-f]*[.:][0-9A-Fa-f.:]*\\s*)?$";
/// A DNS domain, with or without the dot of the root.
pub const DOMAIN_PATTERN: &str =
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\\.?$";

/// The URIs that [`HostUri`](crate::host_uri::HostUri) reads.
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
    /// The name of a MachineTemplate, which is the value of a label, too.
    TemplateName = { "minLength": 1, "maxLength": NAME_MAX, "pattern": OBJECT_NAME_PATTERN }
    /// The name of a Kubernetes object.
    ObjectName = { "minLength": 1, "maxLength": OBJECT_NAME_MAX, "pattern": OBJECT_NAME_PATTERN }
    /// The name of a storage class; empty means no class, as in Kubernetes.
    StorageClassName = { "maxLength": OBJECT_NAME_MAX }
    /// The name of the storage class of a CD-ROM. Not empty: only a disk can use an existing volume without
    /// a class.
    CdromClassName = { "minLength": 1, "maxLength": OBJECT_NAME_MAX }
    /// The name of a network card inside a machine.
    NicName = { "minLength": 1, "maxLength": NAME_MAX, "pattern": "^[A-Za-z0-9_-]+$" }
    /// A Kubernetes quantity.
    QuantityText = { "minLength": 1, "maxLength": QUANTITY_MAX, "pattern": QUANTITY_PATTERN }
    /// A MAC address of six bytes, with colons, dashes or dots.
    MacText = { "minLength": 14, "maxLength": 17, "pattern": "^([0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{2}(-[0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{4}(\\.[0-9A-Fa-f]{4}){2})$" }
    /// An IP address.
    AddressText = { "minLength": 2, "maxLength": ADDRESS_MAX, "pattern": ADDRESS_PATTERN }
    /// An IP network: an address, a slash and the length of a prefix.
    CidrText = { "minLength": 4, "maxLength": ADDRESS_MAX, "pattern": CIDR_PATTERN }
    /// An IP address, or the first and the last address of a range.
    RangeText = { "minLength": 2, "maxLength": RANGE_MAX, "pattern": RANGE_PATTERN }
    /// A DNS domain.
    DomainText = { "minLength": 1, "maxLength": OBJECT_NAME_MAX, "pattern": DOMAIN_PATTERN }
    /// The value of a label.
    LabelValue = { "maxLength": NAME_MAX, "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$" }
    /// The key of a Secret.
    SecretKey = { "minLength": 1, "maxLength": OBJECT_NAME_MAX, "pattern": "^\\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*$" }
    /// Text of a cloud-init document.
    UserData = { "maxLength": USER_DATA_MAX }
    /// Text of a cloud-init document in a template.
    TemplateUserData = { "maxLength": TEMPLATE_DATA_MAX }
    /// Free text.
    FreeText = { "maxLength": TEXT_MAX }
    /// A program or an argument of it.
    ProbeArgument = { "maxLength": TEXT_MAX }
    /// The path of an HTTP request.
    HttpPath = { "minLength": 1, "maxLength": TEXT_MAX, "pattern": "^/[!-~]*$" }
    /// The URL of an image.
    ImageUrl = { "minLength": 1, "maxLength": TEXT_MAX, "pattern": "^(https|http|docker)://.+$" }
    /// A prefix of the URLs of images.
    SourcePrefix = { "minLength": 1, "maxLength": TEXT_MAX, "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://[^\\s?#]+$" }
    /// The checksum of an image.
    Checksum = { "maxLength": DIGEST_MAX, "pattern": "^sha256:[0-9a-f]{64}$" }
    /// The serial number of a disk.
    DiskSerial = { "minLength": 1, "maxLength": SERIAL_MAX, "pattern": "^[A-Za-z0-9_.+-]+$" }
    /// The name of an IANA time zone with its area, or UTC.
    TimeZoneName = { "maxLength": TIME_ZONE_MAX, "pattern": "^(UTC|[A-Z][A-Za-z]+(/[A-Za-z0-9_+-]+)+)$" }
    /// The name of a CPU model of libvirt, host-model or host-passthrough.
    CpuModelName = { "minLength": 1, "maxLength": CPU_MODEL_MAX, "pattern": "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$" }
    /// The name of a resource of nodes: a name of at most 63 characters after a DNS prefix.
    ResourceName = { "minLength": 1, "maxLength": LABEL_KEY_MAX, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$" }
    /// A pattern for names of resources of nodes; `*` stands for any characters.
    ResourceGlob = { "minLength": 1, "maxLength": LABEL_KEY_MAX, "pattern": "^[-A-Za-z0-9_./*]+$" }
    /// The key of an annotation; `*` behind the `/` stands for any characters.
    AnnotationGlob = { "minLength": 1, "maxLength": LABEL_KEY_MAX, "pattern": "^([-a-z0-9.]+/[-A-Za-z0-9_.*]+|[-A-Za-z0-9_.]+)$" }
    /// The path of a field of a VirtualMachine.
    OverridePath = { "minLength": 1, "maxLength": OVERRIDE_PATH_MAX, "pattern": "^spec(\\.[A-Za-z0-9]+)+$" }
    /// A list of numbers and ranges of CPUs.
    CpuListText = { "minLength": 1, "maxLength": CPU_LIST_MAX, "pattern": "^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$" }
    /// The address of a PCI device, as `lspci -D` prints it.
    PciAddressText = { "maxLength": PCI_ADDRESS_MAX, "pattern": "^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\\.[0-7]$" }
    /// The name of a Linux bridge.
    BridgeName = { "minLength": 1, "maxLength": INTERFACE_NAME_MAX, "pattern": "^[^\\s/:]+$" }
    /// The URI of a libvirt host.
    HostUriText = { "minLength": 1, "maxLength": HOST_URI_MAX, "pattern": HOST_URI_PATTERN }
    /// The name of a storage class that a libvirt host offers.
    HostClassName = { "minLength": 1, "maxLength": OBJECT_NAME_MAX, "pattern": OBJECT_NAME_PATTERN }
    /// The name of a libvirt storage pool or network.
    LibvirtName = { "minLength": 1, "maxLength": OBJECT_NAME_MAX, "pattern": "^[^/\\p{Cc}]+$" }
    /// An overcommit factor: a decimal number with at most three digits before and after the point.
    Factor = { "minLength": 1, "maxLength": 7, "pattern": "^[0-9]{1,3}(\\.[0-9]{1,3})?$" }
    /// The key of a label: a name of at most 63 characters after an optional DNS prefix.
    LabelKey = { "minLength": 1, "maxLength": LABEL_KEY_MAX, "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$" }
    /// A pattern for names of templates; `*` stands for any characters.
    TemplateGlob = { "minLength": 1, "maxLength": NAME_MAX, "pattern": "^[-a-z0-9.*]+$" }
    /// A pattern for names of Kubernetes objects; `*` stands for any characters.
    NameGlob = { "minLength": 1, "maxLength": OBJECT_NAME_MAX, "pattern": "^[-a-z0-9.*]+$" }
    /// A pattern for names of Linux bridges; `*` stands for any characters.
    BridgeGlob = { "minLength": 1, "maxLength": INTERFACE_NAME_MAX, "pattern": "^[^\\s/:]+$" }
    /// A pattern for names of libvirt volumes; `*` stands for any characters.
    VolumeGlob = { "minLength": 1, "maxLength": OBJECT_NAME_MAX, "pattern": "^[^/\\p{Cc}]+$" }
    /// A VLAN tag, or the first and the last tag of a range.
    VlanRange = { "minLength": 1, "maxLength": VLAN_RANGE_MAX, "pattern": "^[1-9][0-9]{0,3}(-[1-9][0-9]{0,3})?$" }
    /// The beginning of URLs of images.
    UrlPrefixText = { "minLength": 1, "maxLength": TEXT_MAX, "pattern": "^(https|http|docker)://.+$" }
    /// A time, RFC 3339.
    Timestamp = { "format": "date-time" }
}

/// A document of cloud-init as an object with any fields.
#[derive(Debug)]
pub struct CloudInitObject;

impl JsonSchema for CloudInitObject {
    fn schema_name() -> Cow<'static, str> {
        "CloudInitObject".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "maxProperties": OBJECT_FIELDS_MAX,
            "x-kubernetes-preserve-unknown-fields": true,
        })
    }
}

/// A JSON merge patch of an object whose fields this API does not describe.
#[derive(Debug)]
pub struct OverridesObject;

impl JsonSchema for OverridesObject {
    fn schema_name() -> Cow<'static, str> {
        "OverridesObject".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "maxProperties": OVERRIDES_MAX,
            "x-kubernetes-preserve-unknown-fields": true,
        })
    }
}
