//! The forms of names of objects, and how a name of another form is corrected.

use crate::bounds::{NAME_MAX, OBJECT_NAME_MAX};
use crate::userinfo::has_password;

/// The form of the names of a kind: lower-case letters, digits and '-', and dots between such parts (RFC 1123).
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameForm {
    /// Longest name in bytes.
    max: usize,
    has_dots: bool,
}

impl NameForm {
    /// A DNS label.
    pub(crate) const LABEL: Self = Self {
        max: NAME_MAX,
        has_dots: false,
    };
    /// A DNS subdomain that is a label's value, too.
    pub(crate) const TEMPLATE: Self = Self {
        max: NAME_MAX,
        has_dots: true,
    };
    /// A DNS subdomain, which every kind of Kubernetes takes.
    pub(crate) const OBJECT: Self = Self {
        max: OBJECT_NAME_MAX,
        has_dots: true,
    };

    /// Whether `text` is a name of this form.
    pub(crate) fn fits(self, text: &str) -> bool {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let part = |part: &str| {
            let has_ends = !part.starts_with('-') && !part.ends_with('-');
            !part.is_empty() && has_ends && part.bytes().all(inner)
        };
        let is_whole = self.has_dots || !text.contains('.');
        text.len() <= self.max && is_whole && text.split('.').all(part)
    }

    /// The nearest name of this form, if the text has any usable characters. None for a URI with a password, of which
    /// it would consist.
    pub(crate) fn nearest(self, text: &str) -> Option<String> {
        let mapped: String = text
            .chars()
            .map(|c| match c {
                '.' if self.has_dots => c,
                c if c.is_ascii_alphanumeric() => c.to_ascii_lowercase(),
                _ => '-',
            })
            .collect();
        let parts = mapped.split('.').map(|part| part.trim_matches('-'));
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
        let name: String = parts.join(".").chars().take(self.max).collect();
        let name = name.trim_end_matches(['-', '.']).to_owned();
        (self.fits(&name) && !has_password(text)).then_some(name)
    }

    /// `must be …`
    pub(crate) fn requirement(self) -> String {
        let max = self.max;
        if self.has_dots {
            format!(
                "must be lower-case letters, digits, '-' and '.', at most {max}, with a letter or digit at both ends of each part"
            )
        } else {
            format!(
                "must be lower-case letters, digits and '-', at most {max}, with a letter or digit at both ends"
            )
        }
    }

    /// How to correct a name that is not of this form. Proposes the nearest one if `is_free` says that no other item
    /// has it.
    pub(crate) fn fix(self, text: &str, is_free: impl Fn(&str) -> bool) -> String {
        let requirement = self.requirement();
        match self.nearest(text).filter(|name| is_free(name)) {
            Some(name) => format!("{requirement}; try '{name}'"),
            None => requirement,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_as_in_kubernetes() {
        for (text, label, object) in [
            ("a", true, true),
            ("a-b", true, true),
            ("0", true, true),
            ("", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("A", false, false),
            ("a_b", false, false),
            ("a.b", false, true),
            ("a..b", false, false),
            ("a.-b", false, false),
            (".", false, false),
        ] {
            assert_eq!(NameForm::LABEL.fits(text), label, "{text}");
            assert_eq!(NameForm::TEMPLATE.fits(text), object, "{text}");
            assert_eq!(NameForm::OBJECT.fits(text), object, "{text}");
        }
        for (form, max) in [
            (NameForm::LABEL, 63),
            (NameForm::TEMPLATE, 63),
            (NameForm::OBJECT, 253),
        ] {
            assert!(form.fits(&"a".repeat(max)) && !form.fits(&"a".repeat(max + 1)));
        }
    }

    #[test]
    fn an_invalid_name_is_corrected_to_the_nearest_one() {
        for (text, label, object) in [
            ("Web_1", Some("web-1"), Some("web-1")),
            ("my.Host", Some("my-host"), Some("my.host")),
            ("my..host.", Some("my--host"), Some("my.host")),
            ("prod._tcp", Some("prod--tcp"), Some("prod.tcp")),
            ("--", None, None),
            ("ü", None, None),
            ("https://user:word@host", None, None),
        ] {
            assert_eq!(NameForm::LABEL.nearest(text).as_deref(), label, "{text}");
            assert_eq!(NameForm::OBJECT.nearest(text).as_deref(), object, "{text}");
        }
        let long = NameForm::LABEL.nearest(&"a".repeat(70));
        assert_eq!(long.map(|label| label.len()), Some(63));
    }
}
