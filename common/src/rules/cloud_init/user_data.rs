//! User data: its format by the first line, and the validation of a cloud-config by the schemas.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::built_in;
use super::diagnostics::Diagnostic;
use super::document::{Document, Position};
use super::schema::{CloudInitSchema, Codes, Problem, Schema};
use crate::code::Code;

const CODES: Codes = Codes {
    invalid: Code::InvalidCloudConfig,
    unknown: Code::UnknownCloudInitKey,
    doubtful: Code::DoubtfulCloudInit,
    empty: Code::DoubtfulCloudInit,
};

static CLOUD_CONFIG: LazyLock<Schema> = LazyLock::new(|| built_in(include_str!("user-data.json")));

/// Formats that pass unread, by the beginning of their first line in lower case: scripts and parts
/// of cloud-init's, then those of cloudbase-init, which does the same for Windows.
const UNCHECKED: [&str; 15] = [
    "#!",
    "#include",
    "#cloud-boothook",
    "#part-handler",
    "#cloud-config-archive",
    "#cloud-config-jsonp",
    "content-type:",
    "mime-version:",
    "#ps1",
    "rem cmd",
    "<powershell>",
    "<script>",
    "-----begin certificate-----",
    "text/x-shellscript",
    "#upstart-job",
];
const CLOUD_CONFIG_LINE: &str = "#cloud-config";
const TEMPLATE_LINE: &str = "## template: jinja";
/// Length of text in which cloud-init searches the header of a MIME message.
const MIME_HEADER_WITHIN: usize = 4096;

/// How cloud-init processes a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// The text is empty.
    Blank,
    /// Reads it as YAML.
    CloudConfig,
    /// Reads it in a format that is not validated, or renders a template first.
    Unchecked,
    /// Ignores it.
    Unknown,
}

impl Format {
    /// Follows cloud-init: white space before the first line and the case of letters do not
    /// matter.
    fn of(text: &str) -> Self {
        let text = text.trim_start();
        let Some(template) = strip_line(text, TEMPLATE_LINE) else {
            return Self::of_plain(text);
        };
        match Self::of_plain(template.trim_start()) {
            // The content is unknown until the template is rendered; it need not be YAML before.
            Self::CloudConfig if is_template(template) => Self::Unchecked,
            format => format,
        }
    }

    fn of_plain(text: &str) -> Self {
        let starts = |beginning: &str| starts_with(text, beginning);
        let head = text.get(..text.floor_char_boundary(MIME_HEADER_WITHIN));
        let head = head.unwrap_or(text).to_lowercase();
        let is_ignition = || text.starts_with('{') && text.contains("\"ignition\"");
        if text.is_empty() {
            Self::Blank
        } else if UNCHECKED.iter().any(|beginning| starts(beginning)) {
            Self::Unchecked
        } else if starts(CLOUD_CONFIG_LINE) {
            Self::CloudConfig
        } else if head.contains("mime-version:") || is_ignition() {
            Self::Unchecked
        } else {
            Self::Unknown
        }
    }
}

fn starts_with(text: &str, beginning: &str) -> bool {
    let start = text.get(..beginning.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(beginning))
}

/// What follows the first line, if it begins so.
fn strip_line<'t>(text: &'t str, beginning: &str) -> Option<&'t str> {
    let rest = || text.split_once('\n').map_or("", |(_, rest)| rest);
    starts_with(text, beginning).then(rest)
}

/// Whether the text has anything for Jinja to render.
fn is_template(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|open| text.contains(open))
}

/// Rules [`Code::UnknownUserData`], [`Code::InvalidYaml`], [`Code::DuplicateYamlKey`],
/// [`Code::InvalidCloudConfig`], [`Code::UnknownCloudInitKey`], [`Code::DoubtfulCloudInit`].
pub(super) fn check(text: &str, given: Option<&CloudInitSchema>) -> Vec<Diagnostic> {
    match Format::of(text) {
        Format::Blank | Format::Unchecked => return vec![],
        Format::Unknown => {
            let text = "has no format that cloud-init knows; \
                        add '#cloud-config' as the first line";
            return vec![Diagnostic::new(
                Position::START,
                Code::UnknownUserData,
                text,
            )];
        }
        Format::CloudConfig => {}
    }
    let document = match Document::read(text) {
        Ok(document) => document,
        Err(diagnostic) => return vec![diagnostic],
    };
    // Nothing but comments.
    if document.value.is_null() {
        return document.diagnostics;
    }
    let given = given.map(|CloudInitSchema(given)| given);
    // A key that only the administrator's schema defines is not reported as unknown.
    let is_configured_module = |pointer: &str| {
        let module = pointer.strip_prefix('/').unwrap_or_default();
        given.is_some_and(|given| given.has_key(module))
    };
    let mut violations = CLOUD_CONFIG.check(&document, |pointer, problem| {
        problem != Problem::UnknownKey || !is_configured_module(pointer)
    });
    if let Some(given) = given {
        let reported = violations.iter().map(|one| one.pointer.clone()).collect();
        let mut further = given.check(&document, |pointer, _| {
            !overlaps_reported(&reported, pointer)
        });
        for one in &mut further {
            // It may describe another release than the guest's: only types are certain.
            if one.problem == Problem::Content {
                one.problem = Problem::Tolerated;
            }
        }
        violations.append(&mut further);
    }
    let violations = violations.into_iter().map(|one| one.diagnostic(CODES));
    document.diagnostics.into_iter().chain(violations).collect()
}

/// Whether a fault of a value, of a value in it or of one around it is reported already.
fn overlaps_reported(reported: &BTreeSet<String>, pointer: &str) -> bool {
    let mut around = pointer.match_indices('/').map(|(end, _)| &pointer[..end]);
    let inside = format!("{pointer}/");
    let mut within = reported.range(inside.clone()..);
    reported.contains(pointer)
        || around.any(|outer| reported.contains(outer))
        || within
            .next()
            .is_some_and(|inner| inner.starts_with(&inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_decides_the_format_as_in_cloud_init() {
        for (text, format) in [
            ("", Format::Blank),
            (" \n\t\n", Format::Blank),
            ("#cloud-config", Format::CloudConfig),
            ("\n \n#Cloud-Config\nusers: []", Format::CloudConfig),
            ("#cloud-config\r\nusers: []", Format::CloudConfig),
            (
                "## template: jinja\n#cloud-config\nusers: []",
                Format::CloudConfig,
            ),
            (
                "## template: jinja\n\n#cloud-config\na: {{ v1.region }}",
                Format::Unchecked,
            ),
            (
                "## template: jinja\n#!/bin/sh\necho {{ a }}",
                Format::Unchecked,
            ),
            ("## template: jinja\nusers: []", Format::Unknown),
            (
                "## template: jinja\n## template: jinja\n#cloud-config",
                Format::Unknown,
            ),
            ("## template: jinja", Format::Blank),
            ("#!/bin/sh", Format::Unchecked),
            ("#include\nhttps://example.com", Format::Unchecked),
            ("#include-once\nhttps://example.com", Format::Unchecked),
            ("#cloud-config-archive\n- a", Format::Unchecked),
            ("#cloud-config-jsonp\n[]", Format::Unchecked),
            ("#cloud-boothook\n#!/bin/sh", Format::Unchecked),
            ("#part-handler\n", Format::Unchecked),
            (
                "Content-Type: multipart/mixed; boundary=\"x\"\nMIME-Version: 1.0",
                Format::Unchecked,
            ),
            ("MIME-Version: 1.0", Format::Unchecked),
            ("From nobody\nMime-Version: 1.0", Format::Unchecked),
            ("#ps1_sysnative\nWrite-Host", Format::Unchecked),
            ("#PS1", Format::Unchecked),
            ("rem cmd\ndir", Format::Unchecked),
            ("<powershell>\ndir\n</powershell>", Format::Unchecked),
            (
                "{\"ignition\": {\"version\": \"3.4.0\"}}",
                Format::Unchecked,
            ),
            ("{\"users\": []}", Format::Unknown),
            ("users: []", Format::Unknown),
            ("# cloud-config\nusers: []", Format::Unknown),
            ("cloud-config\nusers: []", Format::Unknown),
            ("---\n#cloud-config\nusers: []", Format::Unknown),
            ("\u{feff}#cloud-config\nusers: []", Format::Unknown),
            ("ünïcödé", Format::Unknown),
        ] {
            assert_eq!(Format::of(text), format, "{text:?}");
        }
    }
}
