//! The bare server: the webhook's own accept loop and TLS around a router that reads and answers.

use std::{fs, path::Path, process::ExitCode, sync::Arc};

use super::load::Question;
use anyhow::{Context as _, Result};
use axum::{Router, body::Body, http::StatusCode, routing::post};
use bytes::Bytes;
use certs::{CA_LIFETIME, Ca, LEAF_LIFETIME, ServerCertResolver, ServerNames};
use http_body_util::BodyExt as _;
use hyper::header;
use lab::{
    process::{Process, Program},
    wait,
};
use time::OffsetDateTime;
use tokio::net::TcpListener;
use webhook::server::{self, Closing, Limits, TlsVersion};

/// What is answered to everything.
const ANSWER: &str = "answer.json";
/// Whom to trust.
const CA: &str = "ca.pem";
/// Where it listens; written when it does.
const ADDRESS: &str = "address";

/// Serves for ever what the folder says.
pub(crate) async fn run(folder: &Path) -> Result<ExitCode> {
    let answer = Bytes::from(fs::read(folder.join(ANSWER))?);
    let now = OffsetDateTime::now_utc();
    let ca = Ca::generate("echo CA", now, CA_LIFETIME)?;
    let resolver = ServerCertResolver::default();
    let names = ServerNames::new(["127.0.0.1".to_owned()])?;
    resolver.set_leaf(&ca.sign(&names, now, LEAF_LIFETIME)?);
    fs::write(folder.join(CA), ca.certificate_pem())?;

    let router = Router::new().route(
        "/",
        post(async move |body: Body| {
            body.collect().await.map_err(|_| StatusCode::BAD_REQUEST)?;
            Ok::<_, StatusCode>(([(header::CONTENT_TYPE, "application/json")], answer))
        }),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    // In one step: a reader finds all of it or nothing.
    let draft = folder.join("address.draft");
    fs::write(&draft, listener.local_addr()?.to_string())?;
    fs::rename(&draft, folder.join(ADDRESS))?;
    let tls = server::tls(Arc::new(resolver), TlsVersion::default(), None)?;
    server::serve(listener, tls, router, Limits::default(), Closing::new()).await;
    Ok(ExitCode::SUCCESS)
}

/// A running echo server.
pub(crate) struct Echo {
    question: Question,
    _process: Process,
}

impl Echo {
    /// Starts this very program as one that is asked and answers as the webhook is and does.
    pub(crate) async fn of(question: &Question, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join(ANSWER), &question.answer)?;
        let mut process = Program::new(&std::env::current_exe()?, &folder.join("log"))
            .args(["echo".to_owned(), folder.display().to_string()])
            .start()?;
        let address = wait::until("the echo server", async || {
            process.check_alive()?;
            Ok(fs::read_to_string(folder.join(ADDRESS)))
        })
        .await?;
        Ok(Self {
            question: Question {
                name: "echo",
                process: process.id(),
                address: address.parse().context("the address of the echo server")?,
                ca: fs::read(folder.join(CA))?,
                path: "/",
                ..question.clone()
            },
            _process: process,
        })
    }

    /// The same question to this server.
    pub(crate) fn question(&self) -> Question {
        self.question.clone()
    }
}
