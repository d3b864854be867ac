//! Clients that ask one thing again and again, and look at every answer.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use lab::{http::Connection, usage::processor_time};
use tokio::task::JoinSet;

/// What is asked, of whom, and the one right answer.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) name: &'static str,
    /// Who answers.
    pub(crate) process: u32,
    pub(crate) address: SocketAddr,
    pub(crate) ca: Vec<u8>,
    pub(crate) path: &'static str,
    pub(crate) body: Bytes,
    pub(crate) answer: Bytes,
}

impl Question {
    pub(crate) async fn connect(&self) -> Result<Connection> {
        Connection::tls(self.address, &self.ca).await
    }

    async fn ask(&self, connection: &mut Connection) -> Result<()> {
        let answer = connection.post(self.path, self.body.clone()).await?;
        ensure!(
            answer.status == 200 && answer.body == self.answer,
            "a wrong answer to {}: HTTP {} {}",
            self.name,
            answer.status,
            answer.text()
        );
        Ok(())
    }

    /// So many clients at once, a connection each; everyone waits for its answer before it asks
    /// again.
    async fn load(&self, clients: usize, span: Duration) -> Result<Load> {
        let mut connections = Vec::with_capacity(clients);
        for _ in 0..clients {
            connections.push(self.connect().await?);
        }
        let worked = processor_time(self.process)?;
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for mut connection in connections {
            let question = self.clone();
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                while start.elapsed() < span {
                    let asked = Instant::now();
                    question.ask(&mut connection).await?;
                    latencies.push(asked.elapsed());
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

/// What became of some clients.
#[derive(Debug, Default, Clone)]
struct Load {
    latencies: Vec<Duration>,
    took: Duration,
    /// Of the processors, for the process that answered.
    work: Duration,
}

impl Load {
    /// Answers per second.
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

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Turns of every question.
    pub(crate) rounds: u32,
    /// Of each measurement in a turn.
    pub(crate) span: Duration,
    /// At once: each of these.
    pub(crate) clients: [usize; 3],
}

/// What was measured of one question with so many clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) question: &'static str,
    pub(crate) clients: usize,
    /// Half of the answers came within this.
    pub(crate) half: Duration,
    /// All but one in a hundred did.
    pub(crate) nearly_all: Duration,
    /// Answers per second.
    pub(crate) rate: f64,
    /// The share of the first question's rate: the median of all turns, so that a moment in which
    /// the machine had something else to do decides nothing.
    pub(crate) share: f64,
    /// What each of them cost the processors of the server's side.
    pub(crate) work: Duration,
}

/// Measures all questions, turn by turn, so that whatever else the machine does meets all of them.
/// The first one is the measure of the others.
pub(crate) async fn measure(questions: &[Question], effort: Effort) -> Result<Vec<Figures>> {
    for question in questions {
        // The first answers of a process are slower than any later ones.
        question.load(1, effort.span / 4).await?;
    }
    let cells = || {
        let clients = effort.clients.into_iter();
        clients.flat_map(|clients| questions.iter().map(move |question| (question, clients)))
    };
    let mut measured = vec![Load::default(); cells().count()];
    let mut shares = vec![Vec::new(); measured.len()];
    for _ in 0..effort.rounds {
        let mut measure = f64::NAN;
        for (cell, (question, clients)) in cells().enumerate() {
            let load = question.load(clients, effort.span).await?;
            if cell % questions.len() == 0 {
                measure = load.rate();
            }
            shares[cell].push(load.rate() / measure);
            measured[cell].add(load);
        }
    }
    let figures = cells().zip(measured).zip(shares);
    let figures = figures.map(|(((question, clients), mut load), shares)| {
        load.latencies.sort_unstable();
        let answers = u32::try_from(load.latencies.len()).unwrap_or(u32::MAX);
        Figures {
            question: question.name,
            clients,
            half: quantile(&load.latencies, 500),
            nearly_all: quantile(&load.latencies, 990),
            rate: load.rate(),
            share: median(shares),
            work: load.work.checked_div(answers).unwrap_or_default(),
        }
    });
    Ok(figures.collect())
}

/// The value in the middle; of an even number the higher of both.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The latency that `permille` of a thousand answers did not exceed.
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
    fn a_median_is_not_moved_by_one_bad_turn() {
        assert!((median(vec![0.5, 0.01, 0.6, 0.55]) - 0.55).abs() < f64::EPSILON);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let sorted: Vec<_> = (1..=1_000).map(Duration::from_micros).collect();
        assert_eq!(quantile(&sorted, 500), Duration::from_micros(500));
        assert_eq!(quantile(&sorted, 990), Duration::from_micros(990));
        assert_eq!(quantile(&sorted, 1_000), Duration::from_millis(1));
        assert_eq!(quantile(&sorted[..1], 990), Duration::from_micros(1));
        assert_eq!(quantile(&[], 500), Duration::ZERO);
    }
}
