//! Properties of the product that hold for any input.
//!
//! ```text
//! seeds/<format>/* ──▶ target(bytes) ──▶ a property that does not hold panics
//!    │  ▲                ▲
//!    │  └─ new inputs ── libFuzzer (nightly compiler, for any time): keeps inputs that reach new code
//!    └──────────────▶ mutate: edits JSON as JSON
//! ```
//!
//! The targets are ordinary functions. Every test run of the repository calls them with all seeds and some
//! mutations of each (`tests/seeds.rs`), so an input that once violated a property and was added to the
//! seeds is a regression test.
#![deny(missing_docs)]
#![expect(
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a property that does not hold panics, because a fuzzer reports panics"
)]

pub mod cloud_init;
mod environment;
pub mod guest_report;
pub mod images;
pub mod macs;
pub mod mutate;
pub mod policies;
pub mod quantities;
pub mod reviews;

/// A property, or several about the same input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the target and of its program in `libfuzzer/fuzz_targets`.
    pub name: &'static str,
    /// Format of its input: the name of a folder of seeds.
    pub format: &'static str,
    /// Panics if the property does not hold. Ignores input of another format.
    pub check: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 11] = [
    Target {
        name: "body",
        format: "reviews",
        check: reviews::body,
    },
    Target {
        name: "twice",
        format: "reviews",
        check: reviews::twice,
    },
    Target {
        name: "patch",
        format: "reviews",
        check: reviews::patch,
    },
    Target {
        name: "update",
        format: "reviews",
        check: reviews::update,
    },
    Target {
        name: "cloud_init",
        format: "cloud-init",
        check: cloud_init::documents,
    },
    Target {
        name: "quantity",
        format: "quantities",
        check: quantities::pair,
    },
    Target {
        name: "mac",
        format: "macs",
        check: macs::text,
    },
    Target {
        name: "policy",
        format: "policies",
        check: policies::pair,
    },
    Target {
        name: "image_header",
        format: "image-headers",
        check: images::header,
    },
    Target {
        name: "image_source",
        format: "urls",
        check: images::source,
    },
    Target {
        name: "guest_report",
        format: "guest-reports",
        check: guest_report::limits,
    },
];
