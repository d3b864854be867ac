//! Machines of a group, which are kept apart by host or zone. Pure.
//!
//! What one of two Machines of a group requires or prefers holds for both, as for pods in Kubernetes. A group belongs
//! to one namespace: Machines of other namespaces are not in it.

use common::api::choice::GroupScope;
use common::api::normalized::NormalizedGroup;
use common::names::LABEL_ZONE;

/// A Machine of a group, on a host.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Namespace of the Machine, and of the group.
    pub(crate) namespace: String,
    /// Name of the Machine.
    pub(crate) name: String,
    /// `placement.antiAffinityGroup` of its block.
    pub(crate) group: NormalizedGroup,
}

/// A host with the Machines of groups on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostMembers<'a> {
    /// Name of the LibvirtHost.
    pub(crate) name: &'a str,
    /// Its zone; `None`: it is in none.
    pub(crate) zone: Option<&'a str>,
    /// Machines of groups that are bound to it.
    pub(crate) members: &'a [Member],
}

/// How many Machines of its group a Machine would share the host or zone with; an error if it or one of them requires to
/// be apart.
pub(crate) fn count_sharing(
    namespace: &str,
    group: &NormalizedGroup,
    host: &HostMembers<'_>,
    hosts: &[HostMembers<'_>],
) -> Result<usize, String> {
    if group.required && group.scope == GroupScope::Zone && host.zone.is_none() {
        return Err(format!("has no label {LABEL_ZONE}"));
    }
    let mut sharing = 0;
    for other in hosts {
        let is_here = other.name == host.name;
        let is_near = is_here || other.zone.is_some() && other.zone == host.zone;
        let members = other.members.iter();
        let members = members.filter(|it| it.namespace == namespace && it.group.name == group.name);
        for member in members {
            let shares = |of: &NormalizedGroup| match of.scope {
                GroupScope::Host => is_here,
                GroupScope::Zone => is_near,
            };
            let [own, theirs] = [group, &member.group].map(shares);
            if own && group.required || theirs && member.group.required {
                let what = if is_here {
                    "on this host"
                } else {
                    "in this zone"
                };
                return Err(format!(
                    "Machine '{}' of group '{}' is {what}",
                    member.name, group.name
                ));
            }
            sharing += usize::from(own || theirs);
        }
    }
    Ok(sharing)
}

#[cfg(test)]
mod tests {
    use super::GroupScope::{Host, Zone};
    use super::*;

    fn group(scope: GroupScope, required: bool) -> NormalizedGroup {
        NormalizedGroup {
            name: "db".into(),
            required,
            scope,
        }
    }

    /// Alpha and beta are in one zone, gamma is in another one. The Machine `first` is on alpha.
    fn answers(own: &NormalizedGroup, first: &Member) -> [Result<usize, String>; 3] {
        let members = std::slice::from_ref(first);
        let hosts = [
            ("alpha", "a", members),
            ("beta", "a", &[]),
            ("gamma", "b", &[]),
        ]
        .map(|(name, zone, members)| HostMembers {
            name,
            zone: Some(zone),
            members,
        });
        hosts.map(|host| count_sharing("default", own, &host, &hosts))
    }

    fn first(namespace: &str, group: NormalizedGroup) -> Member {
        Member {
            namespace: namespace.into(),
            name: "first".into(),
            group,
        }
    }

    #[test]
    fn a_preference_counts_who_is_near_and_a_requirement_of_either_refuses_the_host() {
        let host = || Err("Machine 'first' of group 'db' is on this host".to_owned());
        let zone = || Err("Machine 'first' of group 'db' is in this zone".to_owned());
        for (own, theirs, expected) in [
            ((Host, false), (Host, false), [Ok(1), Ok(0), Ok(0)]),
            ((Zone, false), (Host, false), [Ok(1), Ok(1), Ok(0)]),
            ((Host, true), (Host, false), [host(), Ok(0), Ok(0)]),
            ((Host, false), (Host, true), [host(), Ok(0), Ok(0)]),
            ((Zone, true), (Host, false), [host(), zone(), Ok(0)]),
            ((Host, false), (Zone, true), [host(), zone(), Ok(0)]),
        ] {
            let [own, theirs] = [own, theirs].map(|(scope, required)| group(scope, required));
            let found = answers(&own, &first("default", theirs.clone()));
            assert_eq!(found, expected, "{own} beside {theirs}");
        }
    }

    #[test]
    fn a_group_is_one_of_its_namespace_and_a_zone_is_a_label() {
        let other = first("other", group(Host, true));
        assert_eq!(answers(&group(Host, true), &other), [Ok(0), Ok(0), Ok(0)]);
        let nowhere = HostMembers {
            name: "alpha",
            zone: None,
            members: &[],
        };
        let found = count_sharing("default", &group(Zone, true), &nowhere, &[nowhere]);
        assert_eq!(
            found,
            Err("has no label topology.kubernetes.io/zone".into())
        );
        assert_eq!(
            count_sharing("default", &group(Zone, false), &nowhere, &[nowhere]),
            Ok(0)
        );
    }
}
