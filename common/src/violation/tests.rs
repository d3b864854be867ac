use super::*;

#[test]
fn a_violation_is_displayed_in_the_format_of_kubernetes() {
    let violation = Violation::new(
        "spec.template",
        Code::TemplateNotFound,
        Kind::NotFound,
        "known templates: small",
    )
    .text("smal");
    assert_eq!(
        violation.to_string(),
        "spec.template: Not found: \"smal\": known templates: small [TemplateNotFound]"
    );
}

fn with_faults(count: usize) -> Findings {
    let mut findings = Findings::default();
    for number in 0..count {
        let (code, kind) = (Code::TemplateNotFound, Kind::NotFound);
        findings.deny(Violation::new("spec", code, kind, number.to_string()));
    }
    findings
}

#[test]
fn an_answer_lists_some_faults_and_says_that_there_are_more() {
    for (count, last) in [
        (VIOLATIONS_MAX, "1499 [TemplateNotFound]"),
        (VIOLATIONS_MAX + 7, "not listed: 7 or more;"),
    ] {
        let mut findings = with_faults(count);
        assert_eq!(findings.count(), count);
        findings.report_omitted();
        assert!(findings.violations.len() <= VIOLATIONS_MAX + 1);
        let shown = findings.violations.last().unwrap().to_string();
        assert!(shown.contains(last), "{shown}");
    }
}

/// Many faults that the stored object has, too, are no reason to refuse; one of which nobody knows it is.
#[test]
fn faults_that_are_only_counted_are_new() {
    for (count, is_accepted) in [(VIOLATIONS_MAX, true), (VIOLATIONS_MAX + 1, false)] {
        let mut findings = with_faults(count);
        findings.dedupe();
        findings.ratchet(|_| true);
        assert_eq!(findings.accepted(), is_accepted, "{count}");
    }
}

#[test]
fn a_long_warning_is_cut_before_its_code() {
    let mut findings = Findings::default();
    findings.warn(Code::TemplateDeprecated, &"x".repeat(500));
    let text = &findings.warnings[0].text;
    assert_eq!(text.chars().count(), WARNING_MAX);
    assert!(text.ends_with("… [TemplateDeprecated]"));
}
