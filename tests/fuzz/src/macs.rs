//! MAC addresses: read as Go reads them, written so that they are read again.

use common::mac::Mac;

/// A text is an address exactly when it is one by another way of reading it.
pub fn text(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let read = text.parse::<Mac>().ok();
    assert_eq!(read, by_form(text).map(Mac::new), "{text:?}");
    if let Some(mac) = read {
        let written = mac.to_string();
        assert_eq!(written.parse(), Ok(mac), "{text:?}");
        assert_eq!(mac.is_multicast(), mac.bytes()[0] % 2 == 1, "{text:?}");
        assert!(!mac.is_broadcast() || mac.is_multicast(), "{text:?}");
        assert!(!mac.is_zero() || written == "00:00:00:00:00:00", "{text:?}");
    }
}

/// The address, if the text has one of the three forms with hexadecimal digits in the places of `x`.
fn by_form(text: &str) -> Option<[u8; 6]> {
    let has = |form: &str| {
        let mut pairs = form.bytes().zip(text.bytes());
        text.len() == form.len()
            && pairs.all(|(form, is)| match form {
                b'x' => is.is_ascii_hexdigit(),
                sign => is == sign,
            })
    };
    ["xx:xx:xx:xx:xx:xx", "xx-xx-xx-xx-xx-xx", "xxxx.xxxx.xxxx"]
        .into_iter()
        .find(|form| has(form))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u64::from_str_radix(&digits, 16).ok()?;
    let [_, _, bytes @ ..] = number.to_be_bytes();
    Some(bytes)
}
