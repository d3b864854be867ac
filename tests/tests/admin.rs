//! The administration endpoints of both programs: version, log level, and probes beside other clients.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use std::net::SocketAddr;
use std::time::Duration;

use lab::{
    ProgramUnderTest,
    http::{self, Connection, Response},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};

use environment::Environment;

async fn put(address: SocketAddr, filter: &str) -> Response {
    let mut connection = Connection::plain(address).await.unwrap();
    let body = filter.to_owned().into();
    let answer = connection.send("PUT", "/loglevel", "text/plain", body);
    answer.await.unwrap()
}

async fn shown(address: SocketAddr) -> String {
    let answer = http::get(address, "/loglevel").await.unwrap();
    assert_eq!(answer.status, 200);
    answer.text()
}

fn has(program: &ProgramUnderTest, level: &str) -> bool {
    program
        .log_lines()
        .iter()
        .any(|line| line["level"] == level)
}

#[tokio::test]
async fn both_programs_report_their_version_and_accept_a_log_level() {
    let mut env = Environment::new().await;
    let addresses = [
        (
            "machine-controller",
            env.controller.health_address().await.unwrap(),
        ),
        (
            "machine-webhook",
            env.webhook.health_address().await.unwrap(),
        ),
    ];
    for (name, address) in addresses {
        let version = http::get(address, "/version")
            .await
            .unwrap()
            .json()
            .unwrap();
        assert_eq!(version["program"], name);
        assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
        assert!(
            version["rustVersion"]
                .as_str()
                .unwrap()
                .starts_with("rustc 1.")
        );
        // The commit is known only if the build sets GIT_COMMIT.
        let commit = option_env!("GIT_COMMIT").filter(|commit| !commit.is_empty());
        assert_eq!(version["gitCommit"], json!(commit));

        assert_eq!(shown(address).await, "info\n");
        for (filter, reported) in [
            (
                "loud",
                "\"loud\" is neither a level (error, warn, info, debug, trace) nor a target with one, \
                 as in info,webhook::server=trace\n",
            ),
            (
                "kube_client=trace",
                "\"kube_client\" is never logged: it prints Secrets and what users wrote\n",
            ),
        ] {
            let refused = put(address, filter).await;
            assert_eq!((refused.status, refused.text().as_str()), (400, reported));
        }
        assert_eq!(put(address, &"x".repeat(2_000)).await.status, 413);
        assert_eq!(shown(address).await, "info\n");
    }

    assert!(!has(&env.controller, "trace") && !has(&env.webhook, "trace"));
    for (_, address) in addresses {
        let answer = put(address, "trace\n").await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "trace\n"));
        assert_eq!(shown(address).await, "trace\n");
    }
    env.barrier("web").await;
    lab::wait::until("both programs to log at level trace", async || {
        let more = [&env.controller, &env.webhook].map(|it| has(it, "trace"));
        Ok(if more == [true, true] {
            Ok(())
        } else {
            Err(more)
        })
    })
    .await
    .unwrap();

    for (program, (_, address)) in [&env.controller, &env.webhook].into_iter().zip(addresses) {
        assert_eq!(put(address, "error").await.status, 200);
        // Changes of the log level are logged at every level.
        let lines = program.log_lines();
        let reported: Vec<&Value> = lines
            .iter()
            .filter(|line| line["target"] == "log_level")
            .collect();
        assert_eq!(reported.len(), 2, "{reported:?}");
        for (line, (before, now)) in reported
            .into_iter()
            .zip([("info", "trace"), ("trace", "error")])
        {
            assert_eq!(line["message"], "changed the log level");
            assert_eq!(
                (&line["before"], &line["now"]),
                (&json!(before), &json!(now))
            );
        }
    }
}

/// Clients of a port: 32 that pipeline requests and never read, and 1,000 that send nothing.
async fn crowd(address: SocketAddr) -> Vec<TcpStream> {
    const STUCK: usize = 32;
    const IDLE: usize = 1_000;
    let requests =
        "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
            .repeat(500);
    let mut clients = Vec::new();
    for _ in 0..STUCK {
        let mut stream = http::tcp(address).await.unwrap();
        // The program may close the connection while it is written to.
        let _ = stream.write_all(requests.as_bytes()).await;
        clients.push(stream);
    }
    for _ in 0..IDLE {
        clients.push(http::tcp(address).await.unwrap());
    }
    clients
}

#[tokio::test]
async fn probes_are_answered_beside_any_number_of_other_clients() {
    // The client sides of these connections are file descriptors of this process.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let mut env = Environment::new().await;
    let (controller, webhook) = (
        env.controller.health_address().await.unwrap(),
        env.webhook.health_address().await.unwrap(),
    );
    let metrics = env.controller.address("metrics").await.unwrap();
    let mut clients = Vec::new();
    for crowded in [metrics, controller, webhook] {
        clients.extend(crowd(crowded).await);
        for (address, path) in [
            (controller, "/healthz"),
            (controller, "/readyz"),
            (webhook, "/healthz"),
            (webhook, "/readyz"),
        ] {
            // The other clients occupy their slots for ten seconds: until then a probe has to be answered.
            let probe = timeout(Duration::from_secs(8), http::get(address, path)).await;
            let answer = probe.unwrap().unwrap();
            assert_eq!((answer.status, answer.text().as_str()), (200, "ok\n"));
        }
    }
    for (address, path) in [(metrics, "/metrics"), (webhook, "/metrics")] {
        assert_eq!(http::get(address, path).await.unwrap().status, 200);
    }
}
