//! Long-running tasks with names.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;

use tokio::task::{Id, JoinSet};

/// The end of a task that should have run as long as the process.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The task returned without an error.
    #[error("the task {0:?} ended unexpectedly")]
    Ended(&'static str),
    /// The task returned an error.
    #[error("the task {name:?} failed: {reason}")]
    Failed {
        /// The name given to [`Tasks::spawn`].
        name: &'static str,
        /// The error with all its sources.
        reason: String,
    },
    /// The task panicked.
    #[error("the task {0:?} panicked")]
    Panicked(&'static str),
}

/// The long-running tasks of a process. Dropping it aborts them.
#[derive(Default)]
pub struct Tasks {
    running: JoinSet<Result<(), String>>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    /// Starts a task that runs as long as the process.
    pub fn spawn<E: std::error::Error>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let handle = self
            .running
            .spawn(async move { task.await.map_err(|error| chain(&error)) });
        self.names.insert(handle.id(), name);
    }

    /// Waits until a task ends; never returns while all of them run.
    pub async fn first_end(&mut self) -> TaskError {
        match self.running.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, Ok(())))) => TaskError::Ended(self.name(id)),
            Some(Ok((id, Err(reason)))) => TaskError::Failed {
                name: self.name(id),
                reason,
            },
            Some(Err(error)) => TaskError::Panicked(self.name(error.id())),
        }
    }

    fn name(&mut self, id: Id) -> &'static str {
        self.names.remove(&id).unwrap_or("unknown")
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names.values()).finish()
    }
}

/// The message of an error followed by the messages of its sources.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        // Some errors repeat the message of their source in their own.
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[tokio::test]
    async fn the_end_of_a_task_is_reported_with_its_name_and_cause() {
        let mut tasks = Tasks::default();
        tasks.spawn("running", std::future::pending::<io::Result<()>>());
        tasks.spawn("ending", async { io::Result::Ok(()) });
        assert_eq!(
            tasks.first_end().await.to_string(),
            "the task \"ending\" ended unexpectedly"
        );
        tasks.spawn("failing", async { Err(io::Error::other("no disk")) });
        assert_eq!(
            tasks.first_end().await.to_string(),
            "the task \"failing\" failed: no disk"
        );
        tasks.spawn("panicking", async {
            assert!(std::hint::black_box(false), "on purpose");
            io::Result::Ok(())
        });
        assert_eq!(
            tasks.first_end().await.to_string(),
            "the task \"panicking\" panicked"
        );
    }

    #[test]
    fn a_chain_contains_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read")]
        struct Outer(#[source] io::Error);
        assert_eq!(
            chain(&Outer(io::Error::other("no disk"))),
            "cannot read: no disk"
        );
    }
}
