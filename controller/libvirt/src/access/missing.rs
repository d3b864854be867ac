//! A build without libvirt.

use super::{AccessError, Connection, Connector, Result, Target};

/// Fails every attempt to open a connection with the reason.
#[derive(Debug)]
pub(crate) struct Missing;

impl Connector for Missing {
    fn open(&self, _target: &Target) -> Result<Box<dyn Connection>> {
        let message = "this build has no libvirt: build with --features libvirt";
        Err(AccessError::Unavailable(message.into()))
    }
}
