//! Patterns for names: `*` stands for any number of any characters, everything else for itself.

use std::fmt;

/// A pattern that a whole name must match. Upper and lower case are different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Box<str>);

impl Glob {
    /// The pattern of this text. Every text is a pattern.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the pattern matches one name only, which is its text.
    pub fn is_name(&self) -> bool {
        !self.0.contains('*')
    }

    /// Whether the whole name matches. The parts between the stars are searched from left to right, each behind
    /// the one before: if any match exists, the leftmost one leaves the most text for the rest. So the time is at
    /// most the product of both lengths, for any pattern.
    pub fn matches(&self, name: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else {
            return *self.0 == *name;
        };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(mut name) = name
            .strip_prefix(first)
            .and_then(|name| name.strip_suffix(last))
        else {
            return false;
        };
        for part in middle.split('*') {
            let Some(at) = name.find(part) else {
                return false;
            };
            name = &name[at + part.len()..];
        }
        true
    }

    /// Whether this pattern matches every name that the pattern `other` matches: a star matches stars, too, and the parts
    /// between the stars are found in `other`, which has them in each name.
    pub fn includes(&self, other: &str) -> bool {
        self.matches(other)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pattern_matches_whole_names_and_only_the_star_is_special() {
        for (pattern, name, matches) in [
            ("web", "web", true),
            ("web", "web-1", false),
            ("web", "Web", false),
            ("web-*", "web-", true),
            ("web-*", "web-1", true),
            ("web-*", "my-web-1", false),
            ("*", "", true),
            ("*", "a.b/c", true),
            ("*-ssd", "fast-ssd", true),
            ("*-ssd", "ssd", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            // Beginning and end may not share characters.
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
            ("a**b", "ab", true),
            ("a.b", "axb", false),
            ("a?", "ab", false),
            ("[a]*", "a", false),
        ] {
            assert_eq!(
                Glob::new(pattern).matches(name),
                matches,
                "{pattern} {name}"
            );
        }
    }

    /// The definition: a star takes no character, or one and is tried again.
    fn by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) if by_definition(rest, name) => true,
            ([b'*', ..], [_, name @ ..]) => by_definition(pattern, name),
            ([expected, pattern @ ..], [first, name @ ..]) => {
                expected == first && by_definition(pattern, name)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn a_pattern_that_includes_another_matches_all_of_its_names(
            wide in "[ab*]{0,6}", narrow in "[ab*]{0,6}", name in "[ab]{0,8}",
        ) {
            let includes = Glob::new(&wide).includes(&narrow);
            prop_assert!(!(includes && Glob::new(&narrow).matches(&name)) || Glob::new(&wide).matches(&name));
        }

        #[test]
        fn a_match_is_found_exactly_if_the_definition_has_one(pattern in "[ab*]{0,8}", name in "[ab]{0,8}") {
            let expected = by_definition(pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(Glob::new(&pattern).matches(&name), expected);
        }
    }
}
