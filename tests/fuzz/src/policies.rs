//! Patterns and beginnings of URLs, as MachinePolicies have them.

use common::bounds::TEXT_MAX;
use common::glob::Glob;
use common::url_prefix::UrlPrefix;

/// The folder of the images that Docker's registry publishes itself.
const LIBRARY: &str = "docker://docker.io/library";

/// Two lines: what a policy allows, and a name or a URL that it is compared with.
pub fn pair(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (allowed, value) = text.split_once('\n').unwrap_or((&text, ""));
    pattern(allowed, value);
    if let Ok(prefix) = allowed.parse() {
        url(&prefix, value);
    }
}

/// A name matches itself and longer patterns of it, and nothing is special except the star.
fn pattern(pattern: &str, name: &str) {
    let matches = Glob::new(pattern).matches(name);
    if !pattern.contains('*') {
        assert_eq!(matches, pattern == name, "{pattern:?} {name:?}");
    }
    let longer = [format!("{pattern}*"), format!("*{pattern}")];
    for longer in longer {
        let also = Glob::new(&longer).matches(name);
        assert!(also || !matches, "{longer:?} {name:?}");
    }
    let surrounded = Glob::new(&format!("<{pattern}>")).matches(&format!("<{name}>"));
    assert_eq!(surrounded, matches, "{pattern:?} {name:?}");
}

/// A prefix that is shown is the same one, and covers what is below it and nothing beside it.
fn url(prefix: &UrlPrefix, url: &str) {
    let shown = prefix.to_string();
    // Beyond ASCII, a host in lower case may have characters that no host has. A reference may leave its registry out,
    // which is shown, so that the longest ones are too long when they are shown.
    if shown.is_ascii() && !shown[8..].contains("//") && shown.len() <= TEXT_MAX {
        assert_eq!(shown.parse().as_ref(), Ok(prefix), "{shown}");
        let folder = shown.trim_end_matches('/');
        assert!(prefix.covers(&format!("{folder}/image")), "{shown}");
        let (_, path) = folder.split_once("://").unwrap_or_default();
        if path.contains('/') {
            // A name without a folder at Docker's registry is one of its library.
            let beside = format!("{folder}-image");
            assert!(!prefix.covers(&beside) || folder == LIBRARY, "{shown}");
            assert!(!prefix.covers(&format!("{folder}/../image")), "{shown}");
        }
    }
    let scheme = shown.split_once(':').unwrap_or_default().0;
    let covered = prefix.covers(url);
    assert!(
        !covered || url.to_ascii_lowercase().starts_with(scheme),
        "{shown} covers {url}"
    );
}
