//! The report of a benchmark run: shown as a table, saved in a file, compared with an earlier run.

use std::{fmt, fs, path::Path};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{load::Figures, setup::Size};

/// The measurements of one run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    rows: Vec<Row>,
    /// From the start of the process to its readiness.
    pub(crate) ready_ms: f64,
    /// Memory before the first request, with the small catalog, in MiB.
    pub(crate) idle_mib: u64,
    /// Memory with the large catalog, in MiB.
    pub(crate) idle_large_mib: u64,
    /// Peak memory of the process, in MiB.
    pub(crate) peak_mib: u64,
}

/// Figures of a request, a number of clients and a catalog.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Row {
    machines: usize,
    templates: usize,
    request: String,
    clients: usize,
    p50_us: f64,
    p99_us: f64,
    rate: f64,
    of_echo: f64,
    processor_us: f64,
}

impl Row {
    /// Identifies the same measurement in different runs.
    fn key(&self) -> (usize, usize, &str, usize) {
        let Self {
            machines,
            templates,
            request,
            clients,
            ..
        } = self;
        (*machines, *templates, request, *clients)
    }
}

impl Report {
    /// Adds the figures measured with a catalog of this size.
    pub(crate) fn add(&mut self, size: Size, figures: &[Figures]) {
        self.rows.extend(figures.iter().map(|figures| Row {
            machines: size.machines,
            templates: size.templates,
            request: figures.request.to_owned(),
            clients: figures.clients,
            p50_us: figures.median.as_secs_f64() * 1e6,
            p99_us: figures.p99.as_secs_f64() * 1e6,
            rate: figures.rate,
            of_echo: figures.share,
            processor_us: figures.work.as_secs_f64() * 1e6,
        }));
    }

    pub(crate) fn read(file: &Path) -> Result<Self> {
        let context = || format!("reading {}", file.display());
        let text = fs::read_to_string(file).with_context(context)?;
        serde_json::from_str(&text).with_context(context)
    }

    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(file, text).with_context(|| format!("writing {}", file.display()))
    }

    /// Compares this run with an earlier one: a table of ratios for the rows that both have.
    pub(crate) fn against<'a>(&'a self, before: &'a Self) -> impl fmt::Display {
        Against { now: self, before }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        heading(f)?;
        for row in &self.rows {
            start(f, row)?;
            writeln!(
                f,
                "{:>7.3} ms {:>7.3} ms {:>8.0}/s {:>8.2} {:>7.0} µs",
                row.p50_us / 1e3,
                row.p99_us / 1e3,
                row.rate,
                row.of_echo,
                row.processor_us
            )?;
        }
        write!(
            f,
            "\nready {:.0} ms after the start; memory {} MiB idle, {} MiB with the large catalog, {} MiB at most",
            self.ready_ms, self.idle_mib, self.idle_large_mib, self.peak_mib
        )
    }
}

struct Against<'a> {
    now: &'a Report,
    before: &'a Report,
}

impl fmt::Display for Against<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        heading(f)?;
        for row in &self.now.rows {
            let Some(before) = self.before.rows.iter().find(|it| it.key() == row.key()) else {
                continue;
            };
            start(f, row)?;
            writeln!(
                f,
                "{:>10.2} {:>10.2} {:>10.2} {:>8.2} {:>10.2}",
                row.p50_us / before.p50_us,
                row.p99_us / before.p99_us,
                row.rate / before.rate,
                row.of_echo / before.of_echo,
                row.processor_us / before.processor_us
            )?;
        }
        let ratio = |now: u64, before: u64| format!("{now}/{before}");
        write!(
            f,
            "\nready {:.0}/{:.0} ms; memory {} MiB idle, {} MiB with the large catalog, {} MiB at most",
            self.now.ready_ms,
            self.before.ready_ms,
            ratio(self.now.idle_mib, self.before.idle_mib),
            ratio(self.now.idle_large_mib, self.before.idle_large_mib),
            ratio(self.now.peak_mib, self.before.peak_mib)
        )
    }
}

fn heading(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "{:<9} {:>8} {:>9} {:>7} {:>10} {:>10} {:>10} {:>8} {:>10}",
        "", "machines", "templates", "clients", "p50", "p99", "answers", "of echo", "processor"
    )
}

fn start(f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
    write!(
        f,
        "{:<9} {:>8} {:>9} {:>7} ",
        row.request, row.machines, row.templates, row.clients
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn report(factor: u32) -> Report {
        let figures = |request, work: u16| Figures {
            request,
            clients: 8,
            median: Duration::from_micros(200) * factor,
            p99: Duration::from_micros(500) * factor,
            rate: 10_000.0 / f64::from(work),
            share: 10.0 / f64::from(work),
            work: Duration::from_micros(work.into()),
        };
        let mut report = Report {
            ready_ms: 200.0,
            idle_mib: 10,
            idle_large_mib: 20,
            peak_mib: 30,
            ..Report::default()
        };
        let size = Size {
            machines: 10,
            templates: 5,
        };
        report.add(size, &[figures("echo", 10), figures("mutate", 40)]);
        report
    }

    #[test]
    fn a_report_is_shown_as_a_table() {
        let shown = report(1).to_string();
        let expected = "          machines templates clients        p50        p99    answers  of echo  processor\n\
                        echo            10         5       8   0.200 ms   0.500 ms     1000/s     1.00      10 µs\n\
                        mutate          10         5       8   0.200 ms   0.500 ms      250/s     0.25      40 µs\n\
                        \n\
                        ready 200 ms after the start; memory 10 MiB idle, 20 MiB with the large catalog, 30 MiB at most";
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_saved_run_is_compared_row_by_row() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.json");
        report(2).write(&file).unwrap();
        let mut before = Report::read(&file).unwrap();
        assert_eq!(before.rows, report(2).rows);
        before.rows.remove(0);
        let now = report(1);
        let shown = now.against(&before).to_string();
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.len(), 4, "{shown}");
        assert!(lines[1].starts_with("mutate          10         5       8       0.50       0.50       1.00     1.00       1.00"), "{shown}");
        assert!(
            lines[3].starts_with("ready 200/200 ms; memory 10/10 MiB idle"),
            "{shown}"
        );
        assert!(Report::read(&folder.path().join("none")).is_err());
    }
}
