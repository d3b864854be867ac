//! What a review costs, beside a server that does nothing with what it is sent.
//!
//! ```text
//!  lab bench ──TLS──▶ machine-webhook, as shipped ──watches──▶ kube-apiserver
//!      └───────TLS──▶ lab echo: the same server, the same sizes, no review
//! ```
//! All on the same processors in the same run, turn by turn: a ratio says more than a time, which is
//! as good as the machine.

pub(crate) mod echo;
pub(crate) mod fleet;
pub(crate) mod load;
pub(crate) mod report;
pub(crate) mod scene;
