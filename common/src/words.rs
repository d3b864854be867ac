//! Parts of messages: shortened values, lists of names, suggestions for misspelled names.

/// Longest part of a user's value in a message, in characters.
const VALUE_SHOWN_MAX: usize = 64;
/// Most names in a message; a catalog can contain thousands.
const NAMES_SHOWN_MAX: usize = 10;

/// `text` in at most `max` characters.
pub(crate) fn cut(text: &str, max: usize) -> String {
    // A text has at least as many bytes as characters, so a short one need not be counted.
    if text.len() <= max || text.chars().count() <= max {
        return text.to_owned();
    }
    let shown = text.chars().take(max.saturating_sub(1));
    shown.chain(['…']).collect()
}

/// A value as messages show it: at most 64 characters.
pub(crate) fn shortened(value: &str) -> String {
    cut(value, VALUE_SHOWN_MAX)
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

/// `a, b and 7 more`, sorted.
pub fn name_list(mut names: Vec<String>) -> String {
    names.sort();
    names.dedup();
    shown(names)
}

fn shown(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(NAMES_SHOWN_MAX);
    names.truncate(NAMES_SHOWN_MAX);
    let shown = names.join(", ");
    match (shown.is_empty(), more) {
        (true, _) => "(none)".to_owned(),
        (false, 0) => shown,
        (false, more) => format!("{shown} and {more} more"),
    }
}

/// As [`name_list`], with the names that are nearest to a value first.
pub(crate) fn nearest_first(value: &str, mut names: Vec<String>) -> String {
    let value = value.to_lowercase();
    names.sort_by_cached_key(|name| {
        let distance = strsim::osa_distance(&value, &name.to_lowercase());
        (distance, name.clone())
    });
    names.dedup();
    shown(names)
}

/// The name that the user most likely meant: the one with the smallest edit distance, which must be at most
/// a third of its length. Of equally near names, the first in alphabetical order.
pub(crate) fn nearest<'a>(
    wrong: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let length = wrong.chars().count();
    // The distance is at least the difference of the lengths, so a very long text is not compared.
    let near = |name: &&str, distance: usize| distance * 3 <= name.chars().count().max(3);
    names
        .into_iter()
        .filter(|name| near(name, length.abs_diff(name.chars().count())))
        .map(|name| {
            let distance = strsim::osa_distance(&wrong.to_lowercase(), &name.to_lowercase());
            (distance, name)
        })
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

    #[test]
    fn the_names_that_are_nearest_to_a_value_come_first() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        for (value, given, shown) in [
            (
                "web-c",
                &["small", "web-b", "web-a"][..],
                "web-a, web-b, small",
            ),
            ("huge", &["web-b", "small", "web-a"], "small, web-a, web-b"),
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
}
