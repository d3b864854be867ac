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
