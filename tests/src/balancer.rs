//! Distributes connections among replicas, as a Service does.
//!
//! ```text
//! kube-apiserver ──TCP──► Balancer ──round robin──► replicas whose /readyz answers 200
//! ```
//! A new connection goes to a replica that was ready at the last check. An open connection stays with its replica
//! even if that becomes unready. Nothing is retried.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Result;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use crate::http;

/// Interval of readiness checks: endpoints of a Service take a second or two to change.
const READINESS_INTERVAL: Duration = Duration::from_millis(200);

/// Distributes connections until it is dropped.
#[derive(Debug)]
pub struct Balancer {
    state: Arc<State>,
    tasks: [AbortHandle; 2],
}

#[derive(Debug, Default)]
struct State {
    members: Mutex<Vec<Member>>,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    serves: SocketAddr,
    health: SocketAddr,
    ready: bool,
    /// Connections given to this replica so far.
    accepted: u64,
    open: u64,
}

impl Balancer {
    /// Binds the address and starts to accept connections.
    pub async fn start(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let state = Arc::new(State::default());
        let tasks = [
            tokio::spawn(accept(listener, state.clone())).abort_handle(),
            tokio::spawn(check_readiness(state.clone())).abort_handle(),
        ];
        Ok(Self { state, tasks })
    }

    /// Adds a replica: its address, and the address of its `/readyz`.
    pub fn add(&self, serves: SocketAddr, health: SocketAddr) {
        self.state.members().push(Member {
            serves,
            health,
            ready: false,
            accepted: 0,
            open: 0,
        });
    }

    /// The number of replicas that are ready.
    pub fn ready(&self) -> usize {
        self.state.members().iter().filter(|it| it.ready).count()
    }

    /// The number of connections given to each replica so far, in the order the replicas were added.
    pub fn accepted(&self) -> Vec<u64> {
        self.state.members().iter().map(|it| it.accepted).collect()
    }

    /// The number of open connections of each replica, in the order the replicas were added.
    pub fn open(&self) -> Vec<u64> {
        self.state.members().iter().map(|it| it.open).collect()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl State {
    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the ready replica that was given the fewest connections.
    fn next(self: &Arc<Self>) -> Option<Open> {
        let mut members = self.members();
        let ready = members.iter_mut().enumerate();
        let ready = ready.filter(|(_, it)| it.ready);
        let (index, member) = ready.min_by_key(|(_, it)| it.accepted)?;
        member.accepted += 1;
        member.open += 1;
        Some(Open {
            state: self.clone(),
            index,
            replica: member.serves,
        })
    }
}

/// A connection of a replica, counted until this is dropped.
struct Open {
    state: Arc<State>,
    index: usize,
    replica: SocketAddr,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(member) = self.state.members().get_mut(self.index) {
            member.open -= 1;
        }
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    // Aborting this task ends every connection with the set.
    let mut connections = JoinSet::new();
    while let Ok((mut client, _)) = listener.accept().await {
        let Some(open) = state.next() else {
            continue;
        };
        connections.spawn(async move {
            let mut replica = TcpStream::connect(open.replica).await?;
            client.set_nodelay(true)?;
            replica.set_nodelay(true)?;
            let copied = copy_bidirectional(&mut client, &mut replica).await;
            drop(open);
            copied
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn check_readiness(state: Arc<State>) {
    loop {
        let addresses: Vec<_> = state.members().iter().map(|it| it.health).collect();
        for (index, health) in addresses.into_iter().enumerate() {
            let answer = http::get(health, "/readyz").await;
            let ready = answer.is_ok_and(|answer| answer.status == 200);
            if let Some(member) = state.members().get_mut(index) {
                member.ready = ready;
            }
        }
        sleep(READINESS_INTERVAL).await;
    }
}
