//! The content of volumes, over a stream of the connection.

use std::io::Read;

use virt::stream::Stream;

use crate::access::{AccessError, Result};

/// Bytes that every daemon accepts in one message of a stream (VIR_NET_MESSAGE_LEGACY_PAYLOAD_MAX).
const CHUNK: usize = 262_120;

pub(super) fn send(stream: &Stream, source: &mut dyn Read, length: u64) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut left = length;
    while left > 0 {
        let wanted = usize::try_from(left).map_or(CHUNK, |it| it.min(CHUNK));
        let got = match source.read(&mut chunk[..wanted]) {
            Ok(0) => {
                let sent = length - left;
                return Err(AccessError::Refused(format!(
                    "the source ended after {sent} of {length} bytes"
                )));
            }
            Ok(got) => got,
            Err(error) => return Err(AccessError::Refused(format!("the source: {error}"))),
        };
        let mut rest = &chunk[..got];
        while !rest.is_empty() {
            let sent = stream.send(rest)?;
            rest = &rest[usize::try_from(sent).unwrap_or(0)..];
        }
        left -= got as u64;
    }
    Ok(())
}

/// Receives at most `limit` bytes.
pub(super) fn receive(stream: &Stream, limit: u64) -> Result<Vec<u8>> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut chunk = vec![0; CHUNK];
    let mut content = vec![];
    loop {
        let got = usize::try_from(stream.recv(&mut chunk)?).unwrap_or(0);
        if got == 0 {
            content.truncate(limit);
            return Ok(content);
        }
        content.extend_from_slice(&chunk[..got]);
    }
}
