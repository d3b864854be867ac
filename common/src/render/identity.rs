//! The Machine that an object is rendered for, and the values derived from it: uuids, MAC addresses,
//! labels. They are derived, not random, so that the same Machine is always rendered to the same
//! bytes.

use std::collections::BTreeMap;

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::mac::Mac;
use crate::names;

/// Namespace of all version 5 UUIDs that are derived here. It was generated once at random and must
/// never change: every SMBIOS uuid and libvirt domain uuid depends on it.
const UUID_NAMESPACE: Uuid = Uuid::from_u128(0x6c1f_8d52_3f0b_4e0a_9a57_2b7e_c0d4_51f3);

/// The Machine an object is rendered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// Uid of the cluster (of its namespace kube-system): the same Machine in another cluster gets
    /// other MAC addresses.
    pub cluster: &'a str,
    /// Namespace of the Machine.
    pub namespace: &'a str,
    /// Name of the Machine.
    pub name: &'a str,
    /// Uid of the Machine.
    pub uid: &'a str,
}

impl Identity<'_> {
    /// SMBIOS uuid, derived from the Machine's uid: a Machine that is deleted and created again is a
    /// new instance to cloud-init.
    pub fn firmware_uuid(&self) -> Uuid {
        machine_uuid(self.uid)
    }

    /// SMBIOS serial number.
    pub fn firmware_serial(&self) -> Uuid {
        Uuid::new_v5(&self.firmware_uuid(), b"serial")
    }

    /// MAC address of a network card that has none in the spec.
    pub fn mac(&self, nic: &str) -> Mac {
        Mac::derived(self.cluster, self.namespace, self.name, nic)
    }

    /// Labels of every object that is created for the Machine. A Machine's name has at most 63
    /// characters, which is also the limit of a label value.
    pub fn labels(&self) -> BTreeMap<String, String> {
        [
            (names::LABEL_MANAGED_BY, names::MANAGED_BY),
            (names::LABEL_MACHINE, self.name),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }
}

/// The uuid of a Machine's guest, the same on every backend.
pub(super) fn machine_uuid(uid: &str) -> Uuid {
    Uuid::new_v5(&UUID_NAMESPACE, uid.as_bytes())
}

/// Digest of a rendered object, stored on the object in the annotation
/// [`ANNOTATION_RENDERED`](names::ANNOTATION_RENDERED). It changes when a field is removed from the
/// desired state. A comparison with the live object cannot show that: the API server and other
/// controllers add fields of their own.
pub fn digest(rendered: &impl Serialize) -> String {
    // Serialization cannot fail: all rendered maps have string keys.
    let text = serde_json::to_vec(rendered).unwrap_or_default();
    let mut first = [0; DIGEST_BYTES];
    for (target, byte) in first.iter_mut().zip(Sha256::digest(text)) {
        *target = byte;
    }
    format!("{:032x}", u128::from_be_bytes(first))
}

/// 128 bits: two different objects never get the same digest by accident, and 32 hexadecimal digits
/// stay short in an annotation.
const DIGEST_BYTES: usize = 16;
