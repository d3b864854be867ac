//! Volumes of a Machine under deletion that its pool does not show, although nobody has deleted them as far as is known.
//!
//! A pool whose file system is not mounted is active and empty: libvirt starts it like that after a restart of the host. A
//! deletion that took its volumes for gone would leave no record of them.
//!
//! A domain is defined only after its volumes were made, and a deletion removes the definition before the first volume. So
//! while there is a domain, each volume that its metadata records was there, and this deletion has not deleted it. Without a
//! domain that is not known: the volumes may have been deleted in a former pass.

use common::names;
use common::render::libvirt::{DomainMetadata, VolumeRecord, is_volume_of};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::disks::recorded;
use crate::names::domain_of;
use crate::observed::HostView;

/// Annotations that confirm of a disk that its volume is gone, or that it may go.
const CONFIRMATIONS: [&str; 2] = [
    names::ANNOTATION_RECREATE_VOLUME,
    names::ANNOTATION_RELEASE_VOLUME,
];

/// The recorded volumes in pools that can be read and show no volume of the Machine.
pub(super) fn unseen(
    machine: &Machine,
    view: &HostView,
    metadata: Option<&DomainMetadata>,
) -> Vec<VolumeRecord> {
    let domain = domain_of(machine);
    let shows_any = |pool: &str| {
        let mut shown = view.volumes.keys().filter(|(of, _)| of == pool);
        shown.any(|(_, name)| is_volume_of(name, &domain))
    };
    let is_confirmed = |disk: &str| {
        let mut named = CONFIRMATIONS
            .iter()
            .flat_map(|annotation| machine.named_in(annotation));
        named.any(|name| name == disk)
    };
    let records = metadata.map(|metadata| recorded(machine, metadata, &view.spec));
    let mut records = records.unwrap_or_default();
    records.retain(|record| {
        !view.unreadable_pools.contains_key(&record.pool)
            && !shows_any(&record.pool)
            && !is_confirmed(&record.disk)
    });
    records
}
