//! The differences that stay, each with its reason.

use crate::Side;

/// A kind of difference that stays.
pub(crate) struct Accepted {
    pub(crate) side: Side,
    /// A part of the reason of the stricter side.
    pub(crate) reason: &'static str,
    /// Why it stays.
    pub(crate) why: &'static str,
}

const fn of(side: Side, reason: &'static str, why: &'static str) -> Accepted {
    Accepted { side, reason, why }
}

/// All of them.
pub(crate) const ACCEPTED: [Accepted; 31] = [
    of(
        Side::Readers,
        "format: unknown",
        "scripts for Windows, Ignition and certificates are for other programs than cloud-init",
    ),
    of(
        Side::Readers,
        "packages: RuntimeError: Invalid package type.",
        "releases from 23.4 on take mappings from package managers",
    ),
    of(
        Side::Readers,
        "yaml: expected the node content",
        "the parser reads a text that begins with ':' in brackets",
    ),
    of(
        Side::Readers,
        "cloud-init: ValueError: Address default",
        "releases from 23.1 on take 'default' as destination in version 1",
    ),
    of(
        Side::Readers,
        "types only and not NoneType",
        "an item that is empty is a warning: everything of it may be commented out",
    ),
    of(
        Side::Readers,
        "Unmappable user value",
        "a mapping of users is not validated further",
    ),
    of(
        Side::Readers,
        "Unknown group name type NoneType",
        "an item that is empty is a warning",
    ),
    of(
        Side::Readers,
        "Group config must be",
        "a key that is empty is a warning",
    ),
    of(
        Side::Readers,
        "This is not a SR-IOV PF",
        "a guest has no card with virtual functions",
    ),
    of(
        Side::Readers,
        "invalid value for wakeonwlan",
        "a guest has no wireless card",
    ),
    of(
        Side::Readers,
        "invalid IP family",
        "a quoted text in brackets is not checked behind a tab, and a warning says so",
    ),
    of(
        Side::Readers,
        "Invalid MAC address",
        "releases from 0.107 on take 'random' and the like",
    ),
    of(
        Side::Readers,
        "document: not a mapping",
        "the document was not checked, and a warning says so",
    ),
    of(
        Side::Rules,
        "the text below",
        "what a template becomes is known to the guest only; its format is not",
    ),
    of(
        Side::Rules,
        "packages must be a list of packages, is a number",
        "a template that renders nothing is read, which the reader here does not do",
    ),
    of(
        Side::Rules,
        "fs_setup[0] lacks",
        "cc_disk_setup fails without it, and the schema does not say so",
    ),
    of(
        Side::Rules,
        "write_files[0].permissions",
        "cc_write_files gives up on the permissions, and the schema does not say so",
    ),
    of(
        Side::Rules,
        "users[0].sudo must be",
        "writes 'ada True' into sudoers, which sudo refuses",
    ),
    of(
        Side::Rules,
        "ssh_pwauth must be",
        "cc_set_passwords ignores any other word",
    ),
    of(
        Side::Rules,
        "mtu must be a whole number",
        "netplan reads an empty text as zero",
    ),
    of(
        Side::Schema,
        "is not in the schema of this release",
        "keys of cloud-init's own settings, of later releases and of other programs",
    ),
    of(
        Side::Schema,
        "users.0: ",
        "keys with dashes, numbers and dates, which the module takes",
    ),
    of(
        Side::Schema,
        "packages.0: ",
        "a list of a name alone, which the module takes",
    ),
    of(
        Side::Schema,
        "chpasswd.list: ",
        "a list, which the module takes",
    ),
    of(
        Side::Schema,
        "Additional properties are not allowed",
        "modules that the rules do not validate further",
    ),
    of(
        Side::Schema,
        "is not valid under any of the given schemas",
        "values that the module takes or ignores",
    ),
    of(
        Side::Schema,
        "is not one of",
        "values that the module takes or ignores",
    ),
    of(
        Side::Schema,
        "is not of type",
        "modules that the rules do not validate further",
    ),
    of(
        Side::Schema,
        "is a required property",
        "modules that the rules do not validate further",
    ),
    of(
        Side::Schema,
        "does not match any of the regexes",
        "keys of cc_ssh that later releases have",
    ),
    of(
        Side::Readers,
        "power_state: ",
        "an empty value, and a word as its timeout, are warnings; the rest of the guest is not touched",
    ),
];
