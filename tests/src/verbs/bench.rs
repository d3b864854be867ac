//! The benchmark of the webhook, as a table.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};

use lab::{built_here, usage::memory};

use super::{cargo, command, say, status, step, succeed};
use crate::bench::{
    echo::Echo,
    load::{Effort, Figures, measure},
    scene::Scene,
};

/// Clients of the measurement of throughput: more than API servers keep busy at one webhook.
const CLIENTS: usize = 32;

const FULL: Effort = Effort {
    rounds: 3,
    span: Duration::from_secs(3),
    clients: CLIENTS,
};
/// Templates, and as many networks: few, then many.
const FULL_CATALOGS: [usize; 2] = [10, 1_000];

const QUICK: Effort = Effort {
    rounds: 1,
    span: Duration::from_millis(500),
    clients: CLIENTS,
};
const QUICK_CATALOGS: [usize; 2] = [10, 50];

pub(crate) async fn run(quick: bool) -> Result<ExitCode> {
    if cfg!(debug_assertions) {
        return optimized(quick).await;
    }
    let (effort, [few, many]) = if quick {
        (QUICK, QUICK_CATALOGS)
    } else {
        (FULL, FULL_CATALOGS)
    };
    step("starting a control plane and the webhook");
    let mut scene = Scene::start(few).await?;
    let idle = memory(scene.webhook())?.now;
    let [mutate, validate] = scene.questions().await?;
    let echo = Echo::of(&mutate, &scene.lab.path("echo")).await?;
    let questions = [echo.question(), mutate, validate];
    step(&format!("measuring with {few} templates and networks"));
    let with_few = measure(&questions, effort).await?;
    step(&format!("making {many} templates and networks"));
    scene.grow(many).await?;
    step(&format!("measuring with {many} templates and networks"));
    let with_many = measure(&questions, effort).await?;
    let peak = memory(scene.webhook())?.peak;

    say(format!(
        "{:<9} {:>9} {:>10} {:>10} {:>12} {:>8} {:>11}",
        "", "templates", "p50", "p99", "32 clients", "of echo", "processor"
    ));
    table(few, &with_few);
    table(many, &with_many);
    say(format!(
        "\nready {:.0} ms after the start; memory {} MiB idle, {} MiB at most",
        scene.started.as_secs_f64() * 1_000.0,
        idle,
        peak
    ));
    Ok(ExitCode::SUCCESS)
}

fn table(catalog: usize, all: &[Figures]) {
    let echo = all.first().map_or(f64::NAN, |echo| echo.rate);
    for figures in all {
        let millis = |latency: Duration| format!("{:.3} ms", latency.as_secs_f64() * 1_000.0);
        say(format!(
            "{:<9} {:>9} {:>10} {:>10} {:>10.0}/s {:>8.2} {:>8} µs",
            figures.name,
            catalog,
            millis(figures.half),
            millis(figures.nearly_all),
            figures.rate,
            figures.rate / echo,
            figures.work.as_micros()
        ));
    }
}

/// Numbers of a program that was not optimized say nothing: the same again by one that is.
async fn optimized(quick: bool) -> Result<ExitCode> {
    step("building everything, optimized");
    let (variable, here) = built_here()?;
    let release = here.with_file_name("release");
    let targets = here.parent().context("a target folder")?;
    succeed(
        cargo()
            .args([
                "build",
                "--release",
                "--workspace",
                "--bins",
                "--target-dir",
            ])
            .arg(targets),
    )
    .await?;
    let mut again = command(release.join("lab"));
    again.arg("bench").env(variable, &release);
    if quick {
        again.arg("--quick");
    }
    let outcome = status(&mut again).await?;
    Ok(if outcome.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
