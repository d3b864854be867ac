//! The domain of a Machine, as its definitions describe it.

use common::render::libvirt::{Domain, DomainMetadata};

use crate::access::DomainDetail;
use crate::observed::Guest;

pub(super) fn guest(found: &DomainDetail) -> Guest {
    let read = |xml: &str| match Domain::parse(xml) {
        Ok(domain) => Some(domain),
        Err(error) => {
            tracing::warn!(%error, "the definition of a domain cannot be parsed");
            None
        }
    };
    let live = found.live.as_deref();
    Guest {
        state: found.state.state,
        reason: found.state.reason,
        metadata: found
            .state
            .metadata
            .as_deref()
            .and_then(DomainMetadata::parse),
        defined: read(&found.inactive),
        running: live.and_then(read),
        has_agent: live.is_some_and(agent_is_connected),
    }
}

/// Whether the agent's channel is open from inside the guest.
fn agent_is_connected(xml: &str) -> bool {
    let targets = xml
        .split("<target ")
        .filter(|target| target.contains("org.qemu.guest_agent.0"));
    let mut heads = targets.filter_map(|target| target.split_once('>').map(|(head, _)| head));
    heads.any(|head| head.contains("state='connected'") || head.contains("state=\"connected\""))
}
