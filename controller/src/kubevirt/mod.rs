//! KubeVirt: what is known of a Machine there, and carrying out a plan.

pub(crate) mod apply;
pub(crate) mod observe;
