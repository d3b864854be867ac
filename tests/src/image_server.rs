//! [`ImageServer`]: an HTTP server of images that can redirect, stop in the middle of a file, or never answer.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::Result;

/// What the server answers to a path.
#[derive(Debug, Clone)]
enum Answer {
    File(Arc<[u8]>),
    /// The first request gets half of the file, and the rest once [`ImageServer::resume`] is called.
    Half(Arc<[u8]>),
    /// A redirect to this path of the same server.
    Redirect(String),
}

#[derive(Debug, Default)]
struct Content {
    answers: BTreeMap<String, Answer>,
    requested: Vec<String>,
    /// Connections whose request is never answered.
    open: Vec<TcpStream>,
    is_resumed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    content: Mutex<Content>,
    resumed: Condvar,
}

impl Shared {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running server; it ends with the process. A path without an answer is never answered; the query of a URL is ignored.
#[derive(Debug)]
pub struct ImageServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl ImageServer {
    /// Starts a server at an address of this machine.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        let state = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = state.clone();
                // Fails if the client has ended the connection.
                thread::spawn(move || answer(stream, &state).unwrap_or_default());
            }
        });
        Ok(Self { address, shared })
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Serves a file from now on, and returns its URL.
    pub fn serve(&self, path: &str, file: impl Into<Arc<[u8]>>) -> String {
        self.add(path, Answer::File(file.into()))
    }

    /// As [`serve`](Self::serve), but the first request gets half of the file until [`resume`](Self::resume) is called.
    pub fn serve_half(&self, path: &str, file: impl Into<Arc<[u8]>>) -> String {
        self.add(path, Answer::Half(file.into()))
    }

    /// Redirects a path from now on, and returns its URL.
    pub fn redirect(&self, path: &str, to: &str) -> String {
        self.add(path, Answer::Redirect(format!("/{to}")))
    }

    fn add(&self, path: &str, answer: Answer) -> String {
        let mut content = self.shared.content();
        content.answers.insert(format!("/{path}"), answer);
        self.url(path)
    }

    /// Sends the rest of every file of which half was sent.
    pub fn resume(&self) {
        self.shared.content().is_resumed = true;
        self.shared.resumed.notify_all();
    }

    /// The number of requests for a path.
    pub fn requests(&self, path: &str) -> usize {
        let path = format!("/{path}");
        let content = self.shared.content();
        content.requested.iter().filter(|it| **it == path).count()
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let target = first.split(' ').nth(1).unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default().to_owned();
    // The end of the head.
    lines
        .take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()))
        .for_each(drop);
    let (answer, is_first) = {
        let mut content = shared.content();
        let is_first = !content.requested.contains(&path);
        content.requested.push(path.clone());
        let answer = content.answers.get(&path).cloned();
        if answer.is_none() {
            content.open.push(stream.try_clone()?);
        }
        (answer, is_first)
    };
    let ok = |length: usize| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
    };
    match answer {
        None => Ok(()),
        Some(Answer::Half(file)) if is_first => {
            let (sent, rest) = file.split_at(file.len() / 2);
            stream.write_all(ok(file.len()).as_bytes())?;
            stream.write_all(sent)?;
            let mut content = shared.content();
            while !content.is_resumed {
                let waited = shared.resumed.wait(content);
                content = waited.unwrap_or_else(PoisonError::into_inner);
            }
            drop(content);
            stream.write_all(rest)
        }
        Some(Answer::File(file) | Answer::Half(file)) => {
            stream.write_all(ok(file.len()).as_bytes())?;
            stream.write_all(&file)
        }
        Some(Answer::Redirect(to)) => {
            let head = format!(
                "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes())
        }
    }
}
