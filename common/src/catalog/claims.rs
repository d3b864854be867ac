//! Whose each claim is.

use std::collections::HashMap;
use std::num::NonZeroU8;

use crate::names;

/// Claims by name. A row is the claim's name and a byte.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    namespaces: HashMap<Box<str>, HashMap<Box<str>, Maker>>,
}

/// Who a claim was made for: the name of a Machine is the beginning of the claim's own, so its length
/// tells it. `None`: nobody of ours.
type Maker = Option<NonZeroU8>;

/// Who a claim was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOwner<'a> {
    /// A disk of a Machine of this name, which takes the claim over when it is made anew.
    Machine(&'a str),
    /// Nobody of ours.
    Stranger,
}

impl Claims {
    /// A claim is there, with these labels.
    pub fn insert<'l>(
        &mut self,
        namespace: &str,
        name: &str,
        label: impl Fn(&str) -> Option<&'l str>,
    ) {
        let claims = match self.namespaces.get_mut(namespace) {
            Some(claims) => claims,
            None => self.namespaces.entry(namespace.into()).or_default(),
        };
        claims.insert(name.into(), maker(name, label));
    }

    /// A claim is gone.
    pub fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(claims) = self.namespaces.get_mut(namespace) {
            claims.remove(name);
            if claims.is_empty() {
                self.namespaces.remove(namespace);
            }
        }
    }

    /// Whose the claim of this name is, if there is one.
    pub fn owner<'a>(&self, namespace: &str, claim: &'a str) -> Option<ClaimOwner<'a>> {
        let maker = self.namespaces.get(namespace)?.get(claim)?;
        let machine = maker.and_then(|length| claim.get(..length.get().into()));
        Some(machine.map_or(ClaimOwner::Stranger, ClaimOwner::Machine))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.namespaces.values().map(HashMap::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }
}

/// Reads the labels as the controller does when it looks for a claim to take over.
fn maker<'l>(name: &str, label: impl Fn(&str) -> Option<&'l str>) -> Maker {
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
        claims.insert("prod", name, |key| {
            let found = labels.iter().find(|(known, _)| *known == key);
            found.map(|(_, value)| *value)
        });
    }

    const OURS: (&str, &str) = (names::LABEL_MANAGED_BY, names::MANAGED_BY);

    #[test]
    fn labels_tell_whose_a_claim_is() {
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
        // Labels that somebody wrote who did not make the claim.
        insert(&mut claims, "web-data", &of("db", "data"));
        insert(&mut claims, "web-root", &of("web", "root")[1..]);
        insert(&mut claims, "web-log", &of("web", "log")[..2]);
        insert(&mut claims, "-data", &of("", "data"));
        insert(&mut claims, "plain", &[]);
        for (name, owner) in [
            ("a-b-c", Some(ClaimOwner::Machine("a-b"))),
            ("a-b-d", Some(ClaimOwner::Machine("a"))),
            ("web-data", Some(ClaimOwner::Stranger)),
            ("web-root", Some(ClaimOwner::Stranger)),
            ("web-log", Some(ClaimOwner::Stranger)),
            ("-data", Some(ClaimOwner::Stranger)),
            ("plain", Some(ClaimOwner::Stranger)),
            ("other", None),
        ] {
            assert_eq!(claims.owner("prod", name), owner, "{name}");
            assert_eq!(claims.owner("test", name), None, "{name}");
        }
    }

    #[test]
    fn the_last_word_about_a_claim_counts() {
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
