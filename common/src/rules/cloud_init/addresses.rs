//! Addresses of network data. Those of version 1 are cloud-init's, and of its releases the most permissive
//! one decides; those of version 2 are netplan's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Family {
    V4,
    V6,
}

/// The family of an address with or without a length of the prefix.
pub(super) fn family(text: &str) -> Option<Family> {
    let address = text.rsplit_once('/').map_or(text, |(address, _)| address);
    Some(match address.parse().ok()? {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    })
}

/// An address of a device: netplan requires the length of the prefix.
pub(super) fn is_of_interface(text: &str) -> bool {
    text.contains('/') && is_of_route(text) && !text.ends_with("/0")
}

/// An end of a route: an address, or a network.
pub(super) fn is_of_route(text: &str) -> bool {
    let longest = match family(text) {
        Some(Family::V4) => 32,
        Some(Family::V6) => 128,
        None => return false,
    };
    let length = text.rsplit_once('/').map(|(_, length)| number(length));
    length.is_none_or(|length| length.is_some_and(|length| length <= longest))
}

/// Destination of a route: such an end, or `default`.
pub(super) fn is_destination_of_route(text: &str) -> bool {
    text == "default" || is_of_route(text)
}

/// A single address.
pub(super) fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// A single address of IPv4.
pub(super) fn is_v4_address(text: &str) -> bool {
    text.parse::<Ipv4Addr>().is_ok()
}

/// A single address of IPv6.
pub(super) fn is_v6_address(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

/// A MAC address with colons: six bytes, or the twenty of InfiniBand.
pub(super) fn is_mac(text: &str) -> bool {
    let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let bytes = text.split(':');
    matches!(bytes.clone().count(), 6 | 20) && bytes.clone().all(is_byte)
}

/// A MAC address to give to a device, or how to choose one.
pub(super) fn is_mac_to_set(text: &str) -> bool {
    const CHOICES: [&str; 7] = [
        "permanent",
        "random",
        "stable",
        "stable-ssid",
        "preserve",
        "persistent",
        "none",
    ];
    CHOICES.contains(&text) || is_mac(text)
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
    fn addresses_that_netplan_accepts_are_accepted() {
        let all = [
            ("192.0.2.10/24", [true, true, false]),
            ("192.0.2.10/32", [true, true, false]),
            ("2001:db8::1/128", [true, true, false]),
            ("::ffff:192.0.2.13/96", [true, true, false]),
            ("192.0.2.10", [false, true, true]),
            ("2001:db8::1", [false, true, true]),
            ("0.0.0.0/0", [false, true, false]),
            ("192.0.2.10/33", [false, false, false]),
            ("2001:db8::1/129", [false, false, false]),
            ("192.0.2.10/255.255.255.0", [false, false, false]),
            ("192.0.02.10/24", [false, false, false]),
            ("192.0.2/24", [false, false, false]),
            ("fe80::1%eth0/64", [false, false, false]),
            ("eth0", [false, false, false]),
            ("", [false, false, false]),
        ];
        for (text, expected) in all {
            let of = [is_of_interface(text), is_of_route(text), is_address(text)];
            assert_eq!(of, expected, "{text}");
        }
        assert!(is_v4_address("192.0.2.1") && !is_v4_address("::1") && is_v6_address("::1"));
        assert!(is_destination_of_route("default") && !is_destination_of_route("all"));
    }

    #[test]
    fn mac_addresses_that_netplan_accepts_are_accepted() {
        for (text, of_card, to_set) in [
            ("52:54:00:12:34:56", true, true),
            ("52:54:00:AB:cd:ef", true, true),
            ("52:54:00:12:34", false, false),
            ("52-54-00-12-34-56", false, false),
            ("5254.0012.3456", false, false),
            ("52:54:00:12:34:5", false, false),
            ("random", false, true),
            ("auto", false, false),
        ] {
            assert_eq!(
                (is_mac(text), is_mac_to_set(text)),
                (of_card, to_set),
                "{text}"
            );
        }
    }

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
