//! Patterns and beginnings of URLs, as MachinePolicies have them.

use common::glob::Glob;
use common::url_prefix::{UrlPrefix, public_part};

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

/// A prefix that is shown is the same one. It covers what is below it, and nothing of another server.
fn url(prefix: &UrlPrefix, url: &str) {
    let shown = prefix.to_string();
    assert_eq!(shown.parse().as_ref(), Ok(prefix), "{shown}");
    assert!(prefix.covers(&format!("{shown}image")), "{shown}");
    let (scheme, rest) = shown.split_once("://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    if !path.is_empty() {
        assert!(!prefix.covers(&format!("{shown}../image")), "{shown}");
        assert!(
            !prefix.covers(&format!("{scheme}://{host}/{path}%2e%2e/image")),
            "{shown}"
        );
    }
    if prefix.covers(url) && scheme != "docker" {
        let rest = public_part(url).to_ascii_lowercase();
        let rest = rest.strip_prefix(&format!("{scheme}://{host}"));
        let rest = rest.unwrap_or_else(|| panic!("{shown} covers {url}"));
        assert!(
            rest.is_empty() || rest.starts_with(['/', ':']),
            "{shown} covers {url}"
        );
    }
}
