//! Slots for the connections of one port, shared between the addresses that connect.
//!
//! A new connection always gets a slot. If none is free, the oldest connection of the address that has the most of them
//! is closed. So a client that opens fewer connections than others keeps them until they end, and a client that opens
//! many closes its own.
//!
//! Reason: with a plain limit, a thousand idle clients of a port would keep out the kubelet, and a healthy process would be
//! restarted (`probes_are_answered_beside_any_number_of_other_clients` in `tests/tests/admin.rs`).

use std::net::IpAddr;

use tokio::task::{AbortHandle, JoinSet};

/// The open connections of a port. Dropping it closes them.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    max: usize,
    tasks: JoinSet<()>,
    /// Address and task of each connection, the oldest first. Ended ones are removed with the next connection.
    open: Vec<(IpAddr, AbortHandle)>,
}

impl ConnectionSlots {
    /// `max` slots, all of them free.
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            tasks: JoinSet::new(),
            open: Vec::new(),
        }
    }

    /// Runs a connection from this address; closes another one if no slot is free.
    pub(super) fn spawn(
        &mut self,
        peer: IpAddr,
        connection: impl Future<Output = ()> + Send + 'static,
    ) {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|(_, task)| !task.is_finished());
        if self.open.len() >= self.max
            && let Some(index) = self.eviction_candidate()
        {
            let (_, task) = self.open.remove(index);
            task.abort();
        }
        self.open.push((peer, self.tasks.spawn(connection)));
    }

    /// The oldest connection of the address with the most connections; of addresses with as many, the oldest of all.
    fn eviction_candidate(&self) -> Option<usize> {
        let share = |of: IpAddr| self.open.iter().filter(|(peer, _)| *peer == of).count();
        let candidates = self.open.iter().map(|(peer, _)| share(*peer)).enumerate();
        // The last of equal maxima is the oldest connection.
        let chosen = candidates.rev().max_by_key(|(_, share)| *share);
        chosen.map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use super::*;

    /// Opens a connection that lasts until it is closed. The weak reference is gone then.
    fn open(slots: &mut ConnectionSlots, peer: [u8; 4]) -> std::sync::Weak<()> {
        let held = Arc::new(());
        let weak = Arc::downgrade(&held);
        slots.spawn(peer.into(), async move {
            pending::<()>().await;
            drop(held);
        });
        weak
    }

    async fn closed(connection: &std::sync::Weak<()>) {
        while connection.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_address_with_the_most_connections_loses_its_oldest_one() {
        let (many, few, new) = ([10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]);
        let mut slots = ConnectionSlots::new(4);
        let kept = open(&mut slots, few);
        let lost: Vec<_> = (0..3).map(|_| open(&mut slots, many)).collect();
        let first = open(&mut slots, new);
        closed(&lost[0]).await;
        let second = open(&mut slots, new);
        closed(&lost[1]).await;
        // `few` and the last of `many` have one connection each, `new` has two.
        let _third = open(&mut slots, few);
        closed(&first).await;
        for open in [&kept, &lost[2], &second] {
            assert_eq!(open.strong_count(), 1);
        }
    }

    #[tokio::test]
    async fn of_addresses_with_one_connection_each_the_oldest_is_closed() {
        let mut slots = ConnectionSlots::new(2);
        let oldest = open(&mut slots, [10, 0, 0, 1]);
        let younger = open(&mut slots, [10, 0, 0, 2]);
        let _new = open(&mut slots, [10, 0, 0, 3]);
        closed(&oldest).await;
        assert_eq!(younger.strong_count(), 1);
    }

    #[tokio::test]
    async fn an_ended_connection_frees_its_slot() {
        let mut slots = ConnectionSlots::new(2);
        let kept = open(&mut slots, [10, 0, 0, 1]);
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        slots.spawn([10, 0, 0, 1].into(), async move { drop(ended) });
        assert!(end.await.is_err());
        while slots.open.iter().all(|(_, task)| !task.is_finished()) {
            tokio::task::yield_now().await;
        }
        let _new = open(&mut slots, [10, 0, 0, 2]);
        assert_eq!(kept.strong_count(), 1);
    }
}
