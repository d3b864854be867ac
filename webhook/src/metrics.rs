//! The metrics. Label values are fixed texts of this program, never names of objects, so the number of
//! series is bounded.

use std::time::Duration;

use certs::Validity;
use common::admission::{ObjectKind, Stage};
use common::code::Code;
use common::violation::Findings;
use time::OffsetDateTime;

use crate::review::Operation;

/// With the default buckets.
const DURATION: &str = "machine_webhook_review_duration_seconds";
const REVIEWS: &str = "machine_webhook_reviews_total";
const REJECTIONS: &str = "machine_webhook_rejections_total";
const WARNINGS: &str = "machine_webhook_warnings_total";
const HTTP_ERRORS: &str = "machine_webhook_http_errors_total";
const CONNECTION_REFUSALS: &str = "machine_webhook_connections_refused_total";
const LOOKUPS: &str = "machine_webhook_catalog_lookups_total";
const ROWS: &str = "machine_webhook_catalog_objects";
const AGE: &str = "machine_webhook_catalog_age_seconds";
const LIFETIME: &str = "machine_webhook_certificate_lifetime_seconds";
const EXPIRY: &str = "machine_webhook_certificate_expiry_seconds";
const ERRORS: &str = "machine_webhook_certificate_errors_total";
const LAST_ERROR: &str = "machine_webhook_certificate_last_error_timestamp_seconds";
const PHASE: &str = "machine_webhook_ca_phase";

/// Registers the help texts, and the counters that have to start at zero.
pub(crate) fn describe() {
    metrics::describe_counter!(REVIEWS, "Admission reviews by request and outcome");
    metrics::describe_histogram!(
        DURATION,
        "Time from the head of a request to its response, in seconds"
    );
    metrics::describe_counter!(
        REJECTIONS,
        "Violations of refused objects by the code of the rule"
    );
    metrics::describe_counter!(WARNINGS, "Warnings about objects by the code of the rule");
    metrics::describe_counter!(
        HTTP_ERRORS,
        "Requests that were not an admission review, by HTTP status"
    );
    metrics::describe_counter!(
        CONNECTION_REFUSALS,
        "Connections that were rejected, or closed in favour of others, by reason"
    );
    metrics::describe_counter!(
        LOOKUPS,
        "Live reads of objects that the catalog did not have"
    );
    metrics::describe_gauge!(ROWS, "Objects in the catalog");
    metrics::describe_gauge!(
        AGE,
        metrics::Unit::Seconds,
        "Time since the catalog was last known to be current; 0 while its watch works"
    );
    metrics::describe_gauge!(LIFETIME, "Time for which a certificate is valid in all");
    metrics::describe_gauge!(EXPIRY, "Time until a certificate expires");
    metrics::describe_counter!(ERRORS, "Failed passes over the certificates");
    metrics::describe_gauge!(
        LAST_ERROR,
        "Time of the last failed pass over the certificates, by what failed; 0: never"
    );
    metrics::describe_gauge!(
        PHASE,
        "1 for the current phase of the CA rotation, 0 for the others"
    );
    // A counter that appears with its first failure would show no increase.
    metrics::counter!(ERRORS).absolute(0);
    for refusal in ConnectionRefusal::ALL {
        metrics::counter!(CONNECTION_REFUSALS, "reason" => refusal.label()).absolute(0);
    }
    for fault in CertificateFault::ALL {
        metrics::gauge!(LAST_ERROR, "fault" => fault.label()).set(0);
    }
}

/// The outcome of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Allowed without a change.
    Allowed,
    /// Allowed, and the block is written.
    Patched,
    /// Refused because of violations.
    Denied,
    /// Allowed without validation: a deletion, a status.
    Passed,
    /// The object could not be validated.
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

/// The labels of a review.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReviewLabels {
    stage: &'static str,
    operation: &'static str,
    kind: &'static str,
}

impl ReviewLabels {
    /// Labels of a review; `kind` is `None` for a kind without rules.
    pub(crate) fn new(stage: Stage, operation: Operation, kind: Option<ObjectKind>) -> Self {
        Self {
            stage: stage_label(stage),
            operation: operation.label(),
            kind: kind.map_or("other", kind_label),
        }
    }

    /// Labels of a body that is not a review.
    pub(crate) fn unknown(stage: Stage) -> Self {
        Self {
            stage: stage_label(stage),
            operation: "unknown",
            kind: "other",
        }
    }
}

/// The stage as metrics and logs write it.
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
        ObjectKind::MachinePolicy => "MachinePolicy",
        ObjectKind::MachineImage => "MachineImage",
    }
}

/// Counts a review and records its duration.
pub(crate) fn review(labels: ReviewLabels, outcome: Outcome, took: Duration) {
    let ReviewLabels {
        stage,
        operation,
        kind,
    } = labels;
    let outcome = outcome.label();
    metrics::counter!(REVIEWS, "stage" => stage, "operation" => operation, "kind" => kind, "outcome" => outcome)
        .increment(1);
    metrics::histogram!(DURATION, "stage" => stage).record(took.as_secs_f64());
}

/// Counts the violations and warnings of an object.
pub(crate) fn findings(labels: ReviewLabels, findings: &Findings) {
    let count = |name: &'static str, code: Code| {
        let ReviewLabels {
            stage,
            operation,
            kind,
        } = labels;
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

/// Counts a request that was answered with an HTTP error.
pub(crate) fn http_error(status: axum::http::StatusCode) {
    metrics::counter!(HTTP_ERRORS, "status" => status.as_u16().to_string()).increment(1);
}

/// Why a connection was rejected or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionRefusal {
    /// The limit is reached, and a request is being answered on every connection.
    Limit,
    /// Closed in favour of another connection.
    Displaced,
    /// The TLS handshake failed or took too long.
    Handshake,
    /// The client has no acceptable certificate.
    Client,
}

impl ConnectionRefusal {
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

/// Counts a connection that was rejected or closed.
pub(crate) fn connection_refused(refusal: ConnectionRefusal) {
    metrics::counter!(CONNECTION_REFUSALS, "reason" => refusal.label()).increment(1);
}

/// The outcome of a live read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupOutcome {
    /// The object exists.
    Found,
    /// The object does not exist.
    Absent,
    /// The API server refused the read or was not reached.
    Failed,
    /// The deadline is over.
    TimedOut,
}

/// Counts a live read of an object of this kind.
pub(crate) fn catalog_lookup(kind: &'static str, outcome: LookupOutcome) {
    let outcome = match outcome {
        LookupOutcome::Found => "found",
        LookupOutcome::Absent => "absent",
        LookupOutcome::Failed => "failed",
        LookupOutcome::TimedOut => "late",
    };
    metrics::counter!(LOOKUPS, "kind" => kind, "outcome" => outcome).increment(1);
}

/// Sets the number of objects of a kind, and the time since they were last known to be current.
pub(crate) fn catalog(kind: &'static str, objects: usize, age: Duration) {
    // The API server holds far fewer than u32::MAX objects of a kind.
    let objects = u32::try_from(objects).unwrap_or(u32::MAX);
    metrics::gauge!(ROWS, "kind" => kind).set(objects);
    metrics::gauge!(AGE, "kind" => kind).set(age.as_secs_f64());
}

/// Sets the lifetime of a certificate, and the time until it expires.
pub(crate) fn certificate(certificate: &'static str, validity: Validity) {
    let lifetime = validity.not_after - validity.not_before;
    metrics::gauge!(LIFETIME, "certificate" => certificate).set(lifetime.as_seconds_f64());
    // Negative once it has expired.
    let left = validity.not_after - OffsetDateTime::now_utc();
    metrics::gauge!(EXPIRY, "certificate" => certificate).set(left.as_seconds_f64());
}

/// Why a pass over the certificates failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CertificateFault {
    /// The API server refused the call, failed, or did not answer.
    Api,
    /// A webhook configuration is missing or has no webhooks.
    Configuration,
    /// No key or certificate could be generated.
    Signing,
    /// Certificate or key of the files is missing or unusable.
    Files,
    /// The file with the CAs of clients is missing or unusable.
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

/// Counts a failed pass over the certificates.
pub(crate) fn certificate_error(fault: CertificateFault) {
    metrics::counter!(ERRORS).increment(1);
    let now = OffsetDateTime::now_utc();
    let now = (now - OffsetDateTime::UNIX_EPOCH).as_seconds_f64();
    metrics::gauge!(LAST_ERROR, "fault" => fault.label()).set(now);
}

/// Sets the phase of the CA rotation.
pub(crate) fn ca_phase(phase: certs::Phase) {
    for each in certs::Phase::ALL {
        metrics::gauge!(PHASE, "phase" => each.as_str()).set(u8::from(each == phase));
    }
}
