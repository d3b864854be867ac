use proptest::prelude::*;

use super::*;

fn url(text: &str) -> SourceUrl {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn check(text: &str, sources: Option<&[&str]>) -> Result<Reach, SourceError> {
    let sources = sources.map(|all| all.iter().map(|&it| it.to_owned()).collect::<Vec<_>>());
    url(text).check(sources.as_deref())
}

#[test]
fn a_source_is_within_a_prefix_by_scheme_host_port_and_whole_segments() {
    let prefix = "https://images.example.com/os/debian/";
    for inside in [
        "https://images.example.com/os/debian/12.qcow2",
        "https://images.example.com/os/debian",
        "https://images.example.com/os/debian/",
        "https://IMAGES.example.com:443/os/debian/a/b?token=1#x",
        "HTTPS://user:word@images.example.com/os/debian/a",
        "https://images.example.com/os/debian//a",
    ] {
        assert_eq!(check(inside, Some(&[prefix])), Ok(Reach::Any), "{inside}");
    }
    for outside in [
        "http://images.example.com/os/debian/12.qcow2",
        "https://images.example.com:8443/os/debian/12.qcow2",
        "https://images.example.com.evil.org/os/debian/12.qcow2",
        "https://images.example.com@evil.org/os/debian/12.qcow2",
        "https://images.example.com/os/debian-evil/12.qcow2",
        "https://images.example.com/os",
        "https://images.example.com/OS/debian/12.qcow2",
        "https://images.example.com/os/debian/../secret",
        "https://images.example.com/os/debian/%2e%2E/secret",
        "https://images.example.com/os/debian/..%2fsecret",
        "https://images.example.com/?/os/debian/",
        "https://images.example.com/#/os/debian/",
    ] {
        let expected = SourceError::NotAllowed(prefix.into());
        assert_eq!(check(outside, Some(&[prefix])), Err(expected), "{outside}");
    }
    let whole = [
        "https://mirror.example.com",
        "http://10.0.0.5:8080",
        "http://[fd00::5]/",
    ];
    for inside in [
        "https://mirror.example.com/x",
        "http://10.0.0.5:8080/../y",
        "http://[FD00:0::5]/z",
    ] {
        assert_eq!(check(inside, Some(&whole)), Ok(Reach::Any), "{inside}");
    }
    let none = check("https://mirror.example.com/x", Some(&[])).unwrap_err();
    assert!(none.to_string().ends_with("which allow none"), "{none}");
}

#[test]
fn without_sources_a_literal_address_has_to_be_public() {
    for literal in [
        "http://127.0.0.1/x",
        "http://localhost:8080/x",
        "http://web.localhost/x",
        "http://169.254.169.254/latest/meta-data",
        "https://10.1.2.3/x",
        "https://172.16.0.1/x",
        "https://192.168.0.1/x",
        "https://100.64.0.1/x",
        "https://0.0.0.0/x",
        "https://224.0.0.1/x",
        "https://[::1]/x",
        "https://[::]/x",
        "https://[fe80::1]/x",
        "https://[fc00::1]/x",
        "https://[ff02::1]/x",
        "https://[::ffff:8.8.8.8]/x",
        "https://[64:ff9b::808:808]/x",
        "https://[2002:7f00:1::]/x",
        "https://[2001::1]/x",
    ] {
        let error = check(literal, None).unwrap_err();
        assert!(
            matches!(error, SourceError::NotPublic(_)),
            "{literal}: {error}"
        );
        assert!(error.to_string().contains("spec.imageSources"), "{error}");
    }
    for public in [
        "https://images.example.com/x",
        "https://8.8.8.8/x",
        "https://172.32.0.1/x",
        "https://100.128.0.1/x",
        "https://[2606:4700::1111]/x",
        // Only a resolver knows that these are loopback addresses; it is asked before anything is connected.
        "http://2130706433/x",
        "http://0177.0.0.1/x",
    ] {
        assert_eq!(check(public, None), Ok(Reach::Public), "{public}");
    }
}

#[test]
fn a_url_that_programs_could_read_differently_is_refused() {
    for text in [
        "",
        "file:///etc/shadow",
        "ftp://host/x",
        "docker://registry/x",
        "https://",
        "https:///x",
        "https://user@/x",
        "https://host\\@evil/x",
        "https://host\\.evil/x",
        "https://ho st/x",
        "https://host/a\tb",
        "https://host:port/x",
        "https://host:0/x",
        "https://host:65536/x",
        "https://host:+80/x",
        "https://a:b:80/x",
        "https://[::1/x",
        "https://::1/x",
        "https://[fe80::1%25eth0]/x",
        "https://%6cocalhost/x",
        "https://ho[st/x",
    ] {
        assert_eq!(text.parse::<SourceUrl>(), Err(SourceError::Form), "{text}");
    }
}

#[test]
fn a_prefix_has_no_user_no_query_and_no_way_out() {
    for (text, expected) in [
        ("https://user@host/", SourceError::NotAPrefix),
        ("https://host/?x", SourceError::NotAPrefix),
        ("https://host/#x", SourceError::NotAPrefix),
        ("https://host/a/../b", SourceError::DotSegments),
        ("https://host/a%2fb", SourceError::DotSegments),
        ("host", SourceError::Form),
    ] {
        assert_eq!(prefix(text), Err(expected), "{text}");
    }
    assert!(prefix("https://host/a@b/").is_ok());
}

#[test]
fn a_redirect_leads_to_what_the_server_says_and_never_from_https_to_http() {
    let from = url("https://user:word@images.example.com:8443/os/debian.qcow2?a=b");
    for (location, expected) in [
        (
            "https://cdn.example.com/x?sig=1",
            "https://cdn.example.com/x?sig=1",
        ),
        ("//cdn.example.com/x", "https://cdn.example.com/x"),
        ("/y?z=1", "https://images.example.com:8443/y?z=1"),
        (
            "other.qcow2",
            "https://images.example.com:8443/os/other.qcow2",
        ),
        (
            "x?next=http://evil/",
            "https://images.example.com:8443/os/x?next=http://evil/",
        ),
        (
            "?sig=1",
            "https://images.example.com:8443/os/debian.qcow2?sig=1",
        ),
        (
            "/to?next=http://evil/",
            "https://images.example.com:8443/to?next=http://evil/",
        ),
    ] {
        assert_eq!(
            from.redirect(location).as_deref(),
            Ok(expected),
            "{location}"
        );
    }
    for (location, expected) in [
        ("http://images.example.com/x", SourceError::Downgrade),
        ("file:///etc/shadow", SourceError::Form),
        ("ftp://host/x", SourceError::Form),
        ("gopher://host/x", SourceError::Form),
        ("https://", SourceError::Form),
    ] {
        assert_eq!(from.redirect(location), Err(expected), "{location}");
    }
    let plain = url("http://host/x");
    assert_eq!(
        plain.redirect("https://host/y").as_deref(),
        Ok("https://host/y")
    );
    assert_eq!(
        plain.redirect("http://host/y").as_deref(),
        Ok("http://host/y")
    );
}

#[test]
fn a_message_has_neither_user_nor_query() {
    for (text, shown) in [
        ("https://user:word@host/x?token=1#y", "https://host/x"),
        ("https://user:word@host?token=1", "https://host"),
        ("https://a@b@host/x@y", "https://host/x@y"),
        ("docker://debian@sha256:abc", "docker://debian@sha256:abc"),
        ("host/x?token=1", "host/x"),
        ("https://user:wo/rd@host/x?token=1", "https://host/x"),
        ("user:word@host/x?token=1", "host/x"),
        (
            "docker://user:word@registry/a",
            "docker://user:***@registry/a",
        ),
    ] {
        assert_eq!(redacted(text), shown);
    }
    let shown = url("https://user:word@Host:443/x?token=1").to_string();
    assert_eq!(shown, "https://host/x");
}

#[test]
fn a_long_list_of_sources_is_cut_in_a_message() {
    let many: Vec<_> = (0..12)
        .map(|number| format!("https://host{number}/"))
        .collect();
    let shown = allowed(&many);
    assert!(
        shown.starts_with("https://host0/, https://host1/, "),
        "{shown}"
    );
    assert!(shown.ends_with("https://host9/ and 2 more"), "{shown}");
}

proptest! {
    #[test]
    fn no_text_causes_a_panic_and_what_is_shown_is_read_as_the_same(
        text in "(https?|file)://[%\\[\\]:@/.a0é?#\\\\-]{0,24}",
        location in "(//|/|\\?|https?://)?[%\\[\\]:@/.a0é?#-]{0,24}",
    ) {
        let _ = redacted(&text);
        if let Ok(url) = text.parse::<SourceUrl>() {
            prop_assert_eq!(url.to_string().parse(), Ok(url.clone()));
            if let Ok(target) = url.redirect(&location) {
                prop_assert!(target.parse::<SourceUrl>().is_ok());
            }
        }
    }
}
