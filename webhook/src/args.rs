//! The settings of the program: flags and environment variables.

use std::fs;
use std::net::IpAddr;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use common::CloudInitSchema;
use runtime::logging::{LogFormat, LogLevel};
use runtime::settings::{BindAddress, GoDuration};

use crate::certificates::args::CertificateArgs;

/// Admission webhook for Machines: expands templates, writes defaults, refuses invalid objects.
#[derive(Debug, Clone, Parser)]
#[command(name = "machine-webhook", version)]
pub struct Args {
    /// Address at which admission reviews are served, over TLS.
    #[arg(long, env = "WEBHOOK_BIND_ADDRESS", default_value = ":9443")]
    pub listen: BindAddress,

    /// Address at which /healthz, /readyz, /metrics, /loglevel and /version are served, over plain HTTP.
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081")]
    pub admin_listen: BindAddress,

    /// Namespace of the program and of its Secret.
    #[arg(long, env = "NAMESPACE", default_value = "kubevirt-operator-system", value_parser = dns_label)]
    pub namespace: String,

    /// Service that the API server calls; part of the certificate's names.
    #[arg(long, env = "SERVICE_NAME", default_value = "machine-webhook", value_parser = dns_label)]
    pub service_name: String,

    /// Additional name of the certificate: a DNS name or an IP address. May be repeated.
    #[arg(long = "tls-san", env = "TLS_SAN", value_delimiter = ',', value_parser = dns_name_or_ip)]
    pub tls_sans: Vec<String>,

    /// Secret that stores the CA.
    #[arg(long, env = "CA_SECRET", default_value = "machine-webhook-ca", value_parser = dns_subdomain)]
    pub ca_secret: String,

    /// MutatingWebhookConfiguration whose caBundle is written.
    #[arg(long, env = "MUTATING_CONFIGURATION", default_value = "machine-webhook", value_parser = dns_subdomain)]
    pub mutating_configuration: String,

    /// ValidatingWebhookConfiguration whose caBundle is written.
    #[arg(long, env = "VALIDATING_CONFIGURATION", default_value = "machine-webhook", value_parser = dns_subdomain)]
    pub validating_configuration: String,

    /// Where certificates come from, and how long they last.
    #[command(flatten)]
    pub certificates: CertificateArgs,

    /// Warn about or deny a Machine that names a NetworkConfiguration which does not exist.
    #[arg(long, env = "MISSING_NETWORKS", default_value = "warn")]
    pub missing_networks: MissingNetworks,

    /// Backend of Machines that do not set spec.backend.
    #[arg(long, env = "DEFAULT_BACKEND", default_value = "kubevirt")]
    pub default_backend: DefaultBackend,

    /// Reclaim policy of disks that do not set reclaimPolicy. A Machine keeps what it got.
    #[arg(long, env = "DEFAULT_RECLAIM_POLICY", default_value = "Delete")]
    pub default_reclaim_policy: DefaultReclaimPolicy,

    /// Largest number of vCPUs of a Machine.
    #[arg(long, env = "MAX_VCPUS", default_value_t = 255, value_parser = clap::value_parser!(u32).range(1..=255))]
    pub max_vcpus: u32,

    /// JSON Schema of cloud-config that user data is validated with in addition to the built-in one, such
    /// as the schema-cloud-config-v1.json that cloud-init contains.
    #[arg(long, env = "CLOUD_INIT_SCHEMA", value_name = "FILE", value_parser = cloud_init_schema)]
    pub cloud_init_schema: Option<Arc<CloudInitSchema>>,

    /// Time for which reviews are still served after a signal to end, until every API server has been
    /// informed that this replica is not ready. In its second half every response closes its connection.
    #[arg(long, env = "DRAIN_DELAY", default_value = "10s")]
    pub drain_delay: GoDuration,

    /// Format of the log.
    #[arg(long, env = "LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,

    /// Least severe level that is logged.
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    pub log_level: LogLevel,
}

/// The reaction to a missing NetworkConfiguration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MissingNetworks {
    /// Warn; the controller waits until it exists.
    Warn,
    /// Deny.
    Deny,
}

/// Backend of Machines that do not set `spec.backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DefaultBackend {
    /// KubeVirt in this cluster.
    Kubevirt,
    /// libvirt on registered hosts.
    Libvirt,
}

/// Reclaim policy of disks that do not set `reclaimPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DefaultReclaimPolicy {
    /// The volume is deleted with the Machine.
    #[value(name = "Delete")]
    Delete,
    /// The volume is kept.
    #[value(name = "Retain")]
    Retain,
}

impl Args {
    /// Every name by which an API server may call this server.
    pub fn certificate_names(&self) -> Vec<String> {
        let Self {
            service_name: service,
            namespace,
            ..
        } = self;
        // API servers use the first one. It is also the common name of the certificate.
        let mut names = vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
            format!("{service}.{namespace}"),
            service.clone(),
        ];
        names.extend(self.tls_sans.iter().cloned());
        names
    }
}

fn cloud_init_schema(path: &str) -> Result<Arc<CloudInitSchema>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read it: {error}"))?;
    let schema = CloudInitSchema::parse(&text).map_err(|error| error.to_string())?;
    Ok(Arc::new(schema))
}

fn dns_label(text: &str) -> Result<String, String> {
    let well_formed = (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-');
    if well_formed {
        Ok(text.to_owned())
    } else {
        Err("not a DNS label: lower-case letters, digits and '-', at most 63".to_owned())
    }
}

fn dns_subdomain(text: &str) -> Result<String, String> {
    if text.len() <= 253 && text.split('.').all(|part| dns_label(part).is_ok()) {
        Ok(text.to_owned())
    } else {
        Err("not an object's name: DNS labels joined by dots, at most 253 characters".to_owned())
    }
}

fn dns_name_or_ip(text: &str) -> Result<String, String> {
    match text.parse::<IpAddr>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => {
            dns_subdomain(text).map_err(|_| "neither a DNS name nor an IP address".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["machine-webhook"].iter().chain(flags))
    }

    #[test]
    fn the_definition_of_the_command_line_is_valid() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_defaults_fit_the_manifests() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.listen.to_string(), ":9443");
        assert_eq!(args.admin_listen.to_string(), ":8081");
        assert_eq!(args.drain_delay.to_string(), "10s");
        assert_eq!(args.missing_networks, MissingNetworks::Warn);
        assert_eq!(args.default_reclaim_policy, DefaultReclaimPolicy::Delete);
        assert_eq!(
            args.certificate_names(),
            [
                "machine-webhook.kubevirt-operator-system.svc",
                "machine-webhook.kubevirt-operator-system.svc.cluster.local",
                "machine-webhook.kubevirt-operator-system",
                "machine-webhook",
            ]
        );
    }

    #[test]
    fn additional_names_of_the_certificate_may_be_repeated() {
        let args = parse(&["--tls-san", "127.0.0.1", "--tls-san", "localhost,::1"]).unwrap();
        assert_eq!(args.tls_sans, ["127.0.0.1", "localhost", "::1"]);
    }

    #[test]
    fn invalid_values_are_rejected_with_the_name_of_the_flag() {
        for flags in [
            ["--listen", "9443"],
            ["--namespace", ""],
            ["--namespace", "a.b"],
            ["--service-name", "Upper"],
            ["--tls-san", "a b"],
            ["--ca-secret", "a..b"],
            ["--missing-networks", "maybe"],
            ["--default-backend", "xen"],
            ["--default-reclaim-policy", "retain"],
            ["--max-vcpus", "256"],
            ["--max-vcpus", "0"],
            ["--cloud-init-schema", "/nowhere/schema.json"],
            ["--drain-delay", "10"],
            ["--ca-life", "1y"],
            ["--leaf-life", "7d"],
            ["--ca-propagation", "5"],
            ["--certificate-poll", "10"],
            ["--log-format", "xml"],
            ["--log-level", "loud"],
        ] {
            let error = parse(&flags).unwrap_err();
            assert!(error.to_string().contains(flags[0]), "{flags:?}: {error}");
        }
    }

    #[test]
    fn lifetimes_of_certificates_must_fit_together() {
        let message = |flags: &[&str]| {
            let error = parse(flags).unwrap().certificates.lifetimes().unwrap_err();
            runtime::tasks::chain(&error)
        };
        assert!(parse(&[]).unwrap().certificates.lifetimes().is_ok());
        let quick = [
            "--ca-life=60s",
            "--leaf-life=14s",
            "--ca-propagation=2s",
            "--certificate-poll=1s",
        ];
        assert!(parse(&quick).unwrap().certificates.lifetimes().is_ok());
        assert_eq!(
            message(&["--ca-life=168h"]),
            "--ca-life, --leaf-life and --ca-propagation do not fit together: the lifetime of a \
             CA must be at least 24d15m: three times the sum of the propagation time and eight sevenths \
             of the leaf's lifetime"
        );
        assert_eq!(
            message(&["--leaf-life=1m"]),
            "--certificate-poll must be from 100ms to a twelfth of --leaf-life, which is 5s"
        );
    }
}
