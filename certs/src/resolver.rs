//! The leaf rustls serves, exchanged while connections go on.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::leaf::Leaf;
use crate::pair::Pair;

/// The leaf for the next handshake. Connections that stand keep the one they began with.
///
/// Clones share the leaf; without one every handshake is refused.
#[derive(Debug, Clone, Default)]
pub struct ServedLeaf(Arc<ArcSwapOption<CertifiedKey>>);

impl ServedLeaf {
    /// Serves `leaf` from now on.
    pub fn replace(&self, leaf: &Leaf) {
        self.0.store(Some(leaf.certified()));
    }

    /// Serves `pair` from now on.
    pub fn replace_pair(&self, pair: &Pair) {
        self.0.store(Some(pair.certified()));
    }
}

impl ResolvesServerCert for ServedLeaf {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}
