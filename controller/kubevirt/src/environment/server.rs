//! Carries out steps with the code of the program, at an API server whose objects are those in memory.
//!
//! ```text
//! step ─▶ apply, add_finalizer … ─ request ─▶ channel ─▶ FakeCluster::answer
//!                  ▲                                              │
//!                  └───────────────── response ───────────────────┘
//! ```

use controller_core::api_server::{api_server, guarded};
use controller_core::backend::Failed;
use controller_core::client::GuardedClient;
use controller_core::events::{Events, events};
use controller_core::laws::Refused;
use controller_core::plan::Step;
use controller_core::writes::{add_finalizer, remove_finalizer};
use tokio::runtime::Builder;

use super::FakeCluster;
use super::api::Call;
use crate::apply::apply;
use crate::plan::action::Action;

impl FakeCluster {
    /// Carries out one step as the program does.
    pub(crate) fn step(&mut self, step: &Step<'_, Action>) -> Result<(), Refused> {
        let Some(machine) = &self.machine.clone() else {
            return Err(Refused {
                reason: None,
                message: "the Machine is gone".into(),
            });
        };
        let done: Result<(), Failed> = self.serve(async |api, events| match step {
            Step::AddFinalizer => Ok(add_finalizer(api, machine).await.map(drop)?),
            Step::RemoveFinalizer => Ok(remove_finalizer(api, machine).await.map(drop)?),
            Step::Act(action) => apply(api, events, machine, action).await.map(drop),
        });
        Ok(done?)
    }

    /// Runs `calls` with a client of this API server until they end.
    pub(crate) fn serve<T>(&mut self, calls: impl AsyncFnOnce(&GuardedClient, &Events) -> T) -> T {
        block_on(async {
            let (client, server) = api_server(Call::read);
            let (events, _publisher) = events(client.clone());
            let api = guarded(client, self.holds_lease);
            server
                .serve(calls(&api, &events), |call| self.answer(call))
                .await
        })
    }
}

/// Runs async code in a test that is not async itself: the steps of a [`FakeCluster`] cannot be taken within a runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.unwrap().block_on(future)
}
