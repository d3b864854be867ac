//! Where KubeVirt finds the data for cloud-init.
//!
//! ```text
//! inline, ≤ 2048 bytes ────────────────▶ in the VirtualMachine, unchanged
//! inline, longer ──────────────────────▶ our Secret
//! Secret, KubeVirt's key ──────────────▶ referenced
//! Secret, another key ─────────────────▶ copied into our Secret
//! any metaData ────────────────────────▶ all parts in our Secret, as files of a `cidata` volume
//! ```
//! KubeVirt's NoCloud volume has no field for the user's meta-data. With meta-data, our Secret is
//! attached as the NoCloud volume instead.

use std::collections::BTreeMap;

use super::identity::{machine_owner, metadata};
use super::types::{AnswerFile, LocalReference, NoCloud, Secret, SecretVolume, Volume};
use crate::names;
use crate::render::cloud_init::{CloudInitPlan, Part, SecretKey, SecretValue, Source, meta_data};
use crate::render::identity::Identity;

/// Label of the file system by which cloud-init finds its NoCloud volume.
const VOLUME_LABEL: &str = "cidata";

impl CloudInitPlan {
    /// Our Secret, with the contents of the user's Secrets from `read`. `None` if no Secret is needed, or
    /// if one of the user's Secrets does not exist.
    pub fn secret<'a>(
        &self,
        machine: &Identity<'_>,
        read: impl Fn(&SecretKey) -> Option<&'a SecretValue>,
    ) -> Option<Secret> {
        if !self.needs_secret() {
            return None;
        }
        let mut data = BTreeMap::new();
        for (part, source) in self.copied() {
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
            // NoCloud requires the file user-data, even if it is empty.
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
        let revisions =
            self.secret_revisions(&BTreeMap::new(), |key| Some(read(key)?.revision.clone()));
        metadata.annotations.extend(revisions);
        Some(Secret { metadata, data })
    }

    /// The VirtualMachine's volume with the data; `None` if there are no data.
    pub(super) fn volume(&self, machine: &Identity<'_>) -> Option<Volume> {
        let volume = Volume {
            name: names::CLOUD_INIT_DISK.to_owned(),
            ..Volume::default()
        };
        let own_secret = names::cloud_init_secret(machine.name);
        if self.meta.is_some() {
            return Some(Volume {
                secret: Some(SecretVolume {
                    secret_name: own_secret,
                    volume_label: VOLUME_LABEL.to_owned(),
                }),
                ..volume
            });
        }
        if self.is_sysprep() {
            let name = self.mounted_secrets().next()?.to_owned();
            return Some(Volume {
                sysprep: Some(AnswerFile {
                    secret: LocalReference { name },
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
                _ if !self.is_used_in_place(part, source) => {
                    *reference = Some(LocalReference {
                        name: own_secret.clone(),
                    });
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
