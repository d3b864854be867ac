//! The echo server: the webhook's own accept loop and TLS around a router that reads the request and sends a fixed
//! response.

use std::{fs, path::Path, process::ExitCode, sync::Arc};

use super::load::Request;
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

/// The body of every response.
const ANSWER: &str = "answer.json";
/// The CA certificate of the server.
const CA: &str = "ca.pem";
/// The address, written once the server listens.
const ADDRESS: &str = "address";

/// Serves the response in the folder until the process is killed.
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
    // Written to a draft and renamed, so that a reader never sees an incomplete address.
    let draft = folder.join("address.draft");
    fs::write(&draft, listener.local_addr()?.to_string())?;
    fs::rename(&draft, folder.join(ADDRESS))?;
    let tls = server::tls(Arc::new(resolver), TlsVersion::default(), None)?;
    server::serve(listener, tls, router, Limits::default(), Closing::new()).await;
    Ok(ExitCode::SUCCESS)
}

/// A running echo server.
pub(crate) struct Echo {
    request: Request,
    _process: Process,
}

impl Echo {
    /// Starts this program as an echo server for a request and its response.
    pub(crate) async fn of(request: &Request, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join(ANSWER), &request.answer)?;
        let mut process = Program::new(&std::env::current_exe()?, &folder.join("log"))
            .args(["echo".to_owned(), folder.display().to_string()])
            .start()?;
        let address = wait::until("the echo server", async || {
            process.check_alive()?;
            Ok(fs::read_to_string(folder.join(ADDRESS)))
        })
        .await?;
        Ok(Self {
            request: Request {
                name: "echo",
                process: process.id(),
                address: address.parse().context("the address of the echo server")?,
                ca: fs::read(folder.join(CA))?,
                path: "/",
                ..request.clone()
            },
            _process: process,
        })
    }

    /// The same request to this server.
    pub(crate) fn request(&self) -> Request {
        self.request.clone()
    }
}
