//! The verb `demo`, and the answer that the README quotes.

use std::{fs, process::Command};

use lab::paths;

/// The verb checks each of its steps itself.
#[test]
fn the_demo_accepts_refuses_and_boots_machines() {
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .arg("demo")
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    for said in [
        "$ kubectl apply -f manifests/examples\n",
        "machine.vitistack.io/custom-vm condition met\n",
        "The Machine \"faulty-vm\" is invalid: \n",
    ] {
        assert!(stdout.contains(said), "{said}: {stdout}");
    }
    let boots = stdout.contains("marker: hello from the Machine's own cloudInit\n");
    // If no guest can boot on this machine, the verb prints the reason.
    let why_not = "going on without a guest on libvirt";
    let reason = stderr.lines().find(|line| line.contains(why_not));
    assert!(boots == reason.is_none(), "{stdout}{stderr}");
    if let Some(reason) = reason {
        lab::skip(reason);
    }
    assert!(
        stdout.ends_with("\nEvery step had the expected result.\n"),
        "{stdout}"
    );
}

#[test]
fn the_readme_quotes_the_answer_to_the_faulty_example() {
    let read = |file: &str| fs::read_to_string(paths::repository().join(file)).unwrap();
    let answer = read("manifests/examples/faulty/machine.expected.txt");
    assert!(read("README.md").contains(&answer));
}
