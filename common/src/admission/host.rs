//! The review of a LibvirtHost. Its fields are typed: what does not fit the schema, the API server tells
//! with all of its paths, so nothing is said here of what cannot be read.

use serde::Deserialize;

use super::{Request, Verdict};
use crate::api::libvirt_host::LibvirtHostSpec;
use crate::rules::libvirthosts;
use crate::violation::Findings;

#[derive(Deserialize)]
struct Host {
    spec: LibvirtHostSpec,
}

fn spec(text: &str) -> Option<LibvirtHostSpec> {
    serde_json::from_str(text).ok().map(|host: Host| host.spec)
}

pub(super) fn review(request: &Request<'_>) -> Verdict {
    let mut findings = Findings::default();
    let old = request.old.and_then(spec);
    if let Some(new) = spec(request.object) {
        libvirthosts::check(&new, old.as_ref(), &mut findings);
    }
    if let Some(old) = old.as_ref().filter(|_| !findings.accepted()) {
        let mut known = Findings::default();
        libvirthosts::check(old, Some(old), &mut known);
        findings.tolerate(|fault| known.violations.contains(fault));
    }
    Verdict {
        findings,
        block: None,
    }
}
