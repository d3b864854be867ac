//! Whole domains to be read by people, each held against libvirt's own schema and against what a real
//! libvirt makes of it.

mod carry;
mod changes;
mod fixtures;
mod golden;
mod names;
mod properties;
mod real;
mod seed;
