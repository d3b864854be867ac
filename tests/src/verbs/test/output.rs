//! The results of one suite, and the totals of all suites.

use std::{fmt, time::Duration};

/// Prefix of the line with which a test reports that it could not do its work; the reason follows.
const SKIPPED: &str = "skipped: ";

/// The argument with which a suite also prints the output of tests that passed.
pub(super) const SHOW_OUTPUT: &str = "--show-output";

/// Whether the output of tests that passed is hidden: it is read to find skipped tests, and shown only on request.
#[derive(Debug, Clone, Copy)]
pub(super) enum PassedOutput {
    /// The user requested it.
    Shown,
    /// It is hidden; `within` is true while lines of it are read.
    Hidden { within: bool },
}

impl PassedOutput {
    pub(super) fn new(arguments: &[String]) -> Self {
        if arguments.iter().any(|it| it == SHOW_OUTPUT) {
            Self::Shown
        } else {
            Self::Hidden { within: false }
        }
    }

    /// Whether the next line of the output is shown.
    pub(super) fn shows(&mut self, line: &str) -> bool {
        let Self::Hidden { within } = self else {
            return true;
        };
        if line == "successes:" {
            *within = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            *within = false;
        }
        !*within
    }
}

/// A suite that ended.
#[derive(Debug)]
pub(super) struct Finished {
    /// The name of its binary, and the folder of its package.
    pub(super) title: String,
    pub(super) output: String,
    pub(super) succeeded: bool,
    pub(super) took: Duration,
    /// Processor time of it and of the programs that it started and ended, if that was measured.
    pub(super) processor: Option<Duration>,
    /// Whether its output was shown while it ran.
    pub(super) live: bool,
    pub(super) hidden: PassedOutput,
}

/// The counts of one suite, read from its output.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    /// Tests with `#[ignore]`, with their reasons.
    ignored: Vec<(String, String)>,
    failed: Vec<String>,
    /// Tests that could not do their work, each once, with its reasons.
    skipped: Vec<(String, String)>,
}

impl Counts {
    fn read(output: &str) -> Self {
        let mut counts = Self::default();
        // The test whose output is being read, and the one that runs, if its output is not collected.
        let (mut test, mut running) = ("", None);
        for line in output.lines() {
            if line == "ok" || line == "FAILED" {
                running = None;
            } else if let Some(name) = line.strip_prefix("---- ") {
                test = name.trim_end_matches(" stdout ----");
            } else if let Some(rest) = line.strip_prefix("test result: ") {
                counts.passed += number_before(rest, " passed");
            } else if let Some(name) = line.strip_suffix(" ... FAILED") {
                let name = name.strip_prefix("test ").unwrap_or(name);
                counts.failed.push(name.to_owned());
            } else if let Some((name, reason)) = line.split_once(" ... ignored") {
                let name = name.strip_prefix("test ").unwrap_or(name);
                let reason = reason.trim_start_matches(", ");
                counts.ignored.push((name.to_owned(), reason.to_owned()));
            } else if let Some((before, reason)) = line.split_once(SKIPPED) {
                // With --nocapture and one thread, the name is in the same line.
                let name = before
                    .strip_prefix("test ")
                    .and_then(|it| it.strip_suffix(" ... "));
                running = name.or(running);
                if before.is_empty() || name.is_some() {
                    counts.skip(running.unwrap_or(test), reason);
                }
            }
        }
        counts
            .skipped
            .retain(|(test, _)| !counts.failed.contains(test));
        counts
    }

    /// Adds a skipped test, or a further reason of it. Tests whose name is not in the output count by their lines.
    fn skip(&mut self, test: &str, reason: &str) {
        let mut skipped = self.skipped.iter_mut();
        match skipped.find(|(known, _)| known == test && !test.is_empty()) {
            Some((_, reasons)) => *reasons = format!("{reasons}; {reason}"),
            None => self.skipped.push((test.to_owned(), reason.to_owned())),
        }
    }
}

/// The number before a word, such as 12 in `ok. 12 passed; 0 failed`.
fn number_before(text: &str, word: &str) -> usize {
    let (before, _) = text.split_once(word).unwrap_or_default();
    let number = before.rsplit(' ').next().unwrap_or_default();
    number.parse().unwrap_or_default()
}

impl Finished {
    /// The text that is printed after its end; empty if no test of the suite was selected.
    pub(super) fn shown(&self) -> String {
        if self.live || (self.succeeded && self.output.contains("\nrunning 0 tests\n")) {
            return String::new();
        }
        let mut hidden = self.hidden;
        let kept: Vec<_> = self
            .output
            .lines()
            .filter(|line| hidden.shows(line))
            .collect();
        let seconds = self.took.as_secs_f64();
        let processor = self.processor.map(|time| time.as_secs_f64());
        let processor = processor.map(|time| format!(", {time:.1} s of a processor"));
        format!(
            "{} ({seconds:.1} s{})\n{}\n",
            self.title,
            processor.unwrap_or_default(),
            kept.join("\n").trim()
        )
    }
}

/// All suites of a run.
#[derive(Debug, Default)]
pub(super) struct Totals {
    passed: usize,
    /// Tests that failed, and suites that ended without a report.
    failed: Vec<String>,
    skipped: Vec<String>,
}

impl Totals {
    pub(super) fn add(&mut self, finished: &Finished) {
        let counts = Counts::read(&finished.output);
        let title = &finished.title;
        self.passed += counts.passed.saturating_sub(counts.skipped.len());
        if !finished.succeeded && counts.failed.is_empty() {
            self.failed
                .push(format!("{title} ended without a report of its tests"));
        }
        self.failed
            .extend(counts.failed.iter().map(|test| format!("{title} {test}")));
        let skipped = counts.skipped.iter();
        let skipped = skipped.map(|(test, reason)| format!("{title} {test}: {reason}"));
        self.skipped.extend(skipped);
        let ignored = counts.ignored.iter();
        let ignored = ignored.map(|(test, reason)| format!("{title} {test}: ignored: {reason}"));
        self.skipped.extend(ignored);
    }

    /// Adds what was not run, with the reason.
    pub(super) fn skip(&mut self, what: &str) {
        self.skipped.push(what.to_owned());
    }

    pub(super) fn failed(&self) -> bool {
        !self.failed.is_empty()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.skipped {
            writeln!(f, "skipped: {line}")?;
        }
        for line in &self.failed {
            writeln!(f, "failed: {line}")?;
        }
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = "
running 4 tests
test a ... ok
test b ... ok
test c ... FAILED
test d ... ignored, started by another test

successes:

---- a stdout ----
noise
skipped: only root can start libvirtd


successes:
    a
    b

failures:

---- c stdout ----
skipped: what a failed test says counts as a failure
thread 'c' panicked

failures:
    c

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    fn finished(output: &str, succeeded: bool) -> Finished {
        Finished {
            title: "suite".to_owned(),
            output: output.to_owned(),
            succeeded,
            took: Duration::from_secs(1),
            processor: Some(Duration::from_secs(2)),
            live: false,
            hidden: PassedOutput::new(&[]),
        }
    }

    #[test]
    fn a_test_that_prints_skipped_is_counted_as_skipped_and_not_as_passed() {
        let mut totals = Totals::default();
        totals.add(&finished(MIXED, false));
        assert_eq!(
            totals.to_string(),
            "skipped: suite a: only root can start libvirtd
skipped: suite d: ignored: started by another test
failed: suite c
1 passed, 1 failed, 2 skipped"
        );
        assert!(totals.failed());
    }

    #[test]
    fn a_test_that_prints_skipped_twice_is_one_skipped_test() {
        let captured = "test a ... ok\ntest b ... ok\n\nsuccesses:\n\n---- a stdout ----\nskipped: no host\nok\nskipped: no guest\n\ntest result: ok. 2 passed; 0 failed; 0 ignored\n";
        let live = "test a ... skipped: no host\nskipped: no guest\nok\ntest b ... ok\n\ntest result: ok. 2 passed; 0 failed; 0 ignored\n";
        for output in [captured, live] {
            let mut totals = Totals::default();
            totals.add(&finished(output, true));
            assert_eq!(
                totals.to_string(),
                "skipped: suite a: no host; no guest\n1 passed, 0 failed, 1 skipped"
            );
        }
    }

    #[test]
    fn a_skipped_test_is_counted_with_nocapture_too() {
        let live = "test a ... skipped: no guest\nok\nskipped: no host\ntest result: ok. 2 passed; 0 failed; 0 ignored\n";
        let counts = Counts::read(live);
        let skipped = [("a", "no guest"), ("", "no host")];
        let skipped = skipped.map(|(test, reason)| (test.to_owned(), reason.to_owned()));
        assert_eq!((counts.passed, counts.skipped), (2, skipped.to_vec()));
    }

    #[test]
    fn a_suite_that_crashes_is_a_failure() {
        let mut totals = Totals::default();
        totals.add(&finished("running 2 tests\nSIGSEGV\n", false));
        assert!(totals.failed());
        let shown =
            "failed: suite ended without a report of its tests\n0 passed, 1 failed, 0 skipped";
        assert_eq!(totals.to_string(), shown);
    }

    #[test]
    fn the_output_of_tests_that_passed_is_shown_only_on_request() {
        let shown = finished(MIXED, false).shown();
        assert!(
            shown.starts_with("suite (1.0 s, 2.0 s of a processor)\n"),
            "{shown}"
        );
        assert!(
            !shown.contains("noise") && shown.contains("thread 'c' panicked"),
            "{shown}"
        );
        let asked_for = Finished {
            hidden: PassedOutput::new(&[SHOW_OUTPUT.to_owned()]),
            ..finished(MIXED, false)
        };
        assert!(asked_for.shown().contains("noise"));
        let none = "\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed\n";
        assert_eq!(finished(none, true).shown(), "");
    }
}
