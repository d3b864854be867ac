//! What the log tells of a panic: where, and not a word of what it was about.

use std::env;
use std::process::Command;

use runtime::logging::{LogFormat, LogLevel, init};
use serde_json::Value;

/// Set in the process that panics.
const CHILD: &str = "PANICS";
const SECRET: &str = "canary-7f3a";

#[test]
fn a_panic_is_a_line_with_its_place_and_without_its_words() {
    if env::var_os(CHILD).is_some() {
        init(LogFormat::Json, LogLevel::Trace);
        std::panic::catch_unwind(|| panic!("{SECRET}")).unwrap_err();
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .arg("--nocapture")
        .env(CHILD, "1")
        .output()
        .unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    assert!(!log.contains(SECRET), "{log}");
    let line: Value = serde_json::from_str(log.trim()).unwrap();
    assert_eq!(
        (&line["level"], &line["message"]),
        (&"error".into(), &"panicked".into())
    );
    assert!(
        line["place"]
            .as_str()
            .unwrap()
            .starts_with("common/runtime/tests/panics.rs:"),
        "{line}"
    );
}
