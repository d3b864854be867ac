//! Disks on existing claims: a disk stays on what it is on, as one with a volume of its own keeps that.

use crate::catalog::Catalog;
use crate::rules::rule::Update;
use crate::violation::Findings;
use crate::words::quoted;

use super::effects::Field;
use super::refused::{Change, is_known, none};

/// Rule `DiskChanged` for what existing disks are on.
pub(super) fn sources(update: &Update<'_>, _: &dyn Catalog, findings: &mut Findings) {
    for item in &update.merged.disks {
        let Some(name) = item.name().value else {
            continue;
        };
        let was_own = update.old.disks.iter().any(|disk| disk.name == name);
        let mut stored = update.old.existing_disks.iter();
        let stored = stored.find(|disk| disk.name == name);
        let claim = item.pick("claimName", |disk| disk.claim_name.clone());
        if stored.is_none() && !(was_own && claim.value.is_some()) {
            continue;
        }
        let old = stored.map(|disk| disk.claim_name.clone());
        let known = is_known(&claim, update.merged).then_some(&claim.value);
        let change = Change::of(Field::DiskClaimName, claim.path, &old, known, |name| {
            name.as_deref().map_or_else(none, quoted)
        });
        if let Some(change) = change {
            change.deny_for_volume(name, findings);
        }
    }
}
