//! Room on the host: a Machine that asks for more than the host has left keeps what it has.

use std::fmt::Display;

use common::api::libvirt_host::HostResources;
use common::api::normalized::{Normalized, NormalizedCpu, NormalizedMemory};
use controller_core::conditions::Fault;
use controller_core::machine::requested_resources;

use crate::capacity::granted;
use crate::failure::NO_ROOM;
use crate::observed::{Guest, HostView};

/// What the Machine gets of what it asks for.
#[derive(Debug)]
pub(super) struct Room {
    /// The block with vCPUs and memory that the host has room for; `None`: it has room for all.
    pub(super) block: Option<Normalized>,
    /// Why the Machine does not get what it asks for.
    pub(super) fault: Option<Fault>,
}

/// What a Machine gets on its host. Without a domain it gets all or nothing. `hold`: why it may not grow; it gets no more
/// than it has then.
pub(super) fn room(block: &Normalized, view: &HostView, hold: Option<&Fault>) -> Room {
    let (asks, has) = (requested_resources(block), view.size());
    let most = if hold.is_some() { has } else { view.room };
    let gets = granted(asks, has, most);
    if gets == asks && hold.is_none() {
        return Room {
            block: None,
            fault: None,
        };
    }
    let guest = view.guest.as_ref();
    let mut kept = block.clone();
    if let Some(guest) = guest {
        if gets.cpu < asks.cpu {
            kept.cpu = kept_cpu(guest).unwrap_or(block.cpu);
        }
        if gets.memory < asks.memory {
            kept.memory = kept_memory(guest).unwrap_or(block.memory);
        }
    }
    Room {
        block: guest.map(|_| kept),
        fault: Some(match hold {
            Some(fault) => fault.clone(),
            None => no_room(view, asks, gets),
        }),
    }
}

/// The smaller topology of definition and running guest: a growth that was granted and lost again goes from the
/// definition.
fn kept_cpu(guest: &Guest) -> Option<NormalizedCpu> {
    let (defined, running) = (guest.defined.as_ref(), guest.running.as_ref());
    let both = [defined, running].into_iter().flatten();
    both.map(|domain| domain.cpu)
        .min_by_key(NormalizedCpu::vcpus)
}

/// The definition's memory, as far as the running guest has it.
fn kept_memory(guest: &Guest) -> Option<NormalizedMemory> {
    let defined = guest.defined.as_ref()?.memory;
    let running = guest.running.as_ref().map_or(defined, |it| it.memory);
    let max_size = defined.max_size.min(running.max_size);
    Some(NormalizedMemory {
        size: defined.size.min(max_size),
        max_size,
    })
}

fn no_room(view: &HostView, asks: HostResources, gets: HostResources) -> Fault {
    let keeps = |amount: &dyn Display| match view.guest {
        Some(_) => format!(" and keeps {amount}"),
        None => String::new(),
    };
    let mut lacks = Vec::new();
    if gets.cpu < asks.cpu {
        lacks.push(format!(
            "{} vCPUs of this Machine, which asks for {}{}",
            view.room.cpu,
            asks.cpu,
            keeps(&gets.cpu)
        ));
    }
    if gets.memory < asks.memory {
        lacks.push(format!(
            "{} memory of this Machine, which asks for {}{}",
            view.room.memory,
            asks.memory,
            keeps(&gets.memory)
        ));
    }
    let message = format!(
        "LibvirtHost '{}' has room for {}: ask for less, or make room there (delete or shrink other Machines, or raise overcommit of the LibvirtHost); the Machine gets it then without another change",
        view.host,
        lacks.join(", and for ")
    );
    Fault::new(NO_ROOM, message)
}
