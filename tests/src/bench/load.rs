//! Clients that send one request repeatedly and check every response.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use lab::{http::Connection, usage::processor_time};
use tokio::task::JoinSet;

/// A request, its server, and the response that is expected.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) name: &'static str,
    /// The id of the server's process.
    pub(crate) process: u32,
    pub(crate) address: SocketAddr,
    pub(crate) ca: Vec<u8>,
    pub(crate) path: &'static str,
    pub(crate) body: Bytes,
    pub(crate) answer: Bytes,
}

impl Request {
    pub(crate) async fn connect(&self) -> Result<Connection> {
        Connection::tls(self.address, &self.ca).await
    }

    async fn send(&self, connection: &mut Connection) -> Result<()> {
        let answer = connection.post(self.path, self.body.clone()).await?;
        ensure!(
            answer.status == 200 && answer.body == self.answer,
            "an unexpected response to {}: HTTP {} {}",
            self.name,
            answer.status,
            answer.text()
        );
        Ok(())
    }

    /// Runs this number of clients, each with a connection of its own and one request at a time.
    async fn load(&self, clients: usize, span: Duration) -> Result<Load> {
        let mut connections = Vec::with_capacity(clients);
        for _ in 0..clients {
            connections.push(self.connect().await?);
        }
        let worked = processor_time(self.process)?;
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for mut connection in connections {
            let request = self.clone();
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                while start.elapsed() < span {
                    let begin = Instant::now();
                    request.send(&mut connection).await?;
                    latencies.push(begin.elapsed());
                }
                anyhow::Ok(latencies)
            });
        }
        let mut latencies = Vec::new();
        while let Some(task) = tasks.join_next().await {
            latencies.append(&mut task??);
        }
        Ok(Load {
            latencies,
            took: start.elapsed(),
            work: processor_time(self.process)?.saturating_sub(worked),
        })
    }
}

/// Measurements of some clients.
#[derive(Debug, Default, Clone)]
struct Load {
    latencies: Vec<Duration>,
    took: Duration,
    /// Processor time of the server's process.
    work: Duration,
}

impl Load {
    /// Responses per second.
    fn rate(&self) -> f64 {
        let answers = u32::try_from(self.latencies.len()).unwrap_or(u32::MAX);
        f64::from(answers) / self.took.as_secs_f64()
    }

    fn add(&mut self, mut other: Self) {
        self.latencies.append(&mut other.latencies);
        self.took += other.took;
        self.work += other.work;
    }
}

/// Number, duration and concurrency of the measurements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadParameters {
    /// How often each request is measured.
    pub(crate) rounds: u32,
    /// The duration of one measurement.
    pub(crate) span: Duration,
    /// The numbers of concurrent clients.
    pub(crate) clients: [usize; 3],
}

/// The figures of one request with one number of clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) request: &'static str,
    pub(crate) clients: usize,
    /// The median latency.
    pub(crate) median: Duration,
    /// The latency of the 99th percentile.
    pub(crate) p99: Duration,
    /// Responses per second.
    pub(crate) rate: f64,
    /// The rate relative to that of the first request: the median of all rounds, so that other work of the machine
    /// does not distort it.
    pub(crate) share: f64,
    /// Processor time of the server for each response.
    pub(crate) work: Duration,
}

/// Measures all requests alternately, so that other work of the machine affects all of them alike. The rates of
/// the others are compared with that of the first one.
pub(crate) async fn measure(requests: &[Request], effort: LoadParameters) -> Result<Vec<Figures>> {
    for request in requests {
        // Warm up: the first responses of a process are slower than all later ones.
        request.load(1, effort.span / 4).await?;
    }
    let cells = || {
        let clients = effort.clients.into_iter();
        clients.flat_map(|clients| requests.iter().map(move |request| (request, clients)))
    };
    let mut measured = vec![Load::default(); cells().count()];
    let mut shares = vec![Vec::new(); measured.len()];
    for _ in 0..effort.rounds {
        let mut measure = f64::NAN;
        for (cell, (request, clients)) in cells().enumerate() {
            let load = request.load(clients, effort.span).await?;
            if cell % requests.len() == 0 {
                measure = load.rate();
            }
            shares[cell].push(load.rate() / measure);
            measured[cell].add(load);
        }
    }
    let figures = cells().zip(measured).zip(shares);
    let figures = figures.map(|(((request, clients), mut load), shares)| {
        load.latencies.sort_unstable();
        let answers = u32::try_from(load.latencies.len()).unwrap_or(u32::MAX);
        Figures {
            request: request.name,
            clients,
            median: quantile(&load.latencies, 500),
            p99: quantile(&load.latencies, 990),
            rate: load.rate(),
            share: median(shares),
            work: load.work.checked_div(answers).unwrap_or_default(),
        }
    });
    Ok(figures.collect())
}

/// The median; of an even number of values the higher one of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The latency that `permille` of 1,000 responses did not exceed.
fn quantile(sorted: &[Duration], permille: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get(last * permille / 1_000)
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_ignores_one_outlier() {
        assert!((median(vec![0.5, 0.01, 0.6, 0.55]) - 0.55).abs() < f64::EPSILON);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn quantiles_are_measured_values() {
        let sorted: Vec<_> = (1..=1_000).map(Duration::from_micros).collect();
        assert_eq!(quantile(&sorted, 500), Duration::from_micros(500));
        assert_eq!(quantile(&sorted, 990), Duration::from_micros(990));
        assert_eq!(quantile(&sorted, 1_000), Duration::from_millis(1));
        assert_eq!(quantile(&sorted[..1], 990), Duration::from_micros(1));
        assert_eq!(quantile(&[], 500), Duration::ZERO);
    }
}
