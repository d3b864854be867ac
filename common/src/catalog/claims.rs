//! PersistentVolumeClaims and the Machines that they were created for.

use std::collections::HashMap;
use std::num::NonZeroU8;

use crate::names;

/// Claims by namespace and name. A row is the claim's name and 16 bytes.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    namespaces: HashMap<Box<str>, HashMap<Box<str>, Claim>>,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    machine: MachineNameLength,
    /// Whether several nodes can write to it: its access modes have ReadWriteMany.
    is_shared: bool,
    /// Requested bytes.
    size: u64,
}

impl Claim {
    /// The Machine that the claim of this name was created for.
    fn machine<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.get(..self.machine?.get().into())
    }
}

/// Length of the name of the Machine that a claim was created for. That name is the beginning of the
/// claim's name, so the length identifies it. `None`: the claim was created for no Machine.
type MachineNameLength = Option<NonZeroU8>;

/// The object that a claim was created for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOwner<'a> {
    /// A disk of a Machine of this name. A new Machine of the name takes the claim over.
    Machine(&'a str),
    /// No Machine.
    Foreign,
}

impl Claims {
    /// Adds or replaces a claim with these labels and this size in bytes. `is_shared`: whether its access modes have
    /// ReadWriteMany.
    pub fn insert<'l>(
        &mut self,
        namespace: &str,
        name: &str,
        label: impl Fn(&str) -> Option<&'l str>,
        size: u64,
        is_shared: bool,
    ) {
        let claims = match self.namespaces.get_mut(namespace) {
            Some(claims) => claims,
            None => self.namespaces.entry(namespace.into()).or_default(),
        };
        let machine = machine_name_length(name, label);
        let claim = Claim {
            machine,
            is_shared,
            size,
        };
        claims.insert(name.into(), claim);
    }

    /// Removes a claim.
    pub fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(claims) = self.namespaces.get_mut(namespace) {
            claims.remove(name);
            if claims.is_empty() {
                self.namespaces.remove(namespace);
            }
        }
    }

    /// The owner of the claim of this name; `None` if there is no such claim.
    pub fn owner<'a>(&self, namespace: &str, claim: &'a str) -> Option<ClaimOwner<'a>> {
        let machine = self.namespaces.get(namespace)?.get(claim)?.machine(claim);
        Some(machine.map_or(ClaimOwner::Foreign, ClaimOwner::Machine))
    }

    /// Whether several nodes can write to the claim of this name; `None` if there is no such claim.
    pub fn is_shared(&self, namespace: &str, claim: &str) -> Option<bool> {
        let claim = self.namespaces.get(namespace)?.get(claim)?;
        Some(claim.is_shared)
    }

    /// The claims of a namespace that were created for the disk of a Machine: name of the Machine, name of the disk,
    /// bytes.
    pub(super) fn of_disks(&self, namespace: &str) -> impl Iterator<Item = (&str, &str, u64)> {
        let claims = self.namespaces.get(namespace).into_iter().flatten();
        claims.filter_map(|(name, claim)| {
            let machine = claim.machine(name)?;
            // The name is `<machine>-<disk>`.
            let disk = name.get(machine.len() + 1..)?;
            Some((machine, disk, claim.size))
        })
    }

    /// Number of claims.
    pub fn len(&self) -> usize {
        self.namespaces.values().map(HashMap::len).sum()
    }

    /// Whether there are no claims.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }
}

/// Reads the labels as the controller does when it looks for a claim to take over.
fn machine_name_length<'l>(
    name: &str,
    label: impl Fn(&str) -> Option<&'l str>,
) -> MachineNameLength {
    let machine = label(names::LABEL_MACHINE)?;
    let is_ours = label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY)
        && name == names::claim(machine, label(names::LABEL_DISK)?);
    // The name of a Machine has at most 63 characters.
    let length = is_ours.then(|| u8::try_from(machine.len()).ok())??;
    NonZeroU8::new(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(claims: &mut Claims, name: &str, labels: &[(&str, &'static str)]) {
        let label = |key: &str| {
            let found = labels.iter().find(|(known, _)| *known == key);
            found.map(|(_, value)| *value)
        };
        claims.insert("prod", name, label, 0, false);
    }

    const OURS: (&str, &str) = (names::LABEL_MANAGED_BY, names::MANAGED_BY);

    #[test]
    fn a_claim_is_of_the_machine_of_its_labels_if_its_name_matches_them() {
        let of = |machine, disk| {
            [
                OURS,
                (names::LABEL_MACHINE, machine),
                (names::LABEL_DISK, disk),
            ]
        };
        let mut claims = Claims::default();
        insert(&mut claims, "a-b-c", &of("a-b", "c"));
        insert(&mut claims, "a-b-d", &of("a", "b-d"));
        // Labels that do not match the name of the claim, or are incomplete.
        insert(&mut claims, "web-data", &of("db", "data"));
        insert(&mut claims, "web-root", &of("web", "root")[1..]);
        insert(&mut claims, "web-log", &of("web", "log")[..2]);
        insert(&mut claims, "-data", &of("", "data"));
        insert(&mut claims, "plain", &[]);
        for (name, owner) in [
            ("a-b-c", Some(ClaimOwner::Machine("a-b"))),
            ("a-b-d", Some(ClaimOwner::Machine("a"))),
            ("web-data", Some(ClaimOwner::Foreign)),
            ("web-root", Some(ClaimOwner::Foreign)),
            ("web-log", Some(ClaimOwner::Foreign)),
            ("-data", Some(ClaimOwner::Foreign)),
            ("plain", Some(ClaimOwner::Foreign)),
            ("other", None),
        ] {
            assert_eq!(claims.owner("prod", name), owner, "{name}");
            assert_eq!(claims.owner("test", name), None, "{name}");
        }
    }

    #[test]
    fn a_repeated_insert_replaces_the_claim_and_a_removal_deletes_only_it() {
        let mut claims = Claims::default();
        insert(&mut claims, "web-data", &[]);
        let labels = [
            OURS,
            (names::LABEL_MACHINE, "web"),
            (names::LABEL_DISK, "data"),
        ];
        insert(&mut claims, "web-data", &labels);
        assert_eq!(
            claims.owner("prod", "web-data"),
            Some(ClaimOwner::Machine("web"))
        );
        assert_eq!(claims.len(), 1);
        claims.remove("test", "web-data");
        claims.remove("prod", "web-root");
        assert_eq!(claims.len(), 1);
        claims.remove("prod", "web-data");
        assert!(claims.is_empty() && claims.owner("prod", "web-data").is_none());
    }
}
