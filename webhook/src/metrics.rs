//! What is counted and measured. Labels are words of this program, never names of objects.

use std::time::Duration;

use common::admission::{ObjectKind, Stage};
use common::code::Code;
use common::violation::Findings;

use crate::review::Operation;

/// Buckets of [`observe`] are the default ones.
const DURATION: &str = "machine_webhook_review_duration_seconds";
const REVIEWS: &str = "machine_webhook_reviews_total";
const REJECTIONS: &str = "machine_webhook_rejections_total";
const WARNINGS: &str = "machine_webhook_warnings_total";
const HTTP_ERRORS: &str = "machine_webhook_http_errors_total";
const REFUSALS: &str = "machine_webhook_connections_refused_total";
const LOOKUPS: &str = "machine_webhook_catalog_lookups_total";
const ROWS: &str = "machine_webhook_catalog_objects";
const AGE: &str = "machine_webhook_catalog_age_seconds";
const EXPIRY: &str = "machine_webhook_certificate_expiry_seconds";
const ERRORS: &str = "machine_webhook_certificate_errors_total";
const LAST_ERROR: &str = "machine_webhook_certificate_last_error_timestamp_seconds";
const PHASE: &str = "machine_webhook_ca_phase";

/// Tells Prometheus what the names mean.
pub fn describe() {
    metrics::describe_counter!(REVIEWS, "Admission reviews by what was asked and answered");
    metrics::describe_histogram!(DURATION, "From the head of a request to its answer");
    metrics::describe_counter!(
        REJECTIONS,
        "Faults of refused objects by the code of their rule"
    );
    metrics::describe_counter!(WARNINGS, "Warnings about objects by the code of their rule");
    metrics::describe_counter!(
        HTTP_ERRORS,
        "Requests that were no admission review, by status"
    );
    metrics::describe_counter!(
        REFUSALS,
        "Connections that were not let in, or had to go for others, by reason"
    );
    metrics::describe_counter!(LOOKUPS, "Live reads of what the catalog did not have");
    metrics::describe_gauge!(ROWS, "Objects that the catalog has");
    metrics::describe_gauge!(
        AGE,
        metrics::Unit::Seconds,
        "Time since the catalog was last known to be right; 0 while its watch goes well"
    );
    metrics::describe_gauge!(EXPIRY, "Time until a certificate ends");
    metrics::describe_counter!(ERRORS, "Passes over the certificates that failed");
    metrics::describe_gauge!(
        LAST_ERROR,
        "When a pass over the certificates last failed, by what failed; 0: never"
    );
    metrics::describe_gauge!(PHASE, "1 for the phase that the rotation of the CA is in");
    // From the start, so that the first failure is an increase.
    metrics::counter!(ERRORS).absolute(0);
    for refusal in Refusal::ALL {
        metrics::counter!(REFUSALS, "reason" => refusal.label()).absolute(0);
    }
    for fault in CertificateFault::ALL {
        metrics::gauge!(LAST_ERROR, "fault" => fault.label()).set(0);
    }
}

/// How a review ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Accepted as it is.
    Allowed,
    /// Accepted, and the block written.
    Patched,
    /// Refused for its faults.
    Denied,
    /// Not a matter of rules: a deletion, a status.
    Passed,
    /// Not judged.
    Error,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Patched => "patched",
            Self::Denied => "denied",
            Self::Passed => "passed",
            Self::Error => "error",
        }
    }
}

/// What a review is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About {
    stage: &'static str,
    operation: &'static str,
    kind: &'static str,
}

impl About {
    /// Of a review; without a kind it is about one that has no rules.
    pub(crate) fn review(stage: Stage, operation: Operation, kind: Option<ObjectKind>) -> Self {
        Self {
            stage: stage_label(stage),
            operation: operation.label(),
            kind: kind.map_or("other", kind_label),
        }
    }

    /// Of a body that was no review.
    pub(crate) fn unknown(stage: Stage) -> Self {
        Self {
            stage: stage_label(stage),
            operation: "unknown",
            kind: "other",
        }
    }
}

/// A stage's name as a label.
pub(crate) fn stage_label(stage: Stage) -> &'static str {
    match stage {
        Stage::Mutate => "mutate",
        Stage::Validate => "validate",
    }
}

fn kind_label(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Machine => "Machine",
        ObjectKind::MachineTemplate => "MachineTemplate",
        ObjectKind::NetworkConfiguration => "NetworkConfiguration",
        ObjectKind::LibvirtHost => "LibvirtHost",
    }
}

/// A review was answered.
pub(crate) fn observe(about: About, outcome: Outcome, took: Duration) {
    let About {
        stage,
        operation,
        kind,
    } = about;
    let outcome = outcome.label();
    metrics::counter!(REVIEWS, "stage" => stage, "operation" => operation, "kind" => kind, "outcome" => outcome)
        .increment(1);
    metrics::histogram!(DURATION, "stage" => stage).record(took.as_secs_f64());
}

/// An object was judged: its faults, or what its user was warned of.
pub(crate) fn found(about: About, findings: &Findings) {
    let count = |name: &'static str, code: Code| {
        let About {
            stage,
            operation,
            kind,
        } = about;
        metrics::counter!(name, "stage" => stage, "operation" => operation, "kind" => kind, "code" => code.as_str())
            .increment(1);
    };
    for violation in &findings.violations {
        count(REJECTIONS, violation.code);
    }
    for code in findings.warnings.iter().filter_map(|warning| warning.code) {
        count(WARNINGS, code);
    }
}

/// A request was answered with an HTTP error.
pub fn http_error(status: axum::http::StatusCode) {
    metrics::counter!(HTTP_ERRORS, "status" => status.as_u16().to_string()).increment(1);
}

/// Why a connection was not let in, or had to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// As many as there may be are all being answered.
    Limit,
    /// Another one needed its place more.
    Displaced,
    /// No handshake of TLS, or none in time.
    Handshake,
    /// The client has no certificate that will do.
    Client,
}

impl Refusal {
    const ALL: [Self; 4] = [Self::Limit, Self::Displaced, Self::Handshake, Self::Client];

    fn label(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Displaced => "displaced",
            Self::Handshake => "handshake",
            Self::Client => "client",
        }
    }
}

/// A connection was not let in, or had to go.
pub fn refused(refusal: Refusal) {
    metrics::counter!(REFUSALS, "reason" => refusal.label()).increment(1);
}

/// Something was looked up in the API server.
pub fn lookup(kind: &'static str, outcome: &'static str) {
    metrics::counter!(LOOKUPS, "kind" => kind, "outcome" => outcome).increment(1);
}

/// The catalog has so many objects of a kind, and was right about them so long ago.
pub fn catalog(kind: &'static str, objects: usize, age: Duration) {
    // No cluster has so many that a float could not count them.
    let objects = u32::try_from(objects).unwrap_or(u32::MAX);
    metrics::gauge!(ROWS, "kind" => kind).set(objects);
    metrics::gauge!(AGE, "kind" => kind).set(age.as_secs_f64());
}

/// A certificate ends in so many seconds.
pub fn expiry(certificate: &'static str, seconds: f64) {
    metrics::gauge!(EXPIRY, "certificate" => certificate).set(seconds);
}

/// What a pass over the certificates fails of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateFault {
    /// The API server refuses, fails, or does not answer.
    Api,
    /// A webhook configuration is missing or empty.
    Configuration,
    /// No key or certificate can be made.
    Signing,
    /// Certificate and key of the files are missing or no pair.
    Files,
    /// The file of the CA that vouches for clients is missing or has none.
    ClientCa,
}

impl CertificateFault {
    const ALL: [Self; 5] = [
        Self::Api,
        Self::Configuration,
        Self::Signing,
        Self::Files,
        Self::ClientCa,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Configuration => "configuration",
            Self::Signing => "signing",
            Self::Files => "files",
            Self::ClientCa => "client-ca",
        }
    }
}

/// A pass over the certificates failed.
pub fn certificate_error(fault: CertificateFault) {
    metrics::counter!(ERRORS).increment(1);
    let now = time::OffsetDateTime::now_utc();
    let now = (now - time::OffsetDateTime::UNIX_EPOCH).as_seconds_f64();
    metrics::gauge!(LAST_ERROR, "fault" => fault.label()).set(now);
}

/// The rotation of the CA is in this phase.
pub fn phase(phase: certs::Phase) {
    for each in certs::Phase::ALL {
        metrics::gauge!(PHASE, "phase" => each.as_str()).set(u8::from(each == phase));
    }
}
