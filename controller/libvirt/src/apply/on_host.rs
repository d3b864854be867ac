//! What one action does on a host, after its preconditions were checked there.

use common::quantity::Bytes;
use common::render::libvirt::{
    AppliedPassword, LiveUpdate, VolumeFormat, VolumeSpec, is_seed, is_volume_of,
    screen_with_password, volume_xml,
};
use controller_core::backend::Act as _;
use controller_core::preconditions::Effect;
use uuid::Uuid;

use crate::access::{AccessError, Connection, FirmwareState, Result, Shutdown, VolumeKey};
use crate::dhcp::{reserve, undefine};
use crate::domain_effects::{check_domain, check_hardware, defined, parsed};
use crate::existing_disks::check_free;
use crate::guard::Guard;
use crate::images::check::{check_image, check_medium};
use crate::images::names::{base_of, is_attempt, is_attempt_of, marker, marker_xml};
use crate::parts::pool_type_fault;
use crate::plan::action::{Action, DisplayPassword, GrownVolume, SeedContent};
use crate::plan::disks::uses;
use crate::pool_space::StorageFactor;
use crate::reservations::{RequestedVolume, Reservations, Reserved};
use crate::volume_effects::{Removal, check_new, remove_unneeded, remove_volume};

/// The Machine that a job is about.
#[derive(Debug)]
pub(crate) struct Job {
    /// Uuid of the Machine's domain.
    pub(crate) uuid: Uuid,
    /// Uid of the Machine.
    pub(crate) owner: String,
    /// Name of the Machine's domain.
    pub(crate) domain: String,
    /// Checked before each effect.
    pub(crate) guard: Guard,
    /// Overcommitment of the host's storage.
    pub(crate) factor: StorageFactor,
    /// Room that jobs of the host are about to take.
    pub(crate) reservations: Reservations,
}

impl Job {
    /// Room for a volume, until the result is dropped.
    fn reserve(&self, host: &mut dyn Connection, wanted: RequestedVolume<'_>) -> Result<Reserved> {
        let reserved = self.reservations.reserve(host, self.factor, wanted)?;
        // A refresh of a large pool takes seconds.
        self.guard.check()?;
        Ok(reserved)
    }

    fn reserve_growth(&self, host: &mut dyn Connection, volume: &GrownVolume) -> Result<Reserved> {
        let wanted = RequestedVolume {
            pool: &volume.pool,
            volume: &volume.name,
            size: Bytes::new(u128::from(volume.bytes)),
            is_overlay: volume.is_overlay,
        };
        self.reserve(host, wanted)
    }
}

/// Effects on a domain, which has to be the Machine's.
const ON_DOMAIN: [Effect; 8] = [
    Effect::Define,
    Effect::Grow,
    Effect::Record,
    Effect::Start,
    Effect::Stop,
    Effect::Reset,
    Effect::Undefine,
    Effect::Migrate,
];

/// Carries out an action on its host. Nothing is done unless every precondition of its effect holds now.
pub(crate) fn act(host: &mut dyn Connection, job: &Job, action: Action) -> Result<()> {
    let Job { uuid, guard, .. } = job;
    let uuid = *uuid;
    guard.check()?;
    if let Some(effect) = action.effect().filter(|it| ON_DOMAIN.contains(it)) {
        // A volume grows also before the domain is defined, while another one is still made.
        let may_be_absent = matches!(action, Action::Define(_) | Action::GrowVolume(_));
        check_domain(host, guard, effect, &job.owner, may_be_absent)?;
        check_exclusive(host, job, &action)?;
    }
    match action {
        Action::CreateVolume {
            pool,
            name,
            size,
            xml,
            image,
        } => {
            if let Some(image) = &image {
                check_image(host, image)?;
            }
            let wanted = RequestedVolume {
                pool: &pool,
                volume: &name,
                size,
                is_overlay: image.is_some(),
            };
            let _reserved = job.reserve(host, wanted)?;
            host.create_volume(&pool, &xml).map(drop)
        }
        Action::CopyVolume {
            pool,
            name,
            size,
            xml,
            image,
        } => {
            remove_old_attempts(host, guard, &pool, &name)?;
            check_image(host, &image)?;
            let wanted = RequestedVolume {
                pool: &pool,
                volume: &name,
                size,
                is_overlay: false,
            };
            let _reserved = job.reserve(host, wanted)?;
            check_new(host, guard, &pool, &name)?;
            host.copy_volume(&pool, &xml, (&image.pool, &image.volume))?;
            guard.check()?;
            host.create_volume(&pool, &marker_xml(&name)).map(drop)
        }
        Action::GrowDisk { target, volume } => {
            let _reserved = job.reserve_growth(host, &volume)?;
            host.resize_disk(uuid, &target, volume.bytes)
        }
        Action::GrowVolume(volume) => {
            let _reserved = job.reserve_growth(host, &volume)?;
            check_not_running(host, uuid, &volume.name)?;
            // Again, because finding room may take seconds.
            guard.check_only_definition()?;
            grow_volume(host, (&volume.pool, &volume.name), volume.bytes)
        }
        Action::CreateSeed {
            pool,
            name,
            current,
            content,
        } => create_seed(host, job, (&pool, &name), current.as_deref(), &content),
        Action::Define(domain) => {
            for disk in &domain.disks {
                check_medium(host, disk)?;
            }
            guard.check()?;
            host.define(&domain.xml())
        }
        Action::SetMetadata(metadata) => host.set_metadata(uuid, Some(&metadata.xml())),
        Action::HotPlug(change) => hot_plug(host, uuid, &change),
        Action::SetDisplayPassword {
            socket,
            password,
            applied,
        } => set_display_password(host, uuid, (&socket, &password), applied.as_ref()),
        Action::SetDhcpHosts { remove, add } => reserve(host, guard, &remove, &add),
        Action::DeleteConsoleLog { pool, name } => delete_console_log(host, job, &pool, &name),
        Action::Start { reset_nvram } => host.start(uuid, reset_nvram),
        Action::AskToStop { agent } => ask_to_stop(host, job, agent),
        Action::Destroy => host.destroy(uuid),
        Action::Reset => host.reset(uuid),
        Action::Undefine(state) => undefine(host, guard, uuid, state),
        Action::Leave { log, .. } => undefine_moved_domain(host, job, log.as_ref()),
        Action::DeleteVolume(removal) => remove_volume(host, guard, Effect::DeleteVolume, &removal),
        Action::Bind { .. }
        | Action::MoveTo { .. }
        | Action::RemoveAnnotation(_)
        | Action::RecordKept { .. }
        | Action::ReleaseKept(_)
        | Action::RecordOrphan { .. }
        | Action::FetchImage { .. } => Ok(()),
    }
}

/// Asks the guest to shut down: by its agent, or by the power button if that does not answer within seconds.
fn ask_to_stop(host: &mut dyn Connection, job: &Job, agent: bool) -> Result<()> {
    if agent && host.shutdown(job.uuid, Shutdown::Agent).is_ok() {
        return Ok(());
    }
    job.guard.check()?;
    host.shutdown(job.uuid, Shutdown::Acpi)
}

/// Removes the definition of a Machine that is moved away, with the log of its console. Nothing that is kept on this host
/// alone may be lost with the definition.
fn undefine_moved_domain(
    host: &mut dyn Connection,
    job: &Job,
    log: Option<&VolumeKey>,
) -> Result<()> {
    undefine(host, &job.guard, job.uuid, FirmwareState::RemoveAlone)?;
    if let Some((pool, name)) = log
        && let Err(error) = delete_console_log(host, job, pool, name)
    {
        // The definition is gone, so the move goes on.
        tracing::warn!(%error, pool, name, "the log of a console stays on the host");
    }
    Ok(())
}

/// Fails if another guest has an existing disk, a device or a CPU of the host that the guest would have for itself.
fn check_exclusive(host: &mut dyn Connection, job: &Job, action: &Action) -> Result<()> {
    let guest = (job.uuid, job.domain.as_str());
    match action {
        Action::Define(domain) => {
            check_free(host, &job.guard, guest, &domain.disks)?;
            check_hardware(host, job.uuid, domain)?;
        }
        Action::Start { .. } => {
            if let Some(domain) = defined(host, job.uuid)? {
                check_free(host, &job.guard, guest, &domain.disks)?;
                check_hardware(host, job.uuid, &domain)?;
            }
        }
        Action::HotPlug(change) => match &**change {
            LiveUpdate::AttachDisk(disk) => check_free(host, &job.guard, guest, [disk])?,
            _ => return Ok(()),
        },
        _ => return Ok(()),
    }
    // A refresh of many pools takes seconds.
    job.guard.check()?;
    job.guard.check_only_definition()
}

fn set_display_password(
    host: &mut dyn Connection,
    uuid: Uuid,
    (socket, password): (&str, &DisplayPassword),
    applied: Option<&AppliedPassword>,
) -> Result<()> {
    let device = screen_with_password(socket, &password.0);
    let applied = applied.map(AppliedPassword::xml);
    host.set_display_password(uuid, &device, applied.as_deref())
}

/// libvirt learns of the file, which QEMU made, by a refresh of the pool. If libvirt no longer has the pool, the log
/// counts as deleted. The deletion of the Machine waits neither for it nor for another pool, which has to be read
/// before any volume is deleted: a log holds no data of a guest.
fn delete_console_log(host: &mut dyn Connection, job: &Job, pool: &str, name: &str) -> Result<()> {
    match host.refresh(pool) {
        Err(AccessError::Absent(_) | AccessError::Refused(_)) => return Ok(()),
        refreshed => refreshed?,
    }
    let removal = Removal {
        pool: pool.to_owned(),
        name: name.to_owned(),
        key: None,
        is_owned: is_volume_of(name, &job.domain),
        is_deletable: true,
    };
    match remove_volume(host, &job.guard, Effect::DeleteVolume, &removal) {
        Err(AccessError::Refused(why)) => {
            tracing::warn!(why, "the log of a console stays on the host");
            Ok(())
        }
        removed => removed,
    }
}

/// Fails if the guest runs with a volume: QEMU keeps the size that it has opened, so the volume grows through the guest then.
fn check_not_running(host: &mut dyn Connection, uuid: Uuid, name: &str) -> Result<()> {
    let live = host.domain(uuid)?.and_then(|found| found.live);
    let live = live.as_deref().map(parsed).transpose()?;
    if live.is_some_and(|domain| uses(&domain, name)) {
        return Err(AccessError::Changed(format!(
            "the guest was started with volume '{name}'; it grows through the guest"
        )));
    }
    Ok(())
}

/// Grows a volume that no running guest uses. libvirt has qemu-img grow what it takes for a qcow2: that changes the
/// header that the guest wrote, and opens every file that it names.
fn grow_volume(host: &mut dyn Connection, (pool, name): (&str, &str), bytes: u64) -> Result<()> {
    let volume = host.volume(pool, name)?;
    if volume.is_some_and(|volume| volume.is_misread) {
        return Err(AccessError::Changed(format!(
            "the guest wrote the header of an image into volume {pool}/{name}; it grows when the guest runs"
        )));
    }
    host.resize_volume(pool, name, bytes)
}

/// Removes earlier attempts at a copy that have no marker: an interrupted copy is never used. One that cannot be
/// removed now is removed with the next copy, or with the Machine.
fn remove_old_attempts(
    host: &mut dyn Connection,
    guard: &Guard,
    pool: &str,
    name: &str,
) -> Result<()> {
    let volumes = host.volumes(pool)?;
    let is_complete = |name: &str| volumes.iter().any(|volume| volume.name == marker(name));
    let old = volumes.iter().filter(|volume| {
        is_attempt(&volume.name)
            && is_attempt_of(&volume.name, base_of(name))
            && volume.name != name
            && !is_complete(&volume.name)
    });
    for why in remove_unneeded(host, guard, Effect::RemoveImage, pool, old)? {
        tracing::warn!(why, "an interrupted copy is kept");
    }
    Ok(())
}

fn create_seed(
    host: &mut dyn Connection,
    job: &Job,
    (pool, name): (&str, &str),
    current: Option<&str>,
    content: &SeedContent,
) -> Result<()> {
    if let Some(why) = pool_type_fault(&host.pools()?, pool) {
        return Err(AccessError::Refused(why));
    }
    remove_old_seeds(host, job, pool, current)?;
    check_new(host, &job.guard, pool, name)?;
    let length = u64::try_from(content.0.len()).unwrap_or(u64::MAX);
    host.create_volume(pool, &seed_xml(name, length))?;
    host.upload(pool, name, &mut content.0.as_slice(), length)
}

/// Removes seeds of the Machine that were written before and that no domain has. One that cannot be removed now is
/// removed with the next seed, or with the Machine.
fn remove_old_seeds(
    host: &mut dyn Connection,
    job: &Job,
    pool: &str,
    current: Option<&str>,
) -> Result<()> {
    let volumes = host.volumes(pool)?;
    let old = volumes.iter().filter(|volume| {
        is_volume_of(&volume.name, &job.domain)
            && is_seed(&volume.name)
            && Some(volume.name.as_str()) != current
    });
    for why in remove_unneeded(host, &job.guard, Effect::DeleteVolume, pool, old)? {
        tracing::debug!(why, "an old seed is kept");
    }
    Ok(())
}

fn hot_plug(host: &mut dyn Connection, uuid: Uuid, change: &LiveUpdate) -> Result<()> {
    match change {
        LiveUpdate::AttachDisk(disk) => host.attach(uuid, &disk.xml()),
        LiveUpdate::DetachDisk(disk) => host.detach(uuid, &disk.xml()),
        LiveUpdate::AttachNic(nic) => host.attach(uuid, &nic.xml()),
        LiveUpdate::DetachNic(nic) => host.detach(uuid, &nic.xml()),
        LiveUpdate::ChangeMedium(disk) => {
            check_medium(host, disk)?;
            host.update(uuid, &disk.xml())
        }
        LiveUpdate::SetVcpus(count) => host.set_vcpus(uuid, *count),
        LiveUpdate::SetMemory(kib) => host.set_memory(uuid, *kib),
    }
}

/// The volume of a seed.
fn seed_xml(name: &str, length: u64) -> String {
    volume_xml(&VolumeSpec {
        name,
        format: VolumeFormat::Raw,
        capacity: Bytes::new(u128::from(length)),
        backing: None,
    })
}
