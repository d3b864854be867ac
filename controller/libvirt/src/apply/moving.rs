//! The steps of a move between hosts. Each looks first whether the other host has the volumes of the Machine.

use std::collections::BTreeSet;

use common::api::status::{LastMigration, MachineStatus};
use controller_core::backend::Failed;
use controller_core::client::Remedy;
use controller_core::machine::Machine;
use controller_core::migration::REFUSED;
use controller_core::objects::Meta as _;
use controller_core::writes::{Written, write_status_unless_changed};

use super::applier::{Applier, REFRESH, missing};
use super::on_host::act;
use crate::access::{AccessError, Connection, Result};
use crate::failure::failed;
use crate::images::names::{is_attempt, is_attempt_of, marker};
use crate::observe::networks_of;
use crate::placement::{Candidate, best};
use crate::plan::action::{Action, MovedVolume};
use crate::volume_effects::user_of;

impl Applier {
    /// Records a move in the status, with the host that the Machine is bound to from now on.
    pub(super) async fn move_to(
        &self,
        machine: &Machine,
        from: &str,
        record: &LastMigration,
        volumes: &[MovedVolume],
    ) -> Result<Option<Written>, Failed> {
        // The polls show later that this host no longer has the definition. So they have to show first that it has it.
        let location = self.hosts.location(machine.uid(), Some(from));
        if location.is_none_or(|it| it.host != from || !it.others.is_empty()) {
            let message = format!(
                "the polls of LibvirtHost '{from}' do not show the domain yet, or those of another host show it, too"
            );
            return Err(Failed::new(Remedy::Retry, message));
        }
        let to = record.node.as_deref().unwrap_or_default();
        self.verify_volumes(to, volumes).await?;
        // Others may have taken the room meanwhile. From here to the reservation nobody does.
        let (_placement, hosts) = self.hosts.candidates(&self.caches, &self.objects).await;
        self.verify_room(machine, to, &hosts)?;
        let status = MachineStatus {
            host: Some(to.to_owned()),
            last_migration: Some(record.clone()),
            ..machine.status.clone()
        };
        let written = write_status_unless_changed(&self.api, machine, &status).await?;
        self.reserve(machine, to);
        Ok(Some(written))
    }

    /// Fails unless a Machine fits on one of these hosts, by the rule that has chosen it.
    fn verify_room(
        &self,
        machine: &Machine,
        host: &str,
        hosts: &[Candidate],
    ) -> Result<(), Failed> {
        let Some(block) = machine.desired() else {
            return Ok(());
        };
        let networks = networks_of(machine, &self.caches);
        let target = hosts.iter().filter(|candidate| candidate.name == host);
        let fits = best(machine.namespace(), block, &networks, target, false);
        fits.map(drop).map_err(|unfit| {
            let unfit = unfit.join("; ");
            let message = format!("LibvirtHost '{host}' cannot have the Machine any more: {unfit}");
            given_up(Failed::new(Remedy::UserAction, message))
        })
    }

    /// Removes the definition of the domain from the host that the Machine leaves.
    pub(super) async fn leave(
        &self,
        machine: &Machine,
        from: &str,
        to: &str,
        volumes: &[MovedVolume],
        action: &Action,
    ) -> Result<Option<Written>, Failed> {
        self.verify_volumes(to, volumes).await?;
        let host = self.hosts.get(from).ok_or_else(|| missing(from))?;
        let (action, job) = (
            action.clone(),
            self.job(&host, machine, self.guard(&host, machine)),
        );
        let slow = &host.host.slow;
        let left = slow
            .call(REFRESH, move |host| act(host, &job, action))
            .await;
        // The next poll shows that it is gone.
        host.wake.notify_one();
        left.map_err(|error| refused(failed(&error)))?;
        Ok(None)
    }

    /// Fails unless a host has these volumes. Nothing was done by then, so the move is given up, unless the host is only busy.
    async fn verify_volumes(&self, host: &str, volumes: &[MovedVolume]) -> Result<(), Failed> {
        let connected = self.hosts.get(host).ok_or_else(|| missing(host));
        let (connected, volumes) = (connected.map_err(given_up)?, volumes.to_vec());
        let slow = &connected.host.slow;
        let verified = slow
            .call(REFRESH, move |host| verify_volumes(host, &volumes))
            .await;
        verified.map_err(|error| {
            if matches!(error, AccessError::Busy(_)) {
                return failed(&error);
            }
            let message = format!("LibvirtHost '{host}' cannot have the Machine: {error}");
            given_up(Failed::new(Remedy::UserAction, message))
        })
    }
}

/// Fails unless the pools of a host have these volumes, as they were observed on another host, complete and unused.
pub(crate) fn verify_volumes(host: &mut dyn Connection, volumes: &[MovedVolume]) -> Result<()> {
    let pools: BTreeSet<&str> = volumes.iter().map(|volume| &*volume.pool).collect();
    for pool in pools {
        host.refresh(pool)?;
    }
    for volume in volumes {
        let MovedVolume {
            pool,
            base,
            name,
            capacity,
        } = volume;
        let all = host.volumes(pool)?;
        let has = |name: &str| all.iter().any(|it| it.name == name);
        let refuse = |why: &str| {
            Err(AccessError::Refused(format!(
                "volume {pool}/{name} {why}: both hosts must have the same storage behind their pools (sharedAs)"
            )))
        };
        let Some(found) = all.iter().find(|it| it.name == *name) else {
            return refuse("is not there");
        };
        if found.capacity != *capacity {
            return refuse(&format!(
                "has {} bytes instead of {capacity}",
                found.capacity
            ));
        }
        if found.backing.is_some() {
            return refuse("is an overlay of a volume that the other host may not have");
        }
        if is_attempt(name) && !has(&marker(name)) {
            return refuse("has no marker that it is complete");
        }
        let is_other = |it: &str| {
            it != name && is_attempt_of(it, base) && (!is_attempt(it) || has(&marker(it)))
        };
        if let Some(other) = all.iter().find(|it| is_other(&it.name)) {
            let why = format!("is one of two for the same disk, beside {}", other.name);
            return refuse(&why);
        }
        if let Some(uuid) = user_of(host, &found.path)? {
            return refuse(&format!("is used by domain {uuid} there"));
        }
    }
    Ok(())
}

/// A failure after which nothing of the move is done any more, unless it is known to pass.
fn refused(failed: Failed) -> Failed {
    match failed.remedy {
        Remedy::UserAction => given_up(failed),
        _ => failed,
    }
}

fn given_up(failed: Failed) -> Failed {
    Failed {
        remedy: Remedy::UserAction,
        reason: Some(REFUSED),
        ..failed
    }
}
