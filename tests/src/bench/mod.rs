//! The cost of a review, compared with a server that reads the request and sends a fixed response.
//!
//! ```text
//!  lab bench ──TLS──▶ machine-webhook, with a catalog ──watches──▶ kube-apiserver
//!      └───────TLS──▶ lab echo: the same server, the same sizes, no review
//! ```
//! Both run on the same processors and are measured alternately: the ratio does not depend on the machine, the
//! times do.

pub(crate) mod echo;
pub(crate) mod fleet;
pub(crate) mod load;
pub(crate) mod report;
pub(crate) mod setup;
pub(crate) mod slow_images;
