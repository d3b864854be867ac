//! The benchmarks of the webhook and of the controller, as tables.

use std::{
    path::{PathBuf, absolute},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result};

use lab::{
    Binary, Lab, built_here, features,
    image_server::ImageServer,
    libvirt::Libvirt,
    load::{self, Load},
    usage::memory,
};

use super::{cargo, command, say, status, step, succeed};
use crate::bench::{
    echo::Echo,
    fleet::Fleet,
    load::{LoadParameters, measure},
    report::Report,
    setup::{Setup, Size},
    slow_images,
};

/// Numbers of clients: one, for the latency of a single user, up to more than the API servers of a cluster open.
const CLIENTS: [usize; 3] = [1, 8, 64];

const FULL: LoadParameters = LoadParameters {
    rounds: 15,
    span: Duration::from_millis(400),
    clients: CLIENTS,
};
const FULL_SIZES: [Size; 2] = [
    Size {
        machines: 10,
        templates: 10,
    },
    Size {
        machines: 10_000,
        templates: 1_000,
    },
];

const QUICK: LoadParameters = LoadParameters {
    rounds: 3,
    span: Duration::from_millis(100),
    clients: CLIENTS,
};
const QUICK_SIZES: [Size; 2] = [
    Size {
        machines: 10,
        templates: 10,
    },
    Size {
        machines: 100,
        templates: 20,
    },
];

/// The loads, and how long each program is observed under each.
const LOADS: [Load; 4] = [
    Load::Idle,
    Load::StuckProbes(32),
    Load::IdleMetrics(1000),
    Load::LargeBodies(50),
];
const SPAN: Duration = Duration::from_secs(5);

/// Namespaces with a Machine whose image never arrives: twice as many as a host fetches at the same time.
const SLOW_NAMESPACES: usize = 8;

pub(crate) async fn run(
    quick: bool,
    save: Option<PathBuf>,
    compare: Option<PathBuf>,
) -> Result<ExitCode> {
    if cfg!(debug_assertions) {
        let mut arguments: Vec<_> = quick.then(|| "--quick".to_owned()).into_iter().collect();
        for (flag, file) in [("--save", &save), ("--compare", &compare)] {
            if let Some(file) = file {
                // The release build is started in another folder.
                let file = absolute(file)?.to_string_lossy().into_owned();
                arguments.extend([flag.to_owned(), file]);
            }
        }
        return optimized("bench", arguments, &[]).await;
    }
    // Read first: an unreadable file fails at once.
    let before = compare.as_deref().map(Report::read).transpose()?;
    let (effort, [small, large]) = if quick {
        (QUICK, QUICK_SIZES)
    } else {
        (FULL, FULL_SIZES)
    };

    let mut report = Report::default();
    step("starting a control plane and the webhook");
    let mut setup = Setup::start().await?;
    report.ready_ms = setup.started.as_secs_f64() * 1e3;
    setup.grow(small).await?;
    report.idle_mib = memory(setup.webhook())?.now;
    let [mutate, validate, pass] = setup.requests().await?;
    let echo = Echo::of(&mutate, &setup.lab.path("echo")).await?;
    let requests = [echo.request(), mutate, validate, pass];
    step(&format!("measuring with {small}"));
    report.add(small, &measure(&requests, effort).await?);
    step(&format!("making {large}"));
    setup.grow(large).await?;
    report.idle_large_mib = memory(setup.webhook())?.now;
    step(&format!("measuring with {large}"));
    report.add(large, &measure(&requests, effort).await?);
    report.peak_mib = memory(setup.webhook())?.peak;

    say(&report);
    if let (Some(before), Some(file)) = (&before, &compare) {
        say(format!("\nAs a ratio to {}:\n", file.display()));
        say(report.against(before));
    }
    if let Some(file) = &save {
        report.write(file)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures each number of Machines in a control plane of its own, and compares each with the first.
pub(crate) async fn controller(fleets: &[usize]) -> Result<ExitCode> {
    if cfg!(debug_assertions) {
        let fleets = fleets.iter().map(ToString::to_string);
        return optimized("bench-controller", fleets, &[]).await;
    }
    let mut first = None;
    for machines in fleets {
        step(&format!("a control plane with {machines} Machines"));
        let fleet = Fleet::measure(*machines).await?;
        say(&fleet);
        if let Some(first) = &first {
            say(fleet.growth(first));
        }
        say("");
        first.get_or_insert(fleet);
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures what other clients notice of each load.
pub(crate) async fn under_load() -> Result<ExitCode> {
    if cfg!(debug_assertions) {
        return optimized("bench-load", [], &features(&[]).await?).await;
    }
    let libvirt = match Libvirt::start().await? {
        Ok(libvirt) => Some(libvirt),
        Err(missing) => {
            step(&format!("without libvirt: {missing}"));
            None
        }
    };
    step("starting a control plane and both programs");
    let mut lab = Lab::start().await?;
    if let Some(libvirt) = &libvirt {
        lab.use_libvirt(libvirt);
    }
    let mut webhook = lab.webhook(&[]).await?;
    let mut controller = lab.controller(&[]).await?;
    say(load::heading());
    for load in LOADS {
        for program in [&mut webhook, &mut controller] {
            if program.binary() == Binary::Webhook || !matches!(load, Load::LargeBodies(_)) {
                say(load::under(&lab, program, load, SPAN).await?);
            }
        }
    }
    if let Some(libvirt) = &libvirt {
        let server = ImageServer::start()?;
        slow_images::register(&lab, libvirt, &server).await?;
        slow_images::start(&lab, &server, SLOW_NAMESPACES).await?;
        let what = format!("{SLOW_NAMESPACES} slow image servers");
        for program in [&mut webhook, &mut controller] {
            let no_others = std::future::ready(Ok(()));
            say(load::notice(&lab, program, &what, SPAN, no_others).await?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the verb again in a release build, because a debug build is many times slower.
async fn optimized(
    verb: &str,
    arguments: impl IntoIterator<Item = String>,
    features: &[String],
) -> Result<ExitCode> {
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
            .arg(targets)
            .args(features),
    )
    .await?;
    let mut again = command(release.join("lab"));
    again.arg(verb).args(arguments).env(variable, &release);
    let outcome = status(&mut again).await?;
    Ok(if outcome.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
