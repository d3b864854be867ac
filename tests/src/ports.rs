//! Free loopback ports.

use std::{
    env,
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result};

/// Below the range from which systems take the ports of outgoing connections
/// (32768 and up on Linux): a port stays free while a server is being restarted.
const FIRST: u16 = 20_000;

/// Processes reserve ports in blocks, so that suites that run side by side never choose the same port: seconds pass
/// until the program that a port was chosen for listens.
const BLOCKS: u16 = 200;
const PORTS_OF_A_BLOCK: u16 = 50;

/// The folder of the lock files of all blocks.
const LOCKS: &str = "kubevirt-operator-lab-ports";

/// A block that this process owns. The kernel releases the lock when the process ends, however it ends.
struct Block {
    ports: std::ops::Range<u16>,
    _lock: File,
}

/// A free port. No two calls return the same port, in this process or in others.
pub(crate) fn free() -> Result<u16> {
    static BLOCKS_HERE: Mutex<Vec<Block>> = Mutex::new(Vec::new());
    let mut blocks = BLOCKS_HERE.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let next = blocks.last_mut().and_then(|block| block.ports.next());
        match next {
            // Programs outside of the lab may use ports, too.
            Some(port) if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() => {
                return Ok(port);
            }
            Some(_) => {}
            None => blocks.push(reserve()?),
        }
    }
}

/// Reserves the first block that no process holds.
fn reserve() -> Result<Block> {
    let folder = env::temp_dir().join(LOCKS);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for block in 0..BLOCKS {
        let lock = File::create(folder.join(block.to_string()))?;
        if lock.try_lock().is_ok() {
            let first = FIRST + block * PORTS_OF_A_BLOCK;
            return Ok(Block {
                ports: first..first + PORTS_OF_A_BLOCK,
                _lock: lock,
            });
        }
    }
    anyhow::bail!("all ports between 20000 and 30000 are reserved by running labs")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ports_differ_beyond_one_block() {
        let count = PORTS_OF_A_BLOCK + 1;
        let ports: BTreeSet<u16> = (0..count).map(|_| free().unwrap()).collect();
        assert_eq!(ports.len(), usize::from(count));
    }

    #[test]
    fn a_reserved_block_is_not_reserved_again() {
        let (one, other) = (reserve().unwrap(), reserve().unwrap());
        assert_ne!(one.ports, other.ports);
    }

    #[test]
    fn a_port_in_use_is_skipped() {
        let block = reserve().unwrap();
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, block.ports.start)).unwrap();
        assert_ne!(free().unwrap(), taken.local_addr().unwrap().port());
    }
}
