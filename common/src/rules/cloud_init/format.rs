//! The format of user data, which cloud-init decides by the beginning of its first line, and the advice
//! for a text that has none.

use super::diagnostics::Diagnostic;
use super::position::Position;
use crate::code::Code;
use crate::words::nearest;

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
pub(super) enum Format {
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
    pub(super) fn of(text: &str) -> Self {
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

/// Whether the text begins as a cloud-config does.
pub(super) fn is_cloud_config(text: &str) -> bool {
    starts_with(text.trim_start(), CLOUD_CONFIG_LINE)
}

/// Characters of base64 that are decoded to find the format of what they encode: more than the longest beginning that
/// [`Format::of`] reads, with a header of a template before it.
const ENCODED_WITHIN: usize = 128;

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Whether the text is base64 of a gzip file, or of something in a format that cloud-init knows.
fn is_base64(text: &str) -> bool {
    let letters = text.bytes().filter(|byte| !byte.is_ascii_whitespace());
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0_u32);
    for letter in letters.take(ENCODED_WITHIN) {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            b'=' => break,
            _ => return false,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).unwrap_or_default());
        }
    }
    if bytes.starts_with(&GZIP) {
        return true;
    }
    let decoded = String::from_utf8_lossy(&bytes);
    matches!(
        Format::of(&decoded),
        Format::CloudConfig | Format::Unchecked
    )
}

/// Rule [`Code::UnknownUserData`]: why cloud-init knows no format of the text, and what to do.
pub(super) fn unknown(text: &str) -> Diagnostic {
    let line = text.trim_start().lines().next().unwrap_or_default();
    let follows = |rest: &str| Format::of(rest.trim_start()) != Format::Unknown;
    let after_line = text
        .trim_start()
        .split_once('\n')
        .map_or("", |(_, rest)| rest);
    let has_format = follows(after_line) && !after_line.trim().is_empty();
    let advice = if text.trim_start().starts_with('\u{feff}') {
        "begins with a byte order mark, behind which cloud-init knows no format; \
         save the text as UTF-8 without it"
    } else if is_base64(text) {
        "is base64, which cloud-init does not decode; give the text itself"
    } else if line.trim_end() == "---" && has_format {
        "begins with '---'; the next line has to be the first one, so remove it"
    } else if line.trim_end() == "---" {
        "begins with '---'; put '#cloud-config' in its place"
    } else if is_nearly_template(line) {
        "the first line is nearly '## template: jinja'; cloud-init knows it only as it is written here"
    } else if starts_with(text.trim_start(), TEMPLATE_LINE) {
        "the text below '## template: jinja' has no format that cloud-init knows; \
         add '#cloud-config' as the second line"
    } else {
        "has no format that cloud-init knows; add '#cloud-config' as the first line"
    };
    Diagnostic::new(Position::START, Code::UnknownUserData, advice)
}

/// A comment that means the header of a template, in another spelling.
fn is_nearly_template(line: &str) -> bool {
    let letters = |text: &str| -> String {
        let letters = text.chars().filter(char::is_ascii_alphabetic);
        letters.collect::<String>().to_lowercase()
    };
    let written = letters(line);
    let meant = letters(TEMPLATE_LINE);
    let is_comment = line.starts_with('#') && !starts_with(line, TEMPLATE_LINE);
    is_comment && nearest(&written, [&*meant]).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_a_format_gets_the_advice_that_helps() {
        for (text, advice) in [
            ("users: []", "add '#cloud-config' as the first line"),
            (
                "# cloud-config\nusers: []",
                "add '#cloud-config' as the first line",
            ),
            ("\u{feff}#cloud-config\nusers: []", "byte order mark"),
            ("\n\u{feff}users: []", "byte order mark"),
            ("I2Nsb3VkLWNvbmZpZwp1c2VyczogW10K", "base64"),
            ("IyEvYmluL3NoCmxzCg==", "base64"),
            ("H4sIAAAAAAAAA0vOyS9N", "base64"),
            // '## template: jinja', '#include', 'Content-Type:', and a cloud-config behind an empty line.
            ("IyMgdGVtcGxhdGU6IGppbmphCiNjbG91ZC1jb25maWcK", "base64"),
            ("I2luY2x1ZGUKaHR0cHM6Ly9hLmIK", "base64"),
            ("Q29udGVudC1UeXBlOiBtdWx0aXBhcnQvbWl4ZWQK", "base64"),
            ("CiNjbG91ZC1jb25maWcK", "base64"),
            ("SGVsbG8gd29ybGQ=", "add '#cloud-config' as the first line"),
            ("---\n#cloud-config\nusers: []", "has to be the first one"),
            ("---\n\n#!/bin/sh\n", "has to be the first one"),
            ("---\nusers: []", "put '#cloud-config' in its place"),
            (
                "# template: jinja\n#cloud-config",
                "nearly '## template: jinja'",
            ),
            (
                "##template:jinja\n#cloud-config",
                "nearly '## template: jinja'",
            ),
            ("## template: jinja2x\nusers: []", "as the second line"),
            (
                "## templates: Jinja\n#cloud-config",
                "nearly '## template: jinja'",
            ),
            (
                "# temperature\nusers: []",
                "add '#cloud-config' as the first line",
            ),
        ] {
            assert_eq!(Format::of(text), Format::Unknown, "{text:?}");
            let message = unknown(text).text;
            assert!(message.contains(advice), "{text:?}: {message}");
        }
    }

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
