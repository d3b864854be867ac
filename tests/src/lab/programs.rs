//! The product's programs in a lab, each with the permissions of its own ServiceAccount.

use std::{path::Path, sync::PoisonError};

use anyhow::Result;

use super::Lab;
use crate::{
    OPERATOR_NAMESPACE,
    program_under_test::{self, Binary, ProgramUnderTest},
};

impl Lab {
    /// Registers and starts the webhook with the default settings and waits until it is ready.
    pub async fn webhook(&mut self, settings: &[(&str, &str)]) -> Result<ProgramUnderTest> {
        self.register_webhooks().await?;
        let mut webhook = self.start_webhook(settings).await?;
        webhook.ready().await?;
        Ok(webhook)
    }

    /// Starts the webhook, without registering it and without waiting for it.
    pub async fn start_webhook(&mut self, settings: &[(&str, &str)]) -> Result<ProgramUnderTest> {
        self.start_program(Binary::Webhook, self.webhook_settings(), settings)
            .await
    }

    /// As [`Self::start_webhook`], with another kubeconfig, such as that of a proxy.
    pub async fn start_webhook_at(&self, kubeconfig: &str) -> Result<ProgramUnderTest> {
        let path = Binary::Webhook.path().await?;
        self.program(
            Binary::Webhook,
            &path,
            kubeconfig,
            self.webhook_settings(),
            &[],
        )
    }

    fn webhook_settings(&self) -> Vec<(&'static str, String)> {
        let port = self.webhook_port;
        vec![
            ("TLS_SAN", "127.0.0.1".to_owned()),
            ("WEBHOOK_BIND_ADDRESS", format!("127.0.0.1:{port}")),
        ]
    }

    /// Starts the controller and waits until it is ready.
    pub async fn controller(&mut self, settings: &[(&str, &str)]) -> Result<ProgramUnderTest> {
        let mut controller = self.start_controller(settings).await?;
        controller.ready().await?;
        Ok(controller)
    }

    /// Starts the controller without waiting for it.
    pub async fn start_controller(
        &mut self,
        settings: &[(&str, &str)],
    ) -> Result<ProgramUnderTest> {
        let all = vec![("METRICS_BIND_ADDRESS", "127.0.0.1:0".to_owned())];
        self.start_program(Binary::Controller, all, settings).await
    }

    /// Starts a program of the next release, as [`Self::start_webhook`] and
    /// [`Self::start_controller`] start one of this release. A webhook gets another port.
    pub async fn start_next(&mut self, binary: Binary) -> Result<ProgramUnderTest> {
        let path = program_under_test::next_release()
            .await?
            .join(binary.name());
        let own = ("WEBHOOK_BIND_ADDRESS", "127.0.0.1:0".to_owned());
        let metrics = ("METRICS_BIND_ADDRESS", "127.0.0.1:0".to_owned());
        let san = ("TLS_SAN", "127.0.0.1".to_owned());
        let text = self.program_kubeconfig(binary).await?;
        self.program(binary, &path, &text, vec![own, metrics, san], &[])
    }

    /// Starts the controller with another kubeconfig, such as that of a proxy, without waiting for it.
    pub async fn start_controller_at(
        &self,
        kubeconfig: &str,
        settings: &[(&str, &str)],
    ) -> Result<ProgramUnderTest> {
        let path = Binary::Controller.path().await?;
        let metrics = ("METRICS_BIND_ADDRESS", "127.0.0.1:0".to_owned());
        self.program(
            Binary::Controller,
            &path,
            kubeconfig,
            vec![metrics],
            settings,
        )
    }

    async fn start_program(
        &self,
        binary: Binary,
        defaults: Vec<(&str, String)>,
        settings: &[(&str, &str)],
    ) -> Result<ProgramUnderTest> {
        let path = binary.path().await?;
        let text = self.program_kubeconfig(binary).await?;
        self.program(binary, &path, &text, defaults, settings)
    }

    /// The kubeconfig of a program's own account.
    async fn program_kubeconfig(&self, binary: Binary) -> Result<String> {
        self.account_kubeconfig(OPERATOR_NAMESPACE, binary.account())
            .await
    }

    fn program(
        &self,
        binary: Binary,
        path: &Path,
        kubeconfig: &str,
        defaults: Vec<(&str, String)>,
        settings: &[(&str, &str)],
    ) -> Result<ProgramUnderTest> {
        let name = {
            // Numbered, so that a second replica has files of its own.
            let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            let run = runs.entry(binary.name()).or_default();
            *run += 1;
            format!("{}-{run}", binary.name())
        };
        let kubeconfig = self
            .folder
            .write(&format!("{name}.kubeconfig"), kubeconfig)?;
        let log = self.folder.join(&format!("{name}.log"));
        let mut program = program_under_test::program(path, &log, &kubeconfig);
        if let Some(id) = self.mounts {
            program = program.in_mounts_of(id);
        }
        for (key, value) in defaults {
            program = program.env(key, value);
        }
        for (key, value) in settings {
            program = program.env(key, value);
        }
        ProgramUnderTest::start(binary, program)
    }
}
