//! MAC addresses: parsed as Go parses them, and displayed so that they are parsed to the same address.

use common::mac::Mac;

/// A text is parsed to the address that a second, simpler parser finds.
pub fn text(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let parsed = text.parse::<Mac>().ok();
    assert_eq!(parsed, by_format(text).map(Mac::new), "{text:?}");
    if let Some(mac) = parsed {
        let written = mac.to_string();
        assert_eq!(written.parse(), Ok(mac), "{text:?}");
        assert_eq!(mac.is_multicast(), mac.bytes()[0] % 2 == 1, "{text:?}");
        assert!(!mac.is_broadcast() || mac.is_multicast(), "{text:?}");
        assert!(!mac.is_zero() || written == "00:00:00:00:00:00", "{text:?}");
    }
}

/// The address, if the text has one of the three formats with hexadecimal digits for `x`.
fn by_format(text: &str) -> Option<[u8; 6]> {
    let has = |format: &str| {
        let mut pairs = format.bytes().zip(text.bytes());
        text.len() == format.len()
            && pairs.all(|(expected, byte)| match expected {
                b'x' => byte.is_ascii_hexdigit(),
                separator => byte == separator,
            })
    };
    ["xx:xx:xx:xx:xx:xx", "xx-xx-xx-xx-xx-xx", "xxxx.xxxx.xxxx"]
        .into_iter()
        .find(|format| has(format))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u64::from_str_radix(&digits, 16).ok()?;
    let [_, _, bytes @ ..] = number.to_be_bytes();
    Some(bytes)
}
