//! The shared import of a MachineImage, which a volume is a clone of.
//!
//! ```text
//! no import ─▶ DataVolume in the namespace of images ─▶ finished ─▶ DataVolume of the Machine, a clone of it
//! ```
//! A clone is made only of a finished import. If the import goes while the clone is under way, it is made again: CDI
//! continues the clone then.

use common::render::kubevirt::{Volume, import_name, shared_import};

use super::action::Action;
use super::import::{FAILED, missing_profile_hint};
use super::observed::Observed;
use super::volume::Found;
use crate::objects::DataVolume;
use controller_core::conditions::Fault;
use controller_core::objects::Meta as _;

/// What has to be done, or waited for, before the volume can be made. `None`: nothing.
pub(super) fn prerequisite(
    volume: &Volume<'_>,
    observed: &Observed,
) -> Option<Result<Found, Fault>> {
    let name = import_name(&volume.disk)?;
    let Some(import) = observed.imports.get(&name) else {
        return Some(Ok(Found {
            actions: create(volume, observed),
            import: Some(underway(volume, &name, "", observed)),
            ..Found::default()
        }));
    };
    if !import.is_shared_import() {
        return Some(Err(Fault::new(
            "NameConflict",
            format!(
                "DataVolume {name} in namespace {} exists and is no import of this controller: delete it; it is left untouched",
                observed.image_namespace
            ),
        )));
    }
    if import.is_finished() && !import.is_deleting() {
        return None;
    }
    if import.has_failed() {
        return Some(Err(failed(volume, &name, import, observed)));
    }
    let fault = if import.is_failing() && !import.is_deleting() {
        let text = import.message().unwrap_or("CDI gives no reason");
        Fault::new(
            FAILED,
            format!(
                "{} cannot be imported into DataVolume {name} in namespace {}, CDI tries again: {text}",
                title(volume),
                observed.image_namespace
            ),
        )
    } else {
        let text = import
            .message()
            .map(|text| format!("; CDI reports: {text}"));
        underway(volume, &name, &text.unwrap_or_default(), observed)
    };
    Some(Ok(Found {
        import: Some(fault),
        ..Found::default()
    }))
}

/// Creates the import again if it went before the clone of it was complete.
pub(super) fn again(volume: &Volume<'_>, observed: &Observed) -> Vec<Action> {
    let name = import_name(&volume.disk);
    if name.is_some_and(|name| !observed.imports.contains_key(&name)) {
        return create(volume, observed);
    }
    vec![]
}

/// Progress of the import that a volume waits for, in percent.
pub(super) fn progress(volume: &Volume<'_>, observed: &Observed) -> Option<String> {
    let import = observed.imports.get(&import_name(&volume.disk)?)?;
    import.progress().filter(|_| !import.is_finished())
}

fn create(volume: &Volume<'_>, observed: &Observed) -> Vec<Action> {
    let import = shared_import(&observed.image_namespace, &volume.disk);
    import.map(Action::CreateImport).into_iter().collect()
}

fn title(volume: &Volume<'_>) -> String {
    let image = volume.disk.image.as_ref();
    let name = image.and_then(|image| image.name.as_deref());
    format!(
        "MachineImage '{}' of '{}'",
        name.unwrap_or_default(),
        volume.disk.name
    )
}

fn underway(volume: &Volume<'_>, name: &str, text: &str, observed: &Observed) -> Fault {
    let message = format!(
        "{} is being imported for StorageClass '{}', once for all Machines, by DataVolume {name} in namespace {}{text}{}",
        title(volume),
        volume.disk.storage_class,
        observed.image_namespace,
        missing_profile_hint(volume, observed)
    );
    Fault::new("ImageImporting", message)
}

fn failed(volume: &Volume<'_>, name: &str, import: &DataVolume, observed: &Observed) -> Fault {
    let text = import.message().unwrap_or("CDI gives no reason");
    let namespace = &observed.image_namespace;
    Fault::new(
        FAILED,
        format!(
            "CDI has given up importing {} ({text}): kubectl delete datavolume -n {namespace} {name}, and the import starts again",
            title(volume)
        ),
    )
}
