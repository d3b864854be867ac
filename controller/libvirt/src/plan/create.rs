//! A Machine that lives: finalizer → host → images → volumes → seed → definition → devices → power → status.

use std::collections::BTreeMap;
use std::time::Duration;

use common::api::choice::VirtType as Wished;
use common::api::libvirt_host::LibvirtHostSpec;
use common::api::normalized::Normalized;
use common::host_uri::{Driver, HostUri};
use common::render::libvirt::{
    CpuMode, Difference, Domain, DomainInput as Wish, DomainMetadata, LiveUpdate, NicAttachment,
    PoolVolume, SeedRecord, VirtType, VolumeFormat, VolumeRecord, domain,
};

use super::power::{Power, power};
use super::seed::seed;
use super::status::{Facts, report};
use super::volumes::{Volumes, uses, volumes};
use super::{Action, Guest, Observed, Place, Plan, Site};
use crate::placement::{attach, choose};
use controller_core::addresses::address_conflict;
use controller_core::conditions::{Fault, Outcome, not_normalized};
use controller_core::machine::{Block, Machine};
use controller_core::objects::Meta as _;
use controller_core::plan::{Now, Refusal, Subject};

/// A change that libvirt carries out by asking the guest is looked at again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

pub(crate) fn plan(
    machine: &Machine,
    observed: &Observed,
    refusal: Option<&Refusal>,
    now: Now,
) -> Plan {
    let block = match &machine.block {
        Block::Matching(block) => block,
        unfit => {
            let facts = Facts {
                unfit: Some(not_normalized(unfit)),
                ..Facts::default()
            };
            return report(machine, observed, now, &facts, vec![]);
        }
    };
    let facts = Facts {
        block: Some(block),
        paused: machine.is_paused(),
        ..Facts::default()
    };
    match &observed.place {
        Place::Nowhere(hosts) => {
            if facts.paused {
                return report(machine, observed, now, &facts, vec![]);
            }
            match choose(block, &observed.networks, hosts) {
                Ok(host) => Plan {
                    actions: vec![Action::Bind {
                        host: host.to_owned(),
                    }],
                    requeue_after: Some(Duration::ZERO),
                    ..Plan::default()
                },
                Err(why) => {
                    let facts = Facts {
                        guest: Fault::new("NoHostFits", why).into(),
                        ..facts
                    };
                    report(machine, observed, now, &facts, vec![])
                }
            }
        }
        Place::Unreachable { host, why } => {
            let facts = Facts {
                away: Some(Fault::new(
                    "HostUnreachable",
                    format!(
                        "LibvirtHost '{host}' cannot be asked, so nothing is known of the guest: {why}"
                    ),
                )),
                ..facts
            };
            report(machine, observed, now, &facts, vec![])
        }
        Place::On(site) => on(machine, block, observed, site, facts, refusal, now),
    }
}

fn on<'a>(
    machine: &Machine,
    block: &'a Normalized,
    observed: &Observed,
    site: &Site,
    mut facts: Facts<'a>,
    refusal: Option<&Refusal>,
    now: Now,
) -> Plan {
    facts.maintenance = site.spec.maintenance == Some(true);
    let is_left_alone = facts.paused || facts.maintenance;
    let guest = site.guest.as_ref();
    if guest.is_some_and(|guest| !guest.belongs_to(machine)) {
        facts.guest = Fault::new(
            "NameConflict",
            format!(
                "a domain of the Machine's uuid is on LibvirtHost '{}' and does not carry its mark: undefine or rename it there; it is left untouched",
                site.host
            ),
        )
        .into();
        return report(machine, observed, now, &facts, vec![]);
    }
    let (attached, network) = networks(block, observed, site);
    facts.network = network;
    if let Some(fault) = address_conflict(machine, block, &observed.conflicts, &observed.cluster) {
        facts.network.worsen(fault);
    }
    let volumes = volumes(machine, block, site);
    let seed = seed(machine, block, site, observed);
    let held = facts.network.fault.is_some()
        || volumes.outcome.fault.is_some()
        || volumes.import.is_some()
        || seed.is_err();
    let (seed, writes_seed) = match seed {
        Ok(seed) => seed,
        Err(fault) => {
            facts.guest.worsen(fault);
            (None, None)
        }
    };
    let wish = (!held).then(|| {
        let wired = Wired {
            volumes: &volumes,
            networks: &attached,
            seed: seed.as_ref(),
        };
        render(machine, block, observed, site, &wired)
    });
    let mut steps = Steps::default();
    steps.actions.extend(volumes.actions.iter().cloned());
    steps.actions.extend(writes_seed);
    let refused = refusal.map(|refusal| refusal.subject);
    let is_refused = refused == Some(Subject::Guest);
    if let (Some(wish), Some(runs)) = (&wish, guest.and_then(|guest| guest.runs.as_ref())) {
        facts.changes = wish.differences_from(runs);
    }
    if let Some(wish) = wish.as_ref().filter(|_| !is_refused) {
        steps.shape(wish, guest, &facts.changes);
    }
    if let Some(guest) = guest {
        let mark = wish
            .as_ref()
            .and_then(|wish| wish.metadata.as_ref())
            .or(guest.mark.as_ref());
        let power = power(
            machine,
            block,
            guest,
            &mark.cloned().unwrap_or_default(),
            now,
        );
        facts.restart.clone_from(&power.last);
        facts.stays_off = power.stays_off;
        if power.died {
            facts.guest.worsen(died(&site.host));
        }
        facts.restarts = power.restarts;
        steps.switch(power, wish.is_some() && !is_refused);
        steps
            .actions
            .extend(farewells(guest, &volumes, seed.as_ref()));
    }
    steps.actions.extend(volumes.growth);
    if volumes.import.is_some() {
        steps.requeue_after = Some(LOOK_AGAIN);
    }
    facts.storage = volumes.outcome;
    facts.import = volumes.import;
    facts.volumes = volumes.told;
    facts.growing = volumes.growing;
    if let Some(refusal) = refusal {
        let (outcome, reason) = match refusal.subject {
            Subject::Network => (&mut facts.network, "NetworkFailed"),
            Subject::Storage => (&mut facts.storage, "VolumeFailed"),
            Subject::Machine | Subject::Guest => (&mut facts.guest, "VMFailed"),
        };
        outcome.worsen(Fault::new(reason, refusal.message.clone()));
    }
    if is_left_alone {
        facts.restart = None;
        return report(machine, observed, now, &facts, vec![]);
    }
    let mut plan = report(machine, observed, now, &facts, steps.actions);
    plan.requeue_after = plan.requeue_after.or(steps.requeue_after);
    plan
}

fn died(host: &str) -> Fault {
    let message = format!(
        "the guest's QEMU died: its log on LibvirtHost '{host}' (/var/log/libvirt/qemu) tells why; it is started again every half minute"
    );
    Fault::new("VMFailed", message)
}

/// What is to be done, and when to look at what came of it.
#[derive(Debug, Default)]
struct Steps {
    actions: Vec<Action>,
    requeue_after: Option<Duration>,
}

impl Steps {
    /// The definition first: what is plugged in then sits where it will after a restart.
    fn shape(&mut self, wish: &Domain, guest: Option<&Guest>, changes: &[Difference]) {
        if guest.and_then(|guest| guest.defined.as_ref()) != Some(wish) {
            self.actions.push(Action::Define(Box::new(wish.clone())));
            self.requeue_after = Some(Duration::ZERO);
            return;
        }
        for live in changes.iter().filter_map(|change| change.live.as_ref()) {
            // A balloon takes what time it takes, and a guest without one has none.
            if !matches!(live, LiveUpdate::SetMemory(_)) {
                self.requeue_after = Some(LOOK_AGAIN);
            }
            self.actions.push(Action::Plug(Box::new(live.clone())));
        }
    }

    /// A guest is not started while something it needs is not there. It is always switched off.
    fn switch(&mut self, power: Power, may_start: bool) {
        let starts = power
            .actions
            .iter()
            .any(|step| matches!(step, Action::Start { .. }));
        if may_start || !starts {
            self.actions.extend(power.actions);
            self.requeue_after = self.requeue_after.or(power.requeue_after);
        }
    }
}

/// What the guest is connected to.
struct Wired<'a> {
    volumes: &'a Volumes,
    networks: &'a BTreeMap<String, NicAttachment>,
    seed: Option<&'a SeedRecord>,
}

/// How each card is attached.
fn networks(
    block: &Normalized,
    observed: &Observed,
    site: &Site,
) -> (BTreeMap<String, NicAttachment>, Outcome) {
    let (mut attached, mut outcome) = (BTreeMap::new(), Outcome::default());
    for nic in &block.networks {
        let name = nic.network_name.as_ref();
        let network = name.and_then(|name| observed.networks.get(name));
        if let Some(name) = name.filter(|_| network.is_none()) {
            outcome.worsen(Fault::new(
                "NetworkConfigurationNotFound",
                format!(
                    "NetworkConfiguration '{name}' of network card '{}' not found: create it, or change spec.networks; the Machine goes on by itself when it appears",
                    nic.name
                ),
            ));
            continue;
        }
        match attach(&site.spec, network.map(|network| &network.spec)) {
            Ok(wire) => {
                attached.insert(nic.name.clone(), wire);
            }
            Err(lacks) => outcome.worsen(Fault::new(
                "NetworkFailed",
                format!(
                    "network card '{}' cannot be attached: LibvirtHost '{}' {lacks}: add it to spec.networks of the host",
                    nic.name, site.host
                ),
            )),
        }
    }
    (attached, outcome)
}

fn virt_type(spec: &LibvirtHostSpec) -> VirtType {
    let uri = spec.uri.parse::<HostUri>();
    if uri.is_ok_and(|uri| uri.driver() == Driver::Test) {
        return VirtType::Test;
    }
    match spec.virt_type {
        Wished::Kvm => VirtType::Kvm,
        Wished::Qemu => VirtType::Qemu,
    }
}

/// Absent: the host's own processor, where it runs the guest; else all that is emulated.
fn cpu_mode(spec: &LibvirtHostSpec) -> CpuMode {
    spec.cpu_mode.unwrap_or(match spec.virt_type {
        Wished::Kvm => CpuMode::HostPassthrough,
        Wished::Qemu => CpuMode::Maximum,
    })
}

/// The domain that is wished, with what stays as it is.
fn render(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    site: &Site,
    wired: &Wired<'_>,
) -> Domain {
    let Wired {
        volumes,
        networks,
        seed,
    } = *wired;
    let seed_at = seed.map(|seed| PoolVolume {
        pool: seed.pool.clone(),
        volume: seed.volume.clone(),
        format: VolumeFormat::Raw,
    });
    let mut wish = domain(&Wish {
        machine: machine.identity(&observed.cluster),
        block,
        virt_type: virt_type(&site.spec),
        cpu_mode: cpu_mode(&site.spec),
        volumes: &volumes.placed,
        networks,
        seed: seed_at.as_ref(),
    });
    let guest = site.guest.as_ref();
    if let Some(current) = guest.and_then(|guest| guest.defined.as_ref()) {
        wish = wish.preserving(current);
    }
    let old = guest.and_then(|guest| guest.mark.as_ref());
    let wished = &volumes.kept;
    let let_go = old.into_iter().flat_map(|mark| &mark.volumes);
    let let_go = let_go.filter(|old| wished.iter().all(|kept| kept.volume != old.volume));
    let let_go = let_go.filter(|old| {
        site.volumes
            .contains_key(&(old.pool.clone(), old.volume.clone()))
    });
    let kept: Vec<VolumeRecord> = wished.iter().chain(let_go).cloned().collect();
    // Secure boot takes effect with new firmware settings only.
    let is_other = |domain: &Domain| domain.firmware != wish.firmware;
    let reset_nvram = if let Some(runs) = guest.and_then(|guest| guest.runs.as_ref()) {
        is_other(runs)
    } else {
        let defined = guest.and_then(|guest| guest.defined.as_ref());
        old.is_some_and(|old| old.reset_nvram) || defined.is_some_and(is_other)
    };
    wish.metadata = Some(DomainMetadata {
        namespace: machine.namespace().to_owned(),
        name: machine.name().to_owned(),
        uid: machine.uid().to_owned(),
        volumes: kept,
        seed: seed.cloned(),
        intent: old.and_then(|old| old.intent.clone()),
        reset_nvram,
    });
    wish
}

/// Volumes that are no longer wished, once neither the definition nor the guest has them. What is kept stays.
fn farewells(guest: &Guest, volumes: &Volumes, seed: Option<&SeedRecord>) -> Vec<Action> {
    let Some(mark) = &guest.mark else {
        return vec![];
    };
    let is_used = |name: &str| {
        [&guest.defined, &guest.runs]
            .into_iter()
            .flatten()
            .any(|domain| uses(domain, name))
    };
    let disks = mark.volumes.iter();
    let gone = disks.filter(|old| volumes.kept.iter().all(|kept| kept.volume != old.volume));
    let gone = gone.filter(|old| super::delete::is_to_go(old) && !is_used(&old.volume));
    let gone = gone.map(|old| (old.pool.clone(), old.volume.clone()));
    // A seed that another one has replaced.
    let old = mark
        .seed
        .as_ref()
        .filter(|old| seed.is_none_or(|seed| seed.volume != old.volume));
    let old = old.filter(|old| !is_used(&old.volume));
    let old = old.map(|old| (old.pool.clone(), old.volume.clone()));
    gone.chain(old)
        .map(|(pool, name)| Action::DeleteVolume { pool, name })
        .collect()
}
