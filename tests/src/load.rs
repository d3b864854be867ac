//! Load on the programs by clients that use as many connections, as much memory and as much time as they can get, and
//! what other clients notice of it: how long a probe and a review take meanwhile, and how much memory the program
//! needs.
//!
//! Times are figures, no verdicts: on a busy machine every answer is late. What is checked is that each answer comes.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures::future::join_all;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{
    Binary, Lab, ProgramUnderTest,
    http::{self, Connection},
    install, paths, reviews, usage,
};

/// The webhook's limit of a body.
const BODY_BYTES: usize = 7 * 1024 * 1024;

/// Time that a stuck peer gets for its requests: the program stops reading them.
const STUCK_WRITE: Duration = Duration::from_secs(1);

/// Fewest probes that are answered under each load.
const PROBES_MIN: usize = 10;

/// Pause between two probes: probes of all kubelets and load balancers together come more seldom.
const PROBE_PERIOD: Duration = Duration::from_millis(20);

/// What the other clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Nothing.
    Idle,
    /// So many clients at the port for probes send requests and read no answer.
    StuckProbes(usize),
    /// So many clients at the port for metrics are connected and send nothing.
    IdleMetrics(usize),
    /// So many reviews of the largest size at the same time.
    LargeBodies(usize),
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => f.write_str("none"),
            Self::StuckProbes(clients) => write!(f, "{clients} stuck clients, probes"),
            Self::IdleMetrics(clients) => write!(f, "{clients} idle clients, metrics"),
            Self::LargeBodies(bodies) => write!(f, "{bodies} bodies of 7 MiB"),
        }
    }
}

/// Times of one kind of answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// The number of answers.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time that so many per mille of the answers did not exceed; zero without answers.
    pub fn quantile(&self, per_mille: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * per_mille).div_ceil(1000).max(1);
        sorted.get(rank - 1).copied().unwrap_or_default()
    }
}

/// What other clients noticed.
#[derive(Debug, Clone)]
pub struct ClientMeasurements {
    pub binary: Binary,
    pub load: String,
    /// Answers to probes of health and readiness.
    pub probes: Latencies,
    /// Answers to small reviews; none of the controller.
    pub reviews: Latencies,
    /// Most memory since the start of the program, in MiB.
    pub peak_mib: u64,
    /// Limit of the program's container in `manifests/install`, in MiB.
    pub limit_mib: u64,
}

/// Probes a program, and sends it reviews if it is the webhook, while `others` are at work and for at least this time and
/// [`PROBES_MIN`] probes.
pub async fn notice(
    lab: &Lab,
    program: &mut ProgramUnderTest,
    load: &str,
    span: Duration,
    others: impl Future<Output = Result<()>>,
) -> Result<ClientMeasurements> {
    let (binary, health) = (program.binary(), program.health_address().await?);
    let mut connection = match binary {
        Binary::Webhook => Some(lab.connect_webhook().await?),
        Binary::Controller => None,
    };
    let (mut probes, mut reviews) = (Latencies::default(), Latencies::default());
    let is_over = AtomicBool::new(false);
    let work = async {
        let whole_span = async {
            sleep(span).await;
            Ok(())
        };
        tokio::try_join!(others, whole_span)?;
        is_over.store(true, Ordering::Relaxed);
        anyhow::Ok(())
    };
    let asking = async {
        while !is_over.load(Ordering::Relaxed) || probes.count() < PROBES_MIN {
            ask(health, connection.as_mut(), &mut probes, &mut reviews).await?;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(work, asking)?;
    Ok(ClientMeasurements {
        binary,
        load: load.to_owned(),
        probes,
        reviews,
        peak_mib: usage::memory(program.process().id())?.peak,
        limit_mib: memory_limit(binary)?,
    })
}

/// Sends a probe of each kind, and a small review on a connection. Fails with a wrong answer.
async fn ask(
    health: SocketAddr,
    connection: Option<&mut Connection>,
    probes: &mut Latencies,
    reviews: &mut Latencies,
) -> Result<()> {
    for path in ["/healthz", "/readyz"] {
        let start = Instant::now();
        let status = http::get(health, path).await?.status;
        ensure!(status == 200, "{path} answered {status}");
        probes.0.push(start.elapsed());
    }
    if let Some(connection) = connection {
        reviews.0.push(review(connection).await?);
    }
    sleep(PROBE_PERIOD).await;
    Ok(())
}

/// As [`notice`], with a load of this module.
pub async fn under(
    lab: &Lab,
    program: &mut ProgramUnderTest,
    load: Load,
    span: Duration,
) -> Result<ClientMeasurements> {
    let probes = program.health_address().await?;
    let metrics = program.metrics_address().await?;
    let mut peers = Vec::new();
    match load {
        Load::StuckProbes(clients) => {
            let stuck = (0..clients).map(|_| stuck_peer(probes));
            peers = join_all(stuck).await;
        }
        Load::IdleMetrics(clients) => {
            allow_many_connections()?;
            for _ in 0..clients {
                peers.push(http::tcp(metrics).await);
            }
        }
        Load::Idle | Load::LargeBodies(_) => {}
    }
    let peers = peers.into_iter().collect::<Result<Vec<_>>>()?;
    let others = async {
        if let Load::LargeBodies(bodies) = load {
            let (address, ca) = (lab.webhook_address(), lab.ca_bundle().await?);
            let name = address.ip().to_string();
            let connect = async |client: u8| {
                let source = Ipv4Addr::new(127, 0, 1, client).into();
                Connection::tls_from(source, address, &ca, &name).await
            };
            large_bodies(connect, bodies).await?;
        }
        Ok(())
    };
    let noticed = notice(lab, program, &load.to_string(), span, others).await?;
    drop(peers);
    Ok(noticed)
}

/// A client that sends requests until the program reads no more, and reads no answer.
pub async fn stuck_peer(address: SocketAddr) -> Result<TcpStream> {
    let mut stream = http::tcp(address).await?;
    let requests = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100_000);
    // Either is expected: the program reads no further, or has ended the connection.
    let _ = timeout(STUCK_WRITE, stream.write_all(requests.as_bytes())).await;
    Ok(stream)
}

/// Allows this process as many connections as the system permits: their client sides are its file descriptors.
fn allow_many_connections() -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current, maximum })?)
}

/// Bodies of one address: the webhook reads no more of them at a time.
const BODIES_OF_ONE: usize = 3;

/// The webhook's answer to a body that took longer than 5 s, as on a machine that is busy with many large ones.
pub const LATE_BODY: &str = "the body did not arrive in time\n";

/// Sends reviews of the largest size at the same time, [`BODIES_OF_ONE`] of each client. Some are answered, the others are
/// refused because there are too many, or arrive too late. `connect`: connects from the address of the client of this number, from 1.
pub async fn large_bodies(
    connect: impl AsyncFn(u8) -> Result<Connection>,
    bodies: usize,
) -> Result<()> {
    let mut body = small_review().into_bytes();
    body.resize(BODY_BYTES, b' ');
    let body = Bytes::from(body);
    let answers = (0..bodies).map(async |number| {
        let client = u8::try_from(number / BODIES_OF_ONE + 1)?;
        let mut connection = connect(client).await?;
        let answer = connection.post(REVIEWED, body.clone()).await?;
        let expected = [200, 408, 429, 503, 504];
        ensure!(expected.contains(&answer.status), "HTTP {}", answer.status);
        let is_late = answer.status == 408;
        ensure!(!is_late || answer.text() == LATE_BODY, "{}", answer.text());
        anyhow::Ok(answer.status)
    });
    let answers = join_all(answers).await.into_iter();
    let statuses = answers.collect::<Result<Vec<_>>>()?;
    ensure!(statuses.contains(&200), "none was answered: {statuses:?}");
    Ok(())
}

/// The path of the reviews, with the API server's limit for the answer.
const REVIEWED: &str = "/mutate?timeout=10s";

fn small_review() -> String {
    let machine = reviews::machine("web", &json!({"template": "small"}));
    reviews::creation("705ab4f5-6393-11e8-b7cc-42010a800002", &machine).to_string()
}

/// The time of one review.
async fn review(connection: &mut Connection) -> Result<Duration> {
    let start = Instant::now();
    let answer = connection.post(REVIEWED, small_review()).await?;
    let took = start.elapsed();
    ensure!(
        answer.json()?["response"]["allowed"] == true,
        "a small review was answered with {}",
        answer.text()
    );
    Ok(took)
}

/// The limit of memory of a program's container, in MiB.
fn memory_limit(binary: Binary) -> Result<u64> {
    let file = match binary {
        Binary::Webhook => "webhook.yaml",
        Binary::Controller => "controller.yaml",
    };
    let path = paths::repository().join("manifests/install").join(file);
    let objects = install::parse(&std::fs::read_to_string(path)?)?;
    let containers = |object: &serde_json::Value| {
        let limit = object.pointer("/spec/template/spec/containers/0/resources/limits/memory");
        limit.and_then(|it| it.as_str()?.strip_suffix("Mi")?.parse().ok())
    };
    let limit = objects.iter().find_map(containers);
    limit.with_context(|| format!("{file} has no limit of memory in Mi"))
}

/// The heading of a table of [`ClientMeasurements`].
pub fn heading() -> String {
    format!(
        "{:<18} {:<26} {:>6} {:>8} {:>8} {:>8} {:>8} {:>12}",
        "program", "load", "probes", "slowest", "reviews", "p50", "p99", "memory"
    )
}

impl fmt::Display for ClientMeasurements {
    /// A row of the table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        write!(
            f,
            "{:<18} {:<26} {:>6} {:>5.0} ms",
            self.binary.name(),
            self.load,
            self.probes.count(),
            ms(self.probes.quantile(1000)),
        )?;
        if self.reviews.count() == 0 {
            write!(f, " {:>8} {:>8} {:>8}", "", "", "")?;
        } else {
            let [median, p99] = [500, 990].map(|rank| ms(self.reviews.quantile(rank)));
            write!(
                f,
                " {:>8} {median:>5.1} ms {p99:>5.1} ms",
                self.reviews.count()
            )?;
        }
        write!(f, " {:>4}/{} MiB", self.peak_mib, self.limit_mib)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noticed(reviews: usize) -> ClientMeasurements {
        ClientMeasurements {
            binary: Binary::Webhook,
            load: Load::StuckProbes(32).to_string(),
            probes: Latencies(vec![Duration::from_millis(3), Duration::from_millis(1)]),
            reviews: Latencies(
                (1..=reviews)
                    .map(|it| Duration::from_millis(it as u64))
                    .collect(),
            ),
            peak_mib: 40,
            limit_mib: 512,
        }
    }

    #[test]
    fn a_quantile_is_the_time_that_so_many_answers_did_not_exceed() {
        let latencies = noticed(200).reviews;
        assert_eq!(latencies.quantile(500), Duration::from_millis(100));
        assert_eq!(latencies.quantile(990), Duration::from_millis(198));
        assert_eq!(latencies.quantile(1000), Duration::from_millis(200));
        assert_eq!(Latencies::default().quantile(990), Duration::ZERO);
    }

    #[test]
    fn rows_have_the_columns_of_the_heading() {
        let with = noticed(100).to_string();
        let row = "machine-webhook    32 stuck clients, probes        2     3 ms      100  50.0 ms  99.0 ms   40/512 MiB";
        assert_eq!(with, row);
        assert_eq!(heading().len(), with.len());
        assert_eq!(noticed(0).to_string().len(), with.len());
    }

    #[test]
    fn the_limits_of_memory_are_those_of_the_manifests() {
        for binary in [Binary::Webhook, Binary::Controller] {
            assert!(memory_limit(binary).unwrap() >= 64);
        }
    }
}
