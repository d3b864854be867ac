//! Settings: flags and environment.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use controller_core::foreign_stop::OnForeignStop;
use runtime::logging::{LogFormat, LogLevel};
use runtime::settings::{BindAddress, GoDuration};

/// Reconciles normalized Machines into KubeVirt VirtualMachines and libvirt domains.
#[derive(Debug, Parser)]
#[command(name = "machine-controller", version)]
pub(crate) struct Args {
    /// Kubeconfig file. Absent: the ServiceAccount in a Pod, otherwise the file that kubectl uses.
    #[arg(long, env = "KUBECONFIG", hide_env_values = true)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Time between two passes over a Machine that did not change. On KubeVirt a Machine for which nothing is left to
    /// do is observed again only if something changes, or after ten minutes.
    #[arg(long, env = "RECONCILE_INTERVAL", default_value = "30s", value_parser = interval)]
    pub(crate) reconcile_interval: GoDuration,

    /// How many Machines are reconciled at the same time.
    #[arg(long, env = "MAX_CONCURRENT_RECONCILES", default_value = "5", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) max_concurrent_reconciles: u16,

    /// Time after which an image that was fetched to a libvirt host and that nothing uses is removed there; 0s keeps
    /// images.
    #[arg(long, env = "IMAGE_RETENTION", default_value = "168h")]
    pub(crate) image_retention: GoDuration,

    /// What is done about a guest that another client stops (virtctl stop, virsh destroy) although powerState is
    /// Running: it is started again once it is down (restore), or stays off until powerState or the
    /// annotation restart-requested changes (keep).
    #[arg(long, env = "ON_FOREIGN_STOP", default_value = "restore")]
    pub(crate) on_foreign_stop: ForeignStop,

    /// Address of /metrics.
    #[arg(long, env = "METRICS_BIND_ADDRESS", default_value = ":8080")]
    pub(crate) metrics_bind_address: BindAddress,

    /// Address of /healthz, /readyz, /loglevel and /version.
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081")]
    pub(crate) health_probe_bind_address: BindAddress,

    /// Whether only the replica that holds the Lease reconciles.
    #[arg(long, env = "LEADER_ELECTION", default_value = "true", action = clap::ArgAction::Set)]
    pub(crate) leader_election: bool,

    /// Namespace of the operator, which contains its Lease.
    #[arg(long, env = "NAMESPACE", default_value = "kubevirt-operator-system", value_parser = namespace)]
    pub(crate) namespace: String,

    /// Namespace that MachineImages are imported into on KubeVirt, which only administrators may use. Empty: that of
    /// the operator.
    #[arg(long, env = "IMAGE_NAMESPACE", default_value = "", value_parser = optional_namespace)]
    image_namespace: String,

    /// Format of the log.
    #[arg(long, env = "LOG_FORMAT", default_value = "json")]
    pub(crate) log_format: LogFormat,

    /// Lowest level that is logged.
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    pub(crate) log_level: LogLevel,
}

impl Args {
    /// The namespace of the imports of MachineImages.
    pub(crate) fn image_namespace(&self) -> &str {
        if self.image_namespace.is_empty() {
            &self.namespace
        } else {
            &self.image_namespace
        }
    }
}

/// Values of `--on-foreign-stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ForeignStop {
    Restore,
    Keep,
}

impl From<ForeignStop> for OnForeignStop {
    fn from(setting: ForeignStop) -> Self {
        match setting {
            ForeignStop::Restore => Self::Restore,
            ForeignStop::Keep => Self::Keep,
        }
    }
}

/// A shorter interval would keep the processor busy with passes that change nothing.
const INTERVAL_MIN: GoDuration = GoDuration(std::time::Duration::from_secs(1));

fn interval(text: &str) -> Result<GoDuration, String> {
    let interval: GoDuration = text
        .parse()
        .map_err(|error: runtime::settings::DurationError| error.to_string())?;
    if interval < INTERVAL_MIN {
        return Err(format!("the interval must be at least {INTERVAL_MIN}"));
    }
    Ok(interval)
}

fn optional_namespace(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    namespace(text)
}

/// Parses a DNS label: the form of every namespace name.
fn namespace(text: &str) -> Result<String, String> {
    let fits = (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-');
    if fits {
        Ok(text.to_owned())
    } else {
        Err("not the name of a namespace: lower-case letters, digits and '-', at most 63".into())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Args, String> {
        Args::try_parse_from([&["machine-controller"], arguments].concat())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_those_of_the_reference() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.reconcile_interval.0, Duration::from_secs(30));
        assert_eq!(args.max_concurrent_reconciles, 5);
        assert_eq!(args.image_retention.0, Duration::from_hours(7 * 24));
        assert_eq!(args.metrics_bind_address.to_string(), ":8080");
        assert_eq!(args.health_probe_bind_address.to_string(), ":8081");
        assert_eq!(args.on_foreign_stop, ForeignStop::Restore);
        assert!(args.leader_election);
        assert_eq!(args.namespace, "kubevirt-operator-system");
        assert_eq!(args.image_namespace(), "kubevirt-operator-system");
    }

    #[test]
    fn durations_and_addresses_in_go_notation_are_parsed() {
        let args = parse(&[
            "--reconcile-interval=1m30s",
            "--metrics-bind-address=127.0.0.1:0",
            "--leader-election=false",
        ])
        .unwrap();
        assert_eq!(args.reconcile_interval.0, Duration::from_secs(90));
        assert_eq!(args.metrics_bind_address.to_string(), "127.0.0.1:0");
        assert!(!args.leader_election);
    }

    #[test]
    fn an_invalid_value_is_refused_with_its_reason() {
        for (argument, expected) in [
            ("--reconcile-interval=30", "a number has no unit"),
            ("--reconcile-interval=10ms", "at least 1s"),
            ("--max-concurrent-reconciles=0", "0 is not in 1..=1000"),
            ("--metrics-bind-address=8080", "no port"),
            ("--leader-election=maybe", "invalid value 'maybe'"),
            ("--on-foreign-stop=ignore", "possible values: restore, keep"),
            ("--namespace=Default", "not the name of a namespace"),
            ("--log-level=loud", "invalid value 'loud'"),
            ("--no-such-flag", "unexpected argument"),
        ] {
            let error = parse(&[argument]).unwrap_err();
            assert!(error.contains(expected), "{argument}: {error}");
        }
    }
}
