//! Disks on existing claims and volumes: the claim or volume of such a disk cannot change, and a disk with a volume of
//! its own cannot get an existing one.

use crate::api::choice::Backend;
use crate::catalog::Catalog;
use crate::normalize::Leaf;
use crate::rules::disks::existing;
use crate::rules::rule::Update;
use crate::violation::Findings;
use crate::words::quoted;

use super::effects::Field;
use super::refused::{Change, is_known, none};

/// Rule `DiskChanged` for what existing disks are on.
pub(super) fn sources(update: &Update<'_>, _: &dyn Catalog, findings: &mut Findings) {
    // A move to another backend is refused as such.
    if update.old.backend != update.backend {
        return;
    }
    for item in &update.merged.disks {
        let Some(name) = item.name().value else {
            continue;
        };
        let was_own = update.old.disks.iter().any(|disk| disk.name == name);
        let mut stored = update.old.existing_disks.iter();
        let stored = stored.find(|disk| disk.name == name);
        let source = existing::source(item, update.backend);
        let source = Leaf {
            value: source.value.map(str::to_owned),
            path: source.path,
        };
        if stored.is_none() && !(was_own && source.value.is_some()) {
            continue;
        }
        let field = match update.backend {
            Backend::Kubevirt => Field::DiskClaimName,
            Backend::Libvirt => Field::DiskVolumeName,
        };
        let old = stored.map(|disk| disk.source().to_owned());
        let known = is_known(&source, update.merged).then_some(&source.value);
        let change = Change::of(field, source.path, &old, known, |name| {
            name.as_deref().map_or_else(none, quoted)
        });
        if let Some(change) = change {
            change.deny_for_volume(name, findings);
        }
    }
}
