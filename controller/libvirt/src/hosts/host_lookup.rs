//! On which host a Machine is. The metadata of its domain proves it; `status.host` is only a hint, because a user who
//! may write the status could otherwise start a second guest on another host.
//!
//! ```text
//! a host shows the domain ──▶ that host; of several see `location`
//! reserved by this process ─▶ that host, which does not show the domain yet
//! status.host ──────────────▶ that host, unless the domain may be on one of which nothing is known
//! ```

use k8s_openapi::jiff::Timestamp;

use crate::libvirt_host::LibvirtHost;

/// Whether a host that cannot be asked may have something of a Machine that was created at this time. It has nothing if
/// no controller ever reached it, or if it could not be reached since before that time.
pub(super) fn may_have_domain(host: &LibvirtHost, created: Option<Timestamp>) -> bool {
    if host.status.last_seen_time.is_none() {
        return false;
    }
    let mut conditions = host.status.conditions.iter();
    let unreachable = conditions.find(|it| it.kind == "Reachable" && it.status == "False");
    let since = unreachable.and_then(|it| it.last_transition_time.parse::<Timestamp>().ok());
    created
        .zip(since)
        .is_none_or(|(created, since)| created <= since)
}

#[cfg(test)]
mod tests {
    use common::api::libvirt_host::LibvirtHostStatus;
    use common::api::status::Condition;

    use super::*;
    use crate::environment;

    fn host(last_seen: Option<&str>, reachable: &str, since: &str) -> LibvirtHost {
        LibvirtHost {
            status: LibvirtHostStatus {
                last_seen_time: last_seen.map(ToOwned::to_owned),
                conditions: vec![Condition {
                    kind: "Reachable".into(),
                    status: reachable.into(),
                    reason: "Unreachable".into(),
                    message: String::new(),
                    last_transition_time: since.into(),
                    observed_generation: None,
                }],
                ..LibvirtHostStatus::default()
            },
            ..environment::host_object("alpha")
        }
    }

    #[test]
    fn a_host_that_was_away_since_before_a_machine_was_created_has_no_domain_of_it() {
        let since = "2026-01-01T12:00:00Z";
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let (before, after) = (at("2026-01-01T11:59:59Z"), at("2026-01-01T12:00:01Z"));
        let away = host(Some(since), "False", since);
        assert!(may_have_domain(&away, before));
        assert!(may_have_domain(&away, None));
        assert!(!may_have_domain(&away, after));
        // This controller was started just now, and the one before reached the host.
        let not_polled = host(Some(since), "True", since);
        assert!(may_have_domain(&not_polled, before));
        assert!(may_have_domain(&not_polled, after));
        let never_reached = host(None, "False", since);
        assert!(!may_have_domain(&never_reached, before));
    }
}
