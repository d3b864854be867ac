//! Parts of messages: shortened values, lists of names, counts, suggestions for misspelled names.

use std::fmt::Display;

use crate::userinfo::without_password;

/// Longest part of a user's value in a message, in characters.
pub(crate) const VALUE_SHOWN_MAX: usize = 64;
/// Most names in a message; a catalog can contain thousands.
const NAMES_SHOWN_MAX: usize = 10;
/// Most names that a value is compared with. Comparing two of 64 characters takes some 8 µs, and each of the 32 cards of a
/// Machine may name a NetworkConfiguration that does not exist: with these many names such a review takes some 70 ms. Of
/// more names none is suggested: if the first so many were compared, the one that is meant could be among the rest, and
/// the suggestion would be wrong.
const NAMES_COMPARED_MAX: usize = 256;

/// `text` in at most `max` characters.
pub(crate) fn cut(text: &str, max: usize) -> String {
    // A text has at least as many bytes as characters, so a short one need not be counted.
    if text.len() <= max || text.chars().nth(max).is_none() {
        return text.to_owned();
    }
    let shown = text.chars().take(max.saturating_sub(1));
    shown.chain(['…']).collect()
}

/// A value as messages show it: at most 64 characters, without the password of a URI.
pub(crate) fn shortened(value: &str) -> String {
    cut(&without_password(value), VALUE_SHOWN_MAX)
}

/// A user's text as messages show it: quoted, escaped, shortened.
pub(crate) fn quoted(value: &str) -> String {
    format!("{:?}", shortened(value))
}

/// `"a", "b"`, as Kubernetes lists supported values.
pub(crate) fn quoted_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names
        .into_iter()
        .map(|name| format!("\"{name}\""))
        .collect::<Vec<_>>()
        .join(", ")
}

/// `a=1,b=2`, as kubectl selects by labels.
pub fn labels_text<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let pairs = labels.into_iter();
    let pairs = pairs.map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

/// `a, b and c`, or `a, b and 7 more`; sorted.
pub fn name_list(mut names: Vec<String>) -> String {
    names.sort();
    names.dedup();
    listed(names)
}

/// `a, b and c`, or `a, b and 7 more`, in this order.
pub(crate) fn listed(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(NAMES_SHOWN_MAX);
    names.truncate(NAMES_SHOWN_MAX);
    let last = match more {
        0 => names.pop(),
        more => Some(format!("{more} more")),
    };
    match (names.join(", "), last) {
        (_, None) => "(none)".to_owned(),
        (first, Some(last)) if first.is_empty() => last,
        (first, Some(last)) => format!("{first} and {last}"),
    }
}

/// `disk 'data'`, or `another disk` if it has no name.
pub(crate) fn titled(kind: &str, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{kind} '{}'", shortened(name).escape_debug()),
        None => format!("another {kind}"),
    }
}

/// `1 disk`, `2 disks`.
pub(crate) fn counted(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    let plural = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// A text as it is compared with others: whatever its case, and of a long one only the part that messages show, because the
/// distance costs the product of both lengths.
fn compared(text: &str) -> String {
    cut(text, VALUE_SHOWN_MAX).to_lowercase()
}

/// The edit distance of a [`compared`] text and a name.
fn distance(compared_text: &str, name: &str) -> usize {
    strsim::osa_distance(compared_text, &compared(name))
}

/// As [`name_list`], with the names that are nearest to a value first. More than [`NAMES_COMPARED_MAX`] are in
/// alphabetical order.
pub(crate) fn nearest_first(value: &str, mut names: Vec<String>) -> String {
    names.sort();
    names.dedup();
    if names.len() <= NAMES_COMPARED_MAX {
        let value = compared(value);
        names.sort_by_cached_key(|name| distance(&value, name));
    }
    listed(names)
}

/// The name that the user most likely meant: the one with the smallest edit distance, which must be at most
/// a third of its length. Of equally near names, the first in alphabetical order. None, if more than
/// [`NAMES_COMPARED_MAX`] are of such a length.
pub(crate) fn nearest<'a>(
    wrong: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let length = wrong.chars().count();
    // The distance is at least the difference of the lengths, so a text that is much longer is not compared.
    let near = |name: &&str, distance: usize| {
        distance * 3 <= name.chars().count().clamp(3, VALUE_SHOWN_MAX)
    };
    let candidates = names
        .into_iter()
        .filter(|name| near(name, length.abs_diff(name.chars().count())));
    let candidates: Vec<_> = candidates.take(NAMES_COMPARED_MAX + 1).collect();
    if candidates.len() > NAMES_COMPARED_MAX {
        return None;
    }
    let wrong = compared(wrong);
    candidates
        .into_iter()
        .map(|name| (distance(&wrong, name), name))
        .filter(|(distance, name)| near(name, *distance))
        .min()
        .map(|(_, name)| name)
}

/// `did you mean 'x'? `, or nothing.
pub(crate) fn did_you_mean<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(wrong, names).map_or_else(String::new, |name| format!("did you mean '{name}'? "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_name_suggests_the_nearest_one_or_none() {
        for (wrong, nearest_name) in [
            ("smal", Some("small")),
            ("Large", Some("large")),
            ("mediun", Some("medium")),
            ("xl", None),
            ("", None),
        ] {
            assert_eq!(
                nearest(wrong, ["small", "medium", "large"]),
                nearest_name,
                "{wrong}"
            );
        }
    }

    /// Compared whole, the texts would take minutes.
    #[test]
    fn of_long_texts_the_beginning_is_compared() {
        let [wrong, name] = ["x", "y"].map(|end| "a".repeat(300_000) + end);
        assert!(nearest(&wrong, [&*name]).is_some());
        let other = "b".repeat(300_001);
        assert!(nearest(&wrong, [&*other]).is_none());
        assert!(nearest_first(&wrong, vec![other, name]).starts_with('a'));
    }

    #[test]
    fn a_value_is_compared_with_a_bounded_number_of_names() {
        let name = |index: usize| format!("{}-{index:05}", "a".repeat(58));
        let wrong = name(99_999);
        let names: Vec<_> = (0..10_000).map(name).collect();
        let read = std::cell::Cell::new(0);
        let of = |count: usize| {
            let names = names.iter().map(String::as_str).take(count);
            nearest(&wrong, names.inspect(|_| read.set(read.get() + 1)))
        };
        assert_eq!(of(10_000), None);
        assert_eq!(read.take(), NAMES_COMPARED_MAX + 1);
        assert_eq!(of(NAMES_COMPARED_MAX), Some(&*names[99]));
        // Names of another length are not compared, so they do not count.
        let others = (0..10_000).map(|index| index.to_string());
        let others: Vec<_> = others.chain([names[0].clone()]).collect();
        let others = others.iter().map(String::as_str);
        assert_eq!(nearest(&wrong, others), Some(&*names[0]));

        let shown = |count: usize| nearest_first(&names[120], names[..count].to_vec());
        assert!(shown(10_000).starts_with(&format!("{}, {}", names[0], names[1])));
        let few = shown(NAMES_COMPARED_MAX);
        assert!(
            few.starts_with(&format!("{}, {}", names[120], names[20])),
            "{few}"
        );
    }

    #[test]
    fn the_names_that_are_nearest_to_a_value_come_first() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        for (value, given, shown) in [
            (
                "web-c",
                &["small", "web-b", "web-a"][..],
                "web-a, web-b and small",
            ),
            (
                "huge",
                &["web-b", "small", "web-a"],
                "small, web-a and web-b",
            ),
            ("huge", &["small", "small"], "small"),
            ("huge", &[], "(none)"),
        ] {
            assert_eq!(nearest_first(value, names(given)), shown, "{value}");
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(cut("äöüß", 3), "äö…");
    }

    #[test]
    fn a_long_list_of_names_ends_with_the_number_of_the_others() {
        let names = (0..13).map(|n| format!("n{n:02}")).collect();
        assert_eq!(
            name_list(names),
            "n00, n01, n02, n03, n04, n05, n06, n07, n08, n09 and 3 more"
        );
        assert_eq!(name_list(vec![]), "(none)");
    }

    #[test]
    fn lists_and_counts_follow_the_grammar() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(name_list(names(&["b"])), "b");
        assert_eq!(name_list(names(&["b", "a"])), "a and b");
        assert_eq!(name_list(names(&["c", "b", "a", "b"])), "a, b and c");
        assert_eq!(counted(1, "disk"), "1 disk");
        assert_eq!(counted(0, "disk"), "0 disks");
        assert_eq!(counted(2, "disk"), "2 disks");
    }

    #[test]
    fn no_shown_value_has_the_password_of_a_uri() {
        let value = "https://user:secret@images.example.com/debian.qcow2";
        assert_eq!(
            quoted(value),
            r#""https://user:***@images.example.com/debian.qcow2""#
        );
    }
}
