use super::*;

fn prefix(text: &str) -> UrlPrefix {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A prefix, a URL, and whether the prefix covers it.
type Row = (&'static str, &'static str, bool);

const SERVERS: &[Row] = &[
    (
        "https://images.example.com/",
        "https://images.example.com/debian.qcow2",
        true,
    ),
    (
        "https://images.example.com",
        "https://images.example.com/a/b",
        true,
    ),
    (
        "https://images.example.com/",
        "https://images.example.com",
        true,
    ),
    (
        "https://Images.example.com/",
        "https://images.EXAMPLE.com/a",
        true,
    ),
    (
        "https://images.example.com/",
        "https://images.example.com:443/a",
        true,
    ),
    (
        "https://images.example.com:443/",
        "https://images.example.com:/a",
        true,
    ),
    (
        "https://images.example.com/",
        "https://images.example.com:8443/a",
        false,
    ),
    (
        "https://images.example.com/",
        "http://images.example.com/a",
        false,
    ),
    (
        "https://images.example.com/",
        "https://images.example.com.evil.org/a",
        false,
    ),
    (
        "https://images.example.com/",
        "https://images.example.com@evil.org/a",
        false,
    ),
    (
        "https://images.example.com/",
        "https://user:word@images.example.com/a",
        true,
    ),
    (
        "https://images.example.com/",
        "https://evil.org/#@images.example.com/",
        false,
    ),
    (
        "https://images.example.com/",
        "https://evil.org?@images.example.com/",
        false,
    ),
    (
        "https://images.example.com/os/",
        "https://images.example.com/os/debian",
        true,
    ),
    (
        "https://images.example.com/os",
        "https://images.example.com/os?token=1",
        true,
    ),
    (
        "https://images.example.com/os/",
        "https://images.example.com/osx/debian",
        false,
    ),
    (
        "https://images.example.com/os/",
        "https://images.example.com/OS/debian",
        false,
    ),
    (
        "https://images.example.com/os/",
        "https://images.example.com/os/../private/a",
        false,
    ),
    (
        "https://images.example.com/os/",
        "https://images.example.com/os/%2e%2E/private/a",
        false,
    ),
    (
        "https://images.example.com/os/",
        "https://images.example.com/os/..%2fprivate/a",
        false,
    ),
    (
        "https://images.example.com/os/",
        "https://images.example.com/os/..\\private",
        false,
    ),
    (
        "https://images.example.com/os/",
        "https://images.example.com/os//a",
        true,
    ),
    (
        "https://images.example.com/os/",
        "https://images.example.com/x?/os/debian",
        false,
    ),
    (
        "https://images.example.com/",
        "https://images.example.com/a/../b",
        true,
    ),
    (
        "https://[2001:db8::1]:8443/",
        "https://[2001:DB8::1]:8443/a",
        true,
    ),
    (
        "https://[2001:db8::1]/",
        "https://[2001:db8::1]:8443/a",
        false,
    ),
];

const REGISTRIES: &[Row] = &[
    (
        "docker://registry.example.com/os/",
        "docker://registry.example.com/os/debian:12",
        true,
    ),
    (
        "docker://registry.example.com/os/debian",
        "docker://registry.example.com/os/debian:12",
        true,
    ),
    (
        "docker://registry.example.com/os/debian",
        "docker://registry.example.com/os/debian-test:12",
        false,
    ),
    (
        "docker://registry.example.com/os/",
        "docker://registry.example.com/os@sha256:0",
        true,
    ),
    (
        "docker://registry.example.com/",
        "docker://registry.example.com:5000/os/debian",
        false,
    ),
    (
        "docker://registry.example.com:5000/",
        "docker://registry.example.com:5000/os/debian:12",
        true,
    ),
    ("docker://docker.io/", "docker://debian:12", true),
    ("docker://docker.io/library/", "docker://debian", true),
    ("docker://docker.io/debian", "docker://debian:12", true),
    ("docker://docker.io/debian", "docker://debian/evil", false),
    (
        "docker://docker.io/os/",
        "docker://index.docker.io/os/debian",
        true,
    ),
    ("docker://docker.io/os/", "docker://os/debian", true),
    ("docker://os/", "docker://docker.io/os/debian", true),
    (
        "docker://debian",
        "docker://docker.io/library/debian:12",
        true,
    ),
    (
        "docker://registry.example.com",
        "docker://registry.example.com/os/debian",
        true,
    ),
    (
        "docker://localhost/os/",
        "docker://localhost/os/debian",
        true,
    ),
    ("docker://registry.example.com/", "docker://debian", false),
    (
        "docker://registry.example.com/",
        "https://registry.example.com/a",
        false,
    ),
    ("https://images.example.com/", "images.example.com/a", false),
];

#[test]
fn a_prefix_covers_urls_of_the_same_server_below_its_path() {
    for (text, url, covered) in SERVERS {
        assert_eq!(prefix(text).covers(url), *covered, "{text} {url}");
    }
}

#[test]
fn a_prefix_covers_container_images_of_the_same_registry_below_its_path() {
    for (text, url, covered) in REGISTRIES {
        assert_eq!(prefix(text).covers(url), *covered, "{text} {url}");
    }
}

#[test]
fn a_text_that_no_url_begins_with_is_an_error() {
    for (text, error) in [
        ("images.example.com/", UrlPrefixError::Form),
        ("ftp://images.example.com/", UrlPrefixError::Form),
        ("HTTPS://images.example.com/", UrlPrefixError::Form),
        ("https://images.example.com/o s", UrlPrefixError::Form),
        ("https://", SourceError::Form.into()),
        (
            "https://user@images.example.com/",
            SourceError::NotAPrefix.into(),
        ),
        (
            "https://images.example.com/?a=b",
            SourceError::NotAPrefix.into(),
        ),
        (
            "https://images.example.com/os/../",
            SourceError::DotSegments.into(),
        ),
        ("docker://", UrlPrefixError::Registry),
        ("docker:///os", UrlPrefixError::Registry),
        (
            "docker://registry.example.com//os",
            UrlPrefixError::Registry,
        ),
        (
            "docker://registry.example.com/os/debian:12",
            UrlPrefixError::Registry,
        ),
        (
            "docker://registry.example.com/OS/",
            UrlPrefixError::Registry,
        ),
        (
            "docker://registry.example.com/os/../",
            UrlPrefixError::Registry,
        ),
        (
            "docker://registry.example.com/os/-",
            UrlPrefixError::Registry,
        ),
        (
            "docker://user@registry.example.com/os/",
            UrlPrefixError::Registry,
        ),
    ] {
        assert_eq!(text.parse::<UrlPrefix>(), Err(error), "{text}");
    }
    let long = format!("https://images.example.com/{}", "a".repeat(TEXT_MAX));
    assert_eq!(long.parse::<UrlPrefix>(), Err(UrlPrefixError::Form));
}

#[test]
fn a_prefix_is_shown_as_a_text_that_is_the_same_prefix() {
    for (text, shown) in [
        ("https://Images.example.com", "https://images.example.com/"),
        (
            "https://images.example.com:443/os",
            "https://images.example.com/os",
        ),
        (
            "docker://docker.io/debian",
            "docker://docker.io/library/debian/",
        ),
        ("docker://os/", "docker://docker.io/os/"),
    ] {
        assert_eq!(prefix(text).to_string(), shown);
        assert_eq!(prefix(shown), prefix(text));
    }
}
