//! The Machine that an object is rendered for, and the values derived from it: uuids, MAC addresses,
//! labels. Derived and not random, so that the same Machine is always rendered to the same bytes.

use std::collections::BTreeMap;

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::mac::Mac;
use crate::names;

/// Namespace of the UUIDs this product derives; a fixed random UUID of its own.
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
    /// SMBIOS uuid: lives and dies with the Machine object, so that a machine that is deleted and
    /// made anew is a new instance to cloud-init.
    pub(super) fn firmware_uuid(&self) -> Uuid {
        machine_uuid(self.uid)
    }

    /// SMBIOS serial number.
    pub(super) fn firmware_serial(&self) -> Uuid {
        Uuid::new_v5(&self.firmware_uuid(), b"serial")
    }

    /// MAC address of a network card that has none in the spec.
    pub fn mac(&self, nic: &str) -> Mac {
        Mac::derived(self.cluster, self.namespace, self.name, nic)
    }

    /// Labels of everything that is made for the Machine. Its name is at most 63 characters, which
    /// is what a label's value may have.
    pub fn labels(&self) -> BTreeMap<String, String> {
        [
            (names::LABEL_MANAGED_BY, names::MANAGED_BY),
            (names::LABEL_MACHINE, self.name),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }
}

/// The uuid that the guest of a Machine has on every backend.
pub(super) fn machine_uuid(uid: &str) -> Uuid {
    Uuid::new_v5(&UUID_NAMESPACE, uid.as_bytes())
}

/// A digest of what was rendered, kept on the object as
/// [`ANNOTATION_RENDERED`](names::ANNOTATION_RENDERED): tells that a field is gone from the wish,
/// which a comparison with the live object cannot.
pub fn digest(rendered: &impl Serialize) -> String {
    // Types of this module always serialize: no maps but those with text keys.
    let text = serde_json::to_vec(rendered).unwrap_or_default();
    let mut bits = [0; DIGEST_BYTES];
    for (bit, byte) in bits.iter_mut().zip(Sha256::digest(text)) {
        *bit = byte;
    }
    format!("{:032x}", u128::from_be_bytes(bits))
}

/// 128 bits: no accident makes two wishes the same, and the text stays short.
const DIGEST_BYTES: usize = 16;
