//! Laws that hold for any input.
//!
//! ```text
//! seeds/<form>/* ──▶ target(bytes) ──▶ a law that does not hold panics
//!    │  ▲                ▲
//!    │  └─ found ── libfuzzer (nightly, for as long as one likes): keeps what reaches new code
//!    └──────────────▶ mutate: edits JSON as JSON
//! ```
//!
//! The targets are ordinary functions. Every test run of the repository puts all seeds, and some
//! mutations of them, through them (`tests/seeds.rs`), so an input that once broke a law and was
//! added to the seeds is a regression test.
#![deny(missing_docs)]
#![expect(
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a law that does not hold panics: that is what a fuzzer looks for"
)]

pub mod cloud_init;
pub mod macs;
pub mod mutate;
pub mod quantities;
pub mod reviews;
mod scene;

/// A law, or a few that are about the same input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its program in `libfuzzer/fuzz_targets`.
    pub name: &'static str,
    /// What its input is: a folder of seeds.
    pub form: &'static str,
    /// Panics when the law does not hold. Bytes of another form are none of its business.
    pub law: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 7] = [
    Target {
        name: "body",
        form: "reviews",
        law: reviews::body,
    },
    Target {
        name: "twice",
        form: "reviews",
        law: reviews::twice,
    },
    Target {
        name: "patch",
        form: "reviews",
        law: reviews::patch,
    },
    Target {
        name: "update",
        form: "reviews",
        law: reviews::update,
    },
    Target {
        name: "cloud_init",
        form: "cloud-init",
        law: cloud_init::documents,
    },
    Target {
        name: "quantity",
        form: "quantities",
        law: quantities::pair,
    },
    Target {
        name: "mac",
        form: "macs",
        law: macs::text,
    },
];
