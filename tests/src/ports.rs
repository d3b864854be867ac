//! Free loopback ports.

use std::{
    net::{Ipv4Addr, TcpListener},
    process,
    sync::atomic::{AtomicU16, Ordering},
};

use anyhow::{Context as _, Result};

/// Below the range from which systems take the ports of outgoing connections
/// (32768 and up on Linux): a port stays free while a server is being restarted.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// A port that is free now. Two calls in one process never answer the same
/// one; against other processes the caller has to try again.
pub(crate) fn free() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes start at different places, so that they seldom meet. The prime
    // spreads neighbouring process ids.
    let start = process::id().wrapping_mul(7919);
    (0..COUNT)
        .map(|_| {
            let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
            let offset = start.wrapping_add(step) % u32::from(COUNT);
            FIRST + u16::try_from(offset).unwrap_or_default()
        })
        .find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        .context("no free port between 20000 and 30000")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ports_differ() {
        let ports: BTreeSet<u16> = (0..20).map(|_| free().unwrap()).collect();
        assert_eq!(ports.len(), 20);
    }

    #[test]
    fn a_taken_port_is_passed_over() {
        let next = free().unwrap() + 1;
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, next));
        assert_ne!(free().unwrap(), next);
    }
}
