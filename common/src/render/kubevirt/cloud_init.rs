//! Where KubeVirt is given the data for cloud-init.
//!
//! ```text
//! inline, ≤ 2048 bytes ────────────────▶ in the VirtualMachine, as the user wrote it
//! inline, longer ──────────────────────▶ our Secret
//! Secret, KubeVirt's own key ──────────▶ referred to
//! Secret, another key ─────────────────▶ copied into our Secret
//! any metaData ────────────────────────▶ all of it in our Secret, as files of a `cidata` volume
//! ```
//! KubeVirt's NoCloud volume has no meta-data of its own, so with meta-data the volume is ours.

use std::collections::BTreeMap;

use super::identity::{machine_owner, metadata};
use super::types::{LocalReference, NoCloud, Secret, SecretVolume, Volume};
use crate::names;
use crate::render::cloud_init::{CloudInitPlan, Part, Reading, SecretKey, Source, meta_data};
use crate::render::identity::Identity;

/// Label by which cloud-init finds its volume.
const VOLUME_LABEL: &str = "cidata";

impl CloudInitPlan {
    /// Our Secret, when one is needed, with the contents of the user's Secrets as `read`. `None`
    /// also when one of these is not there.
    pub fn secret<'a>(
        &self,
        machine: &Identity<'_>,
        read: impl Fn(&SecretKey) -> Option<&'a Reading>,
    ) -> Option<Secret> {
        if !self.needs_secret() {
            return None;
        }
        let mut data = BTreeMap::new();
        for (part, source) in self.moved() {
            let name = if self.meta.is_some() {
                part.file()
            } else {
                part.key()
            };
            let content = match source {
                Source::Inline(text) => text.clone().into_bytes(),
                Source::Secret(secret) => read(secret)?.content.clone(),
            };
            data.insert(name.to_owned(), content);
        }
        if let Some(meta) = &self.meta {
            // NoCloud needs both files, even when one has nothing to say.
            data.entry(Part::User.file().to_owned()).or_default();
            let instance = machine.firmware_uuid().to_string();
            let content = meta_data(meta, &instance, machine.name);
            data.insert("meta-data".to_owned(), content);
        }
        let mut metadata = metadata(machine, names::cloud_init_secret(machine.name));
        metadata.owner_references = vec![machine_owner(machine)];
        metadata
            .annotations
            .insert(names::ANNOTATION_RENDERED.to_owned(), self.digest());
        let marks = self.marks(&BTreeMap::new(), |secret| Some(read(secret)?.mark.clone()));
        metadata.annotations.extend(marks);
        Some(Secret { metadata, data })
    }

    /// The volume of the VirtualMachine.
    pub(super) fn volume(&self, machine: &Identity<'_>) -> Option<Volume> {
        let volume = Volume {
            name: names::CLOUD_INIT_DISK.to_owned(),
            ..Volume::default()
        };
        let ours = names::cloud_init_secret(machine.name);
        if self.meta.is_some() {
            return Some(Volume {
                secret: Some(SecretVolume {
                    secret_name: ours,
                    volume_label: VOLUME_LABEL.to_owned(),
                }),
                ..volume
            });
        }
        let mut no_cloud = NoCloud::default();
        for (part, source) in self.parts() {
            let (inline, reference) = match part {
                Part::User => (&mut no_cloud.user_data, &mut no_cloud.secret_ref),
                Part::Network => (
                    &mut no_cloud.network_data,
                    &mut no_cloud.network_data_secret_ref,
                ),
            };
            match source {
                _ if !self.stays(part, source) => {
                    *reference = Some(LocalReference { name: ours.clone() });
                }
                Source::Inline(text) => *inline = Some(text.clone()),
                Source::Secret(secret) => {
                    *reference = Some(LocalReference {
                        name: secret.name.clone(),
                    });
                }
            }
        }
        (no_cloud != NoCloud::default()).then_some(Volume {
            cloud_init_no_cloud: Some(no_cloud),
            ..volume
        })
    }
}
