//! Settings of the program, from flags or the environment.

use std::fs;
use std::net::IpAddr;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use common::CloudInitSchema;
use runtime::logging::{LogFormat, LogLevel};
use runtime::settings::{BindAddress, GoDuration};

use crate::certificates::args::CertificateArgs;

/// Admission webhook for Machines: expands templates, writes defaults, refuses what cannot work.
#[derive(Debug, Clone, Parser)]
#[command(name = "machine-webhook", version)]
pub struct Args {
    /// Where admission reviews are served, over TLS.
    #[arg(long, env = "WEBHOOK_BIND_ADDRESS", default_value = ":9443")]
    pub listen: BindAddress,

    /// Where /healthz, /readyz, /metrics, /loglevel and /version are served, over plain HTTP.
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081")]
    pub admin_listen: BindAddress,

    /// Namespace the program runs in.
    #[arg(long, env = "NAMESPACE", default_value = "kubevirt-operator-system", value_parser = dns_label)]
    pub namespace: String,

    /// Service the API server calls; part of the certificate's names.
    #[arg(long, env = "SERVICE_NAME", default_value = "machine-webhook", value_parser = dns_label)]
    pub service_name: String,

    /// A further name of the certificate: a DNS name or an IP address. May be repeated.
    #[arg(long = "tls-san", env = "TLS_SAN", value_delimiter = ',', value_parser = dns_name_or_ip)]
    pub tls_sans: Vec<String>,

    /// Secret that holds the CA.
    #[arg(long, env = "CA_SECRET", default_value = "machine-webhook-ca", value_parser = dns_subdomain)]
    pub ca_secret: String,

    /// MutatingWebhookConfiguration whose caBundle is kept right.
    #[arg(long, env = "MUTATING_CONFIGURATION", default_value = "machine-webhook", value_parser = dns_subdomain)]
    pub mutating_configuration: String,

    /// ValidatingWebhookConfiguration whose caBundle is kept right.
    #[arg(long, env = "VALIDATING_CONFIGURATION", default_value = "machine-webhook", value_parser = dns_subdomain)]
    pub validating_configuration: String,

    /// Where certificates come from, and how long they last.
    #[command(flatten)]
    pub certificates: CertificateArgs,

    /// What becomes of a Machine that names a NetworkConfiguration which does not exist.
    #[arg(long, env = "MISSING_NETWORKS", default_value = "warn")]
    pub missing_networks: MissingNetworks,

    /// Backend of Machines that name none.
    #[arg(long, env = "DEFAULT_BACKEND", default_value = "kubevirt")]
    pub default_backend: DefaultBackend,

    /// Most vCPUs a Machine may have.
    #[arg(long, env = "MAX_VCPUS", default_value_t = 255, value_parser = clap::value_parser!(u32).range(1..=255))]
    pub max_vcpus: u32,

    /// JSON Schema of cloud-config that user data is judged by beside the one built in, such as
    /// the schema-cloud-config-v1.json that comes with cloud-init.
    #[arg(long, env = "CLOUD_INIT_SCHEMA", value_name = "FILE", value_parser = cloud_init_schema)]
    pub cloud_init_schema: Option<Arc<CloudInitSchema>>,

    /// How long reviews are still served after the end was asked for, until every API server has
    /// heard that this replica is not ready.
    #[arg(long, env = "DRAIN_DELAY", default_value = "10s")]
    pub drain_delay: GoDuration,

    /// Who reads the log.
    #[arg(long, env = "LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,

    /// How much is logged.
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    pub log_level: LogLevel,
}

/// What a missing NetworkConfiguration leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MissingNetworks {
    /// A warning; the controller waits for it.
    Warn,
    /// A refusal.
    Deny,
}

/// Backend of Machines that name none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DefaultBackend {
    /// KubeVirt in this cluster.
    Kubevirt,
    /// libvirt on registered hosts.
    Libvirt,
}

impl Args {
    /// Every name the API server may call this server by.
    pub fn certificate_names(&self) -> Vec<String> {
        let Self {
            service_name: service,
            namespace,
            ..
        } = self;
        // The full name comes first: it is the one API servers use.
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
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_those_of_the_manifests() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.listen.to_string(), ":9443");
        assert_eq!(args.admin_listen.to_string(), ":8081");
        assert_eq!(args.drain_delay.to_string(), "10s");
        assert_eq!(args.missing_networks, MissingNetworks::Warn);
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
    fn further_names_of_the_certificate_may_be_repeated() {
        let args = parse(&["--tls-san", "127.0.0.1", "--tls-san", "localhost,::1"]).unwrap();
        assert_eq!(args.tls_sans, ["127.0.0.1", "localhost", "::1"]);
    }

    #[test]
    fn wrong_values_are_refused() {
        for flags in [
            ["--listen", "9443"],
            ["--namespace", ""],
            ["--namespace", "a.b"],
            ["--service-name", "Upper"],
            ["--tls-san", "a b"],
            ["--ca-secret", "a..b"],
            ["--missing-networks", "maybe"],
            ["--default-backend", "xen"],
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
    fn lives_of_certificates_must_fit_together() {
        let told = |flags: &[&str]| {
            let error = parse(flags).unwrap().certificates.lives().unwrap_err();
            runtime::tasks::chain(&error)
        };
        assert!(parse(&[]).unwrap().certificates.lives().is_ok());
        let quick = [
            "--ca-life=60s",
            "--leaf-life=14s",
            "--ca-propagation=2s",
            "--certificate-poll=1s",
        ];
        assert!(parse(&quick).unwrap().certificates.lives().is_ok());
        assert_eq!(
            told(&["--ca-life=168h"]),
            "--ca-life, --leaf-life and --ca-propagation do not fit together: a CA must live at \
             least 24d15m: three times the propagation and eight sevenths of a leaf's life"
        );
        assert_eq!(
            told(&["--leaf-life=1m"]),
            "--certificate-poll must be from 100ms to a twelfth of --leaf-life, which is 5s"
        );
    }
}
