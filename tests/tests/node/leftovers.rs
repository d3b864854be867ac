//! What a node leaves on this machine: nothing if the program that started it is interrupted, and nothing that the next one
//! does not remove if it is killed.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use lab::{
    node::{self, Output},
    wait,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::on_a_node;

/// The test that [`a_killed_lab_leaves_nothing_that_the_next_one_does_not_remove`] starts and kills.
#[test]
#[ignore = "started by another test, which kills it"]
fn holds_a_node() {
    on_a_node("leftovers::holds_a_node", &[], async |_| {
        std::future::pending::<()>().await;
    });
}

/// The test with which [`a_killed_lab_leaves_nothing_that_the_next_one_does_not_remove`] starts the next lab.
#[tokio::test]
#[ignore = "started by another test"]
async fn ends_at_once() {
    let enclosed = node::prepare(&["--list"], Output::Logged).await;
    let ended = enclosed.unwrap().wait(STARTED).await;
    assert!(ended.unwrap().success());
}

/// Limit of a lab that starts no program.
const STARTED: Duration = Duration::from_mins(5);

/// A test of this file, with temporary files in this folder.
fn test(name: &str, temporary: &Path) -> Command {
    let name = format!("leftovers::{name}");
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([&name, "--exact", "--ignored", "--nocapture"])
        .env("TMPDIR", temporary)
        .stdin(Stdio::null());
    command
}

#[tokio::test]
async fn a_killed_lab_leaves_nothing_that_the_next_one_does_not_remove() {
    if let Err(missing) = node::requirements().await.unwrap() {
        lab::skip(missing);
        return;
    }
    let (temporary, before) = (tempfile::tempdir().unwrap(), traces());
    let mut lab = test("holds_a_node", temporary.path()).spawn().unwrap();
    wait::until("containers of the node", async || {
        assert!(lab.try_wait()?.is_none(), "the lab has ended");
        let processes = processes(&cgroups(temporary.path()));
        Ok((processes > 2).then_some(()).ok_or(processes))
    })
    .await
    .unwrap();
    lab.kill().unwrap();
    lab.wait().unwrap();

    let left = cgroups(temporary.path());
    assert!(!left.is_empty());
    wait::until("every process to end", async || {
        let processes = processes(&left);
        Ok((processes == 0).then_some(()).ok_or(processes))
    })
    .await
    .unwrap();
    let added: Vec<_> = traces().difference(&before).cloned().collect();
    assert_eq!(added, [""; 0]);
    let folders = fs::read_dir(temporary.path()).unwrap().flatten();
    let left: Vec<_> = folders.map(|it| it.path()).chain(left).collect();
    // Another lab may remove cgroups at the same time.
    let mut reported = String::new();
    wait::until("the next lab to remove folders and cgroups", async || {
        let next = test("ends_at_once", temporary.path()).output()?;
        reported.push_str(&String::from_utf8_lossy(&next.stderr));
        assert!(next.status.success(), "{reported}");
        let still: Vec<_> = left.iter().filter(|path| path.exists()).collect();
        Ok(if still.is_empty() {
            Ok(())
        } else {
            Err(format!("{still:?}"))
        })
    })
    .await
    .unwrap();
    let text = "which a lab that was killed had left";
    assert!(reported.contains(text), "{reported}");
}

/// `tests/lab up --node` is ended as users and their service managers end it.
#[tokio::test]
async fn a_lab_that_is_interrupted_leaves_nothing() {
    if let Err(missing) = node::requirements().await.unwrap() {
        lab::skip(missing);
        return;
    }
    for signal in [Signal::INT, Signal::TERM] {
        let (temporary, before) = (tempfile::tempdir().unwrap(), traces());
        let output = tempfile::NamedTempFile::new().unwrap();
        let said = || fs::read_to_string(output.path()).unwrap();
        let mut lab = Command::new(env!("CARGO_BIN_EXE_lab"))
            .args(["up", "--node"])
            .env("TMPDIR", temporary.path())
            .stdin(Stdio::null())
            .stdout(output.reopen().unwrap())
            .stderr(output.reopen().unwrap())
            .spawn()
            .unwrap();
        wait::until("the lab to run", async || {
            assert!(lab.try_wait()?.is_none(), "{}", said());
            let is_running = said().contains("Everything is running.");
            Ok(is_running.then_some(()).ok_or_else(said))
        })
        .await
        .unwrap();
        for (command, fits) in [
            ("kubectl get pods", "machine-webhook-"),
            ("kubectl apply", "[TemplateNotFound]"),
        ] {
            let answer = as_said(&said(), command);
            assert!(answer.contains(fits), "{command}: {answer}");
        }
        let running = cgroups(temporary.path());
        assert!(processes(&running) > 2, "{running:?}");
        kill_process(Pid::from_child(&lab), signal).unwrap();
        let status = lab.wait().unwrap();
        assert!(status.success(), "{}", said());

        let left: Vec<_> = running.iter().filter(|path| path.exists()).collect();
        assert!(left.is_empty(), "{left:?}");
        let files: Vec<_> = fs::read_dir(temporary.path()).unwrap().flatten().collect();
        assert!(files.is_empty(), "{files:?}");
        let added: Vec<_> = traces().difference(&before).cloned().collect();
        assert_eq!(added, [""; 0]);
    }
}

/// Runs the command of the text that begins with `command`, in the shell that its `sudo` line opens, and returns the
/// output.
fn as_said(text: &str, command: &str) -> String {
    let lines = || text.lines().map(str::trim);
    let enter = lines().find_map(|line| line.strip_prefix("sudo "));
    let command = lines().find(|line| line.starts_with(command));
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        &format!(
            "{} -c '{} 2>&1'",
            enter.unwrap(),
            command.unwrap().split(" # ").next().unwrap()
        ),
    ]);
    String::from_utf8(shell.output().unwrap().stdout).unwrap()
}

/// Parts of the names of what a node makes: the bridge, tables of kube-proxy, folders of the kubelet and of the lab.
const OF_A_NODE: [&str; 4] = [
    ": lab:",
    "kube-proxy",
    "kubelet-node",
    "kubevirt-operator-lab",
];

/// What a node would leave: parameters of the kernel, links, network namespaces, tables of nftables, mounts, folders with
/// fixed paths. Of other containers of this machine only what has such a name.
fn traces() -> BTreeSet<String> {
    let mut traces = BTreeSet::new();
    for (program, arguments) in [
        ("ip", &["-oneline", "link"][..]),
        ("ip", &["netns"]),
        ("nft", &["list", "tables"]),
        ("cat", &["/proc/self/mounts"]),
    ] {
        let output = Command::new(program).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let of_a_node = |line: &&str| OF_A_NODE.iter().any(|part| line.contains(part));
        traces.extend(text.lines().filter(of_a_node).map(str::to_owned));
    }
    for parameter in [
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
    ] {
        let value = fs::read_to_string(Path::new("/proc/sys").join(parameter)).unwrap();
        traces.insert(format!("{parameter} {value}"));
    }
    for folder in [
        "/var/lib/kubelet-node",
        "/var/lib/cni",
        "/run/cni",
        "/run/containerd-node",
        "/var/log/pods-node",
        "/opt/containerd",
        "/usr/libexec/kubernetes",
    ] {
        if Path::new(folder).exists() {
            traces.insert(folder.to_owned());
        }
    }
    traces
}

/// The cgroups of the lab whose folder is in this one.
fn cgroups(temporary: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in fs::read_dir(temporary).unwrap().flatten() {
        let find = ["/sys/fs/cgroup", "-maxdepth", "2", "-name"];
        let find = Command::new("find")
            .args(find)
            .arg(folder.file_name())
            .output();
        let text = String::from_utf8(find.unwrap().stdout).unwrap();
        found.extend(text.lines().map(PathBuf::from));
    }
    found
}

/// The number of processes in these cgroups and those in them.
fn processes(cgroups: &[PathBuf]) -> usize {
    let mut ids = BTreeSet::new();
    for cgroup in cgroups {
        let find = ["-name", "cgroup.procs", "-exec", "cat", "{}", "+"];
        let found = Command::new("find").arg(cgroup).args(find).output();
        let text = String::from_utf8(found.unwrap().stdout).unwrap();
        ids.extend(text.lines().map(str::to_owned));
    }
    ids.len()
}
