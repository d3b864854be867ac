use proptest::prelude::*;

use super::*;

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

#[test]
fn a_network_is_an_address_and_a_prefix_without_bits_of_a_host() {
    for text in [
        "10.0.0.0/24",
        "10.0.0.4/31",
        "10.1.2.3/32",
        "10.0.0.0/8",
        "fd00::/64",
        "fd00::1/128",
        "2001:db8::/8",
    ] {
        let parsed = text.parse::<Cidr>();
        if text == "2001:db8::/8" {
            assert_eq!(parsed, Err(CidrError::HostBits(cidr("2000::/8"))));
        } else {
            assert_eq!(parsed.unwrap().to_string(), text);
        }
    }
    for text in [
        "",
        "10.0.0.0",
        "10.0.0.0/",
        "10.0.0.0/+24",
        "10.0.0.0/2 4",
        "10.0.0.0/255.255.255.0",
        "10.0.0/24",
        "010.0.0.0/24",
        "net/24",
    ] {
        assert_eq!(text.parse::<Cidr>(), Err(CidrError::Form), "{text}");
    }
    assert_eq!(
        "10.0.0.5/24".parse::<Cidr>(),
        Err(CidrError::HostBits(cidr("10.0.0.0/24")))
    );
    assert_eq!(
        "fd00::5/64".parse::<Cidr>(),
        Err(CidrError::HostBits(cidr("fd00::/64")))
    );
    for (text, length, most) in [
        ("10.0.0.0/33", 33, 32),
        ("0.0.0.0/0", 0, 32),
        ("fd00::/129", 129, 128),
    ] {
        assert_eq!(
            text.parse::<Cidr>(),
            Err(CidrError::Prefix { length, most }),
            "{text}"
        );
    }
    for text in [
        "127.0.0.0/24",
        "224.0.0.0/24",
        "169.254.0.0/16",
        "0.0.0.0/8",
        "fe80::/64",
        "ff02::/64",
        "::ffff:10.0.0.0/120",
    ] {
        assert_eq!(text.parse::<Cidr>(), Err(CidrError::Special), "{text}");
    }
}

#[test]
fn hosts_have_neither_the_address_of_the_network_nor_the_broadcast_address() {
    for (text, hosts, count) in [
        ("10.0.0.0/24", "10.0.0.1-10.0.0.254", 254),
        ("10.0.0.0/30", "10.0.0.1-10.0.0.2", 2),
        ("10.0.0.0/31", "10.0.0.0-10.0.0.1", 2),
        ("10.0.0.7/32", "10.0.0.7", 1),
        ("fd00::/126", "fd00::1-fd00::3", 3),
        ("fd00::/127", "fd00::-fd00::1", 2),
    ] {
        let range = cidr(text).hosts();
        assert_eq!(
            (range.to_string().as_str(), range.len()),
            (hosts, count),
            "{text}"
        );
    }
}

#[test]
fn networks_overlap_if_one_contains_the_other() {
    assert!(cidr("10.0.0.0/8").overlaps(cidr("10.9.0.0/16")));
    assert!(cidr("10.9.0.0/16").overlaps(cidr("10.0.0.0/8")));
    assert!(!cidr("10.9.0.0/16").overlaps(cidr("10.10.0.0/16")));
    assert!(!cidr("10.0.0.0/8").overlaps(cidr("fd00::/8")));
}

#[test]
fn a_range_is_one_address_or_two_of_one_family_in_order() {
    let range = |text: &str| text.parse::<AddressRange>();
    assert_eq!(range("10.0.0.9").unwrap().to_string(), "10.0.0.9");
    assert_eq!(range("10.0.0.9 - 10.0.0.12").unwrap().len(), 4);
    assert_eq!(
        range("fd00::1-fd00::ff")
            .unwrap()
            .nth(254)
            .unwrap()
            .to_string(),
        "fd00::ff"
    );
    assert_eq!(range("fd00::1-fd00::ff").unwrap().nth(255), None);
    assert_eq!(range("10.0.0.9-"), Err(RangeError::Form));
    assert_eq!(range("10.0.0.0/24"), Err(RangeError::Form));
    assert_eq!(range("10.0.0.9-fd00::1"), Err(RangeError::Families));
    let turned = range("10.0.0.1-10.0.0.9").unwrap();
    assert_eq!(range("10.0.0.9-10.0.0.1"), Err(RangeError::Order(turned)));
    let within = turned.within(cidr("10.0.0.0/29").hosts()).unwrap();
    assert_eq!(within.to_string(), "10.0.0.1-10.0.0.6");
    assert_eq!(turned.within(cidr("10.0.1.0/24").all()), None);
}

proptest! {
    #[test]
    fn what_is_displayed_is_parsed_again(bits: u128, prefix in 8_u8..=128, is_v4: bool) {
        let address = if is_v4 { Family::V4 } else { Family::V6 }.address(bits);
        let cidr = Cidr::containing(address, prefix);
        prop_assert!(cidr.contains(address));
        if let Ok(parsed) = cidr.to_string().parse::<Cidr>() {
            prop_assert_eq!(parsed, cidr);
        } else {
            prop_assert!(is_special(cidr.all().first()));
        }
        let hosts = cidr.hosts();
        prop_assert!(cidr.all().contains_all(hosts));
        prop_assert_eq!(hosts.to_string().parse::<AddressRange>().unwrap(), hosts);
    }
}
