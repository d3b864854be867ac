//! Addresses of network data, as cloud-init and netplan read them. Between the two of them and their
//! releases the more permissive one decides.

use std::net::Ipv6Addr;

/// An address with or without its prefix, which may be a length or a mask.
pub(super) fn is_network(text: &str) -> bool {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let is_prefix = |longest, is_mask: fn(&str) -> bool| {
        prefix.is_none_or(|prefix| number(prefix).is_some_and(|n| n <= longest) || is_mask(prefix))
    };
    is_v4(address) && is_prefix(32, is_v4) || is_v6(address) && is_prefix(128, is_v6)
}

/// Destination of a route: a network, or `default`.
pub(super) fn is_destination(text: &str) -> bool {
    text == "default" || is_network(text)
}

/// Older releases of Python accept leading zeros.
fn is_v4(text: &str) -> bool {
    text.split('.').count() == 4 && text.split('.').all(|part| number(part).is_some())
}

/// A link-local address may name its interface.
fn is_v6(text: &str) -> bool {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    address.parse::<Ipv6Addr>().is_ok()
}

fn number(text: &str) -> Option<u8> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cloud_init_accepts_are_accepted() {
        for text in [
            "192.0.2.10",
            "192.0.2.10/24",
            "192.0.2.10/0",
            "192.0.2.10/255.255.255.0",
            "192.000.002.010/24",
            "2001:db8::10",
            "2001:db8::10/64",
            "2001:db8::10/128",
            "2001:db8::10/ffff:ffff::",
            "::ffff:192.0.2.10/96",
            "fe80::1%eth0/64",
        ] {
            assert!(is_network(text), "{text}");
        }
        for text in [
            "",
            "/24",
            "300.0.0.1/24",
            "192.0.2/24",
            "192.0.2.10/33",
            "192.0.2.10/",
            "192.0.2.10/+8",
            "192.0.2.10/24/24",
            "192.0.2.10/ffff::",
            "192.0.2.10 /24",
            "2001:db8::10/129",
            "2001:db8::10::/64",
            "eth0",
            "default",
        ] {
            assert!(!is_network(text), "{text}");
        }
        assert!(is_destination("default") && is_destination("::/0") && !is_destination("all"));
    }
}
