//! Parts of a host that cannot be read: which, why, and the command that repairs it.

use std::borrow::Cow;

use crate::access::{AccessError, Network, Pool};

/// A name as an argument of a command in a shell. Names of libvirt's pools and networks may have blanks and quotes.
pub(crate) fn shell_word(name: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.+@".contains(c);
    if !name.is_empty() && name.chars().all(is_plain) {
        return name.into();
    }
    format!("'{}'", name.replace('\'', r"'\''")).into()
}

/// Why a pool cannot be read; `None`: it is active.
pub(crate) fn pool_fault(pools: &[Pool], name: &str) -> Option<String> {
    let word = shell_word(name);
    match pools.iter().find(|pool| pool.name == name) {
        None => Some(format!(
            "pool '{name}' does not exist: define it on the host (virsh pool-define-as) and start it (virsh pool-start {word})"
        )),
        Some(pool) if !pool.active => Some(format!(
            "pool '{name}' is not active: start it on the host (virsh pool-start {word})"
        )),
        Some(_) => None,
    }
}

/// Why no disk of a Machine is made or grows in a pool; `None`: its volumes are files, or it is not there.
///
/// A new logical volume of LVM has what the former volumes wrote to its extents, and so have the volumes of other pools of
/// devices. The guest could read the deleted disk of another namespace.
pub(crate) fn pool_type_fault(pools: &[Pool], name: &str) -> Option<String> {
    let pool = pools.iter().find(|pool| pool.name == name)?;
    (!pool.has_files()).then(|| {
        format!(
            "pool '{name}' is of type '{}', in which a new volume may show the content of a deleted one: define a pool of type dir, fs or netfs on the host (virsh pool-define-as) and name it in the LibvirtHost",
            pool.kind
        )
    })
}

/// Why a pool that a LibvirtHost names cannot be used; `None`: it is active, and its volumes are files.
pub(crate) fn offered_pool_fault(pools: &[Pool], name: &str) -> Option<String> {
    pool_fault(pools, name).or_else(|| pool_type_fault(pools, name))
}

/// Why the volumes of a pool are not given to guests as they are; `None`: it is an active folder of this host, and no
/// other pool has it. The use of a volume is looked up by its path.
pub(crate) fn existing_pool_fault(pools: &[Pool], name: &str) -> Option<String> {
    if let Some(fault) = pool_fault(pools, name) {
        return Some(fault);
    }
    let folder = |pool: &Pool| {
        pool.path
            .as_deref()
            .map(|path| path.trim_end_matches('/').to_owned())
    };
    let pool = pools.iter().find(|pool| pool.name == name)?;
    let Some(own) = folder(pool).filter(|_| pool.is_local()) else {
        return Some(format!(
            "pool '{name}' is not a directory of this host alone, so another host could give its volumes to a guest: define a pool of type dir or fs"
        ));
    };
    let mut others = pools.iter().filter(|other| other.name != name);
    let other = others.find(|other| folder(other).as_ref() == Some(&own))?;
    Some(format!(
        "pool '{name}' has the folder of pool '{}': give it a folder of its own",
        other.name
    ))
}

/// Why a pool could not be read, after a call failed.
pub(crate) fn unreadable_pool(pools: &[Pool], name: &str, error: &AccessError) -> String {
    pool_fault(pools, name).unwrap_or_else(|| {
        let word = shell_word(name);
        format!(
            "pool '{name}' cannot be read ({error}): repair it on the host (virsh pool-refresh {word})"
        )
    })
}

/// Why a virtual network cannot be used; `None`: it is active.
pub(crate) fn network_fault(networks: &[Network], name: &str) -> Option<String> {
    let word = shell_word(name);
    match networks.iter().find(|network| network.name == name) {
        None => Some(format!(
            "network '{name}' does not exist: define it on the host (virsh net-define) and start it (virsh net-start {word})"
        )),
        Some(network) if !network.active => Some(format!(
            "network '{name}' is not active: start it on the host (virsh net-start {word})"
        )),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_disks_are_folders_and_those_of_existing_volumes_are_of_one_host_alone() {
        let pool = |name: &str, path: Option<&str>, kind: &str| Pool {
            name: name.into(),
            active: true,
            kind: kind.into(),
            path: path.map(str::to_owned),
            capacity: 0,
            available: 0,
        };
        let pools = [
            pool("own", Some("/own"), "dir"),
            pool("same", Some("/vms"), "fs"),
            pool("vms", Some("/vms/"), "dir"),
            pool("nfs", Some("/nfs"), "netfs"),
            pool("lvm", None, "logical"),
        ];
        let fault = |name: &str| existing_pool_fault(&pools, name).unwrap_or_default();
        assert_eq!(fault("own"), "");
        for (name, part) in [
            ("same", "has the folder of pool 'vms'"),
            ("nfs", "is not a directory of this host alone"),
            ("lvm", "is not a directory of this host alone"),
            ("none", "does not exist"),
        ] {
            assert!(fault(name).contains(part), "{}", fault(name));
        }
        for (name, part) in [
            ("own", ""),
            ("same", ""),
            ("nfs", ""),
            ("lvm", "is of type 'logical'"),
            ("none", "does not exist"),
        ] {
            let fault = offered_pool_fault(&pools, name).unwrap_or_default();
            assert!(
                fault.is_empty() == part.is_empty() && fault.contains(part),
                "{name}: {fault}"
            );
        }
    }

    #[test]
    fn the_command_of_a_message_takes_a_name_with_blanks_as_one_argument() {
        let message = pool_fault(&[], "My Pool").unwrap_or_default();
        assert!(
            message.ends_with("(virsh pool-start 'My Pool')"),
            "{message}"
        );
        assert_eq!(shell_word("images-1.a"), "images-1.a");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
    }
}
