//! URIs that are read, and those that are refused.

use proptest::prelude::*;

use super::*;

#[test]
fn uris_of_each_driver_and_transport_are_read_into_their_parts() {
    use Driver::{Qemu, Test};
    use Transport::{Local, Ssh, Tls};
    for (text, parts) in [
        ("qemu:///system", (Qemu, Local, None, None, None, "/system")),
        (
            "qemu:///session",
            (Qemu, Local, None, None, None, "/session"),
        ),
        (
            "test:///default",
            (Test, Local, None, None, None, "/default"),
        ),
        (
            "test:///var/node.xml",
            (Test, Local, None, None, None, "/var/node.xml"),
        ),
        (
            "qemu+tls://hv1.example.com/system",
            (Qemu, Tls, None, Some("hv1.example.com"), None, "/system"),
        ),
        (
            "qemu+tls://10.0.0.1:16515/system",
            (Qemu, Tls, None, Some("10.0.0.1"), Some(16515), "/system"),
        ),
        (
            "qemu+tls://[fd00::1]:16515/system",
            (Qemu, Tls, None, Some("fd00::1"), Some(16515), "/system"),
        ),
        (
            "qemu+ssh://hv1/system",
            (Qemu, Ssh, None, Some("hv1"), None, "/system"),
        ),
        (
            "qemu+ssh://root@hv1:2222/system",
            (Qemu, Ssh, Some("root"), Some("hv1"), Some(2222), "/system"),
        ),
        (
            "test+tls://localhost:16514/default",
            (Test, Tls, None, Some("localhost"), Some(16514), "/default"),
        ),
    ] {
        let uri: HostUri = text.parse().unwrap();
        let got = (
            uri.driver(),
            uri.transport(),
            uri.user(),
            uri.host(),
            uri.port(),
            uri.path(),
        );
        assert_eq!(got, parts, "{text}");
        assert_eq!(uri.to_string(), text);
    }
}

#[test]
fn uris_that_could_execute_something_or_name_no_host_are_refused() {
    use HostUriError::{
        Driver, Host, HostWithoutTransport, NoHost, NoPath, Parameter, Password, Path, Port,
        Scheme, Sign, Transport, User, UserWithoutSsh,
    };
    let of = str::to_owned;
    for (text, error) in [
        (
            "qemu+ssh://hv1/system?command=/bin/sh",
            Parameter(of("command")),
        ),
        ("qemu:///system?", Sign('?')),
        ("qemu:///system#x?y", Sign('#')),
        ("", Scheme),
        ("hv1", Scheme),
        ("xen:///system", Driver(of("xen"))),
        ("QEMU:///system", Driver(of("QEMU"))),
        ("qemu+unix:///system", Transport(of("unix"), "tls or ssh")),
        ("test+unix:///default", Transport(of("unix"), "tls")),
        ("qemu+tcp://hv1/system", Transport(of("tcp"), "tls or ssh")),
        ("qemu+ext://hv1/system", Transport(of("ext"), "tls or ssh")),
        ("test+ssh://hv1/default", Transport(of("ssh"), "tls")),
        ("qemu://hv1/system", HostWithoutTransport),
        ("qemu+tls:///system", NoHost),
        ("qemu+tls://:16514/system", NoHost),
        ("qemu+ssh://root@/system", NoHost),
        (
            "qemu+ssh://-oProxyCommand=x/system",
            Host(of("-oProxyCommand=x")),
        ),
        ("qemu+tls://hv 1/system", Host(of("hv 1"))),
        ("qemu+tls://[hv1]/system", Host(of("[hv1]"))),
        ("qemu+tls://[::1]x/system", Host(of("[::1]x"))),
        ("qemu+tls://fd00::1/system", Host(of("fd00::1"))),
        ("qemu+ssh://-l@hv1/system", User),
        ("qemu+ssh://@hv1/system", User),
        ("qemu+ssh://a:b@hv1/system", Password),
        ("qemu+ssh://a:b/c@hv1/system", Password),
        ("qemu+tls://root@hv1/system", UserWithoutSsh(of("root"))),
        ("qemu+tls://hv1:0/system", Port(of("0"))),
        ("qemu+tls://hv1:/system", Port(of(""))),
        ("qemu+tls://hv1:65536/system", Port(of("65536"))),
        ("qemu+tls://hv1:+1/system", Port(of("+1"))),
        ("qemu:///", Path(of("/"), "/system or /session")),
        ("qemu+tls://hv1", NoPath("/system")),
        ("qemu+ssh://hv1/session", Path(of("/session"), "/system")),
        ("test:///", Path(of("/"), "/default or the path of a file")),
        (
            "test:///a%20b",
            Path(of("/a%20b"), "/default or the path of a file"),
        ),
        ("test+tls://hv1/other", Path(of("/other"), "/default")),
    ] {
        assert_eq!(text.parse::<HostUri>(), Err(error), "{text}");
    }
}

proptest! {
    #[test]
    fn a_displayed_uri_is_the_parsed_text(text in "(qemu|test)(\\+tls|\\+ssh)?://([a-z_]{1,3}@)?([a-z0-9.-]{0,4}|\\[[0-9a-f:]{2,5}\\])(:[0-9]{1,6})?/(system|default|session)") {
        if let Ok(uri) = text.parse::<HostUri>() {
            prop_assert_eq!(uri.to_string(), text);
        }
    }

    #[test]
    fn parsing_any_text_never_panics(text in "\\PC{0,40}") {
        let _ = text.parse::<HostUri>();
    }
}
