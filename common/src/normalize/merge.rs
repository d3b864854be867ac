//! A spec merged with its template: the value that applies, and the author who wrote it.
//!
//! A value of the user replaces the template's, field by field. Lists of named items are merged by
//! name: the template's items first, in their order, then the user's additional ones. No value is
//! parsed. Each value keeps the path at which its author wrote it, and violations are reported there.

use std::collections::BTreeMap;

use super::ImageDefaults;
use crate::api::machine::{Cdrom, CloudInit, Disk, Domain, Image, MachineSpec, Network};
use crate::api::machine_image::PinnedImage;
use crate::api::template::TemplateContent;
use crate::bounds::{DISKS_MAX, NETWORKS_MAX};
use crate::field_path::{FieldPath, Segment};

/// The value that applies, if there is one, and the path at which its violations are reported.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<V> {
    /// The user's, else the template's, else the default; `None`: there is none.
    pub value: Option<V>,
    /// Path at which its author wrote it, or at which the user would write it.
    pub path: FieldPath,
}

/// The template that a spec is merged with.
#[derive(Clone, Copy, Debug)]
pub enum Base<'a> {
    /// No template.
    Nothing,
    /// A template with this content, and the path that names it.
    Template(&'a TemplateContent, FieldPath),
    /// A template that does not exist, so absent values cannot be checked.
    Unknown,
    /// The object is itself a template; a Machine can set what it lacks.
    IsTemplate,
}

/// An item of a list whose items are identified by name.
pub trait Named {
    /// The item's name.
    fn name(&self) -> Option<&str>;
    /// Whether the item removes the template's item of its name.
    fn removes(&self) -> bool {
        false
    }
}

/// An item that can be filled with an image.
pub trait Filled: Named {
    /// The image as its author wrote it.
    fn written_image(&self) -> Option<&Image>;
}

impl Filled for Disk {
    fn written_image(&self) -> Option<&Image> {
        self.image.as_ref()
    }
}

impl Filled for Cdrom {
    fn written_image(&self) -> Option<&Image> {
        self.image.as_ref()
    }
}

impl Named for Disk {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
    fn removes(&self) -> bool {
        self.remove == Some(true)
    }
}

impl Named for Network {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl Named for Cdrom {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// One item of a merged list.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a, T> {
    list: &'static str,
    user: Option<(usize, &'a T)>,
    /// The template's item, its index in the template, and the path that names the template.
    template: Option<(usize, &'a T, FieldPath)>,
    /// The MachineImage that the item names, once it was looked up.
    pinned: Option<&'a PinnedImage>,
}

impl<'a, T: Filled> Item<'a, T> {
    /// The image as its author wrote it.
    pub fn written_image(&self) -> Leaf<&'a Image> {
        self.pick("image", |item: &'a T| item.written_image())
    }

    /// The name of a MachineImage, and the path at which its author wrote it.
    pub fn image_name(&self) -> Leaf<&'a str> {
        let written = self.written_image();
        Leaf {
            value: written.value.and_then(|image| image.name.as_deref()),
            path: written.path.beside("image.name"),
        }
    }

    /// The MachineImage that the item names. `None` if it names none, or one that was not found.
    pub fn pinned_image(&self) -> Option<&'a PinnedImage> {
        self.pinned
    }

    /// The image with its source: of a MachineImage that was found, what it says.
    pub fn image(&self) -> Option<&'a Image> {
        let pinned = self.pinned.map(|pinned| &pinned.image);
        pinned.or(self.written_image().value)
    }

    fn pin(&mut self, images: &'a BTreeMap<String, PinnedImage>) {
        let pinned = self.name().value.and_then(|name| images.get(name));
        self.pinned = pinned.filter(|pinned| {
            let name = self.image_name().value;
            name.is_some() && pinned.image.name.as_deref() == name
        });
    }
}

impl<'a, T: Named> Item<'a, T> {
    /// The item's name. User and template have the same one, because items are merged by name.
    pub fn name(&self) -> Leaf<&'a str> {
        self.pick("name", |item: &'a T| item.name())
    }

    /// The value of a field: the user's, else the template's.
    pub fn pick<V>(&self, field: &'static str, get: impl Fn(&'a T) -> Option<V>) -> Leaf<V> {
        let own = match (self.user, self.template) {
            (Some((index, _)), _) => FieldPath::item(self.list, index, field),
            (None, Some((index, _, named))) => named.at(Segment::Item(self.list, index, field)),
            (None, None) => FieldPath::field(self.list),
        };
        if let Some(value) = self.user.and_then(|(_, item)| get(item)) {
            return Leaf {
                value: Some(value),
                path: own,
            };
        }
        let template = self.template.and_then(|(index, item, named)| {
            let value = get(item)?;
            Some((value, named.at(Segment::Item(self.list, index, field))))
        });
        match template {
            Some((value, path)) => Leaf {
                value: Some(value),
                path,
            },
            None => Leaf {
                value: None,
                path: own,
            },
        }
    }

    /// The path of a field of the item: in the user's spec if the user set a value that `given_by`
    /// selects, else in the template if the template did.
    pub fn path(&self, part: &'static str, given_by: impl Fn(&'a T) -> bool) -> FieldPath {
        self.pick(part, |item| given_by(item).then_some(())).path
    }
}

/// A spec merged with its template.
#[derive(Debug)]
pub struct Merged<'a> {
    user: &'a MachineSpec,
    base: Base<'a>,
    /// Disks, without the removed ones.
    pub disks: Vec<Item<'a, Disk>>,
    /// Network cards; empty when neither author names one.
    pub networks: Vec<Item<'a, Network>>,
    /// CD-ROM drives.
    pub cdroms: Vec<Item<'a, Cdrom>>,
    /// Lists that were cut because they were longer than their bound: name, length, bound.
    overlong: Vec<(&'static str, usize, usize)>,
    /// Defaults that a MachineImage decided before.
    defaults: ImageDefaults,
}

impl<'a> Merged<'a> {
    /// Merges `user` over `base`.
    pub fn new(user: &'a MachineSpec, base: Base<'a>) -> Self {
        let template = match base {
            Base::Template(content, path) => Some((content, path)),
            Base::Nothing | Base::Unknown | Base::IsTemplate => None,
        };
        let mut disks = merge_list(
            "disks",
            list(user.disks.as_ref()),
            template.map(|(content, named)| (list(content.disks.as_ref()), named)),
        );
        let mut networks = merge_list(
            "networks",
            list(user.networks.as_ref()),
            template.map(|(content, named)| (list(content.networks.as_ref()), named)),
        );
        let lengths = [
            ("disks", disks.len(), DISKS_MAX),
            ("networks", networks.len(), NETWORKS_MAX),
        ];
        let overlong = lengths.into_iter().filter(|(_, count, max)| count > max);
        disks.truncate(DISKS_MAX);
        networks.truncate(NETWORKS_MAX);
        Self {
            user,
            base,
            disks,
            networks,
            cdroms: merge_list("cdroms", list(user.cdroms.as_ref()), None),
            overlong: overlong.collect(),
            defaults: ImageDefaults::default(),
        }
    }

    /// With the defaults that a MachineImage decided before. Without effect if the template was not found: it may set what
    /// the defaults are for.
    #[must_use]
    pub fn with_defaults(self, defaults: ImageDefaults) -> Self {
        let defaults = if self.is_complete() {
            defaults
        } else {
            ImageDefaults::default()
        };
        Self { defaults, ..self }
    }

    /// Defaults that a MachineImage decided before.
    pub fn defaults(&self) -> ImageDefaults {
        self.defaults
    }

    /// With the sources of the MachineImages that disks and CD-ROMs name, by name of the disk or CD-ROM.
    #[must_use]
    pub fn with_images(mut self, images: &'a BTreeMap<String, PinnedImage>) -> Self {
        self.disks.iter_mut().for_each(|item| item.pin(images));
        self.cdroms.iter_mut().for_each(|item| item.pin(images));
        self
    }

    /// Lists that were longer than their bound: name, length and bound.
    pub fn overlong(&self) -> impl Iterator<Item = (&'static str, usize, usize)> {
        self.overlong.iter().copied()
    }

    /// The user's own spec.
    pub fn user(&self) -> &'a MachineSpec {
        self.user
    }

    /// The template that a spec is merged with.
    pub fn base(&self) -> Base<'a> {
        self.base
    }

    /// Whether an absent value is certainly absent: no unknown template and no Machine of this template
    /// can set it.
    pub fn is_complete(&self) -> bool {
        match self.base {
            Base::Nothing | Base::Template(..) => true,
            Base::Unknown | Base::IsTemplate => false,
        }
    }

    /// The value of a field of `domain`, as [`pick`](Self::pick).
    pub fn pick_domain<V>(
        &self,
        field: &'static str,
        get: impl Fn(&'a Domain) -> Option<V>,
    ) -> Leaf<V> {
        self.pick(
            field,
            |spec| spec.domain.as_ref().and_then(&get),
            |template| template.domain.as_ref().and_then(&get),
        )
    }

    /// The value of a field that templates have too: the user's, else the template's.
    pub fn pick<V>(
        &self,
        field: &'static str,
        user: impl Fn(&'a MachineSpec) -> Option<V>,
        template: impl Fn(&'a TemplateContent) -> Option<V>,
    ) -> Leaf<V> {
        let own = FieldPath::field(field);
        if let Some(value) = user(self.user) {
            return Leaf {
                value: Some(value),
                path: own,
            };
        }
        match self.base {
            Base::Template(content, named) => match template(content) {
                Some(value) => Leaf {
                    value: Some(value),
                    path: named.at(Segment::Field(field)),
                },
                None => Leaf {
                    value: None,
                    path: own,
                },
            },
            Base::Nothing | Base::Unknown | Base::IsTemplate => Leaf {
                value: None,
                path: own,
            },
        }
    }

    /// Data for cloud-init of the Machine and its template: see [`CloudInit::merged`].
    pub fn cloud_init(&self) -> Option<CloudInit> {
        let template = match self.base {
            Base::Template(content, _) => content.cloud_init.as_ref(),
            Base::Nothing | Base::Unknown | Base::IsTemplate => None,
        };
        CloudInit::merged(self.user.cloud_init.as_ref(), template)
    }

    /// Whether a deletion of the Machine is refused: by its own spec, else by its template.
    pub fn deletion_protection(&self) -> bool {
        let leaf = self.pick(
            "deletionProtection",
            |spec| spec.deletion_protection,
            |template| template.deletion_protection,
        );
        leaf.value.unwrap_or(false)
    }

    /// The value of a field that only Machines have.
    pub fn own<V>(
        &self,
        field: &'static str,
        user: impl Fn(&'a MachineSpec) -> Option<V>,
    ) -> Leaf<V> {
        Leaf {
            value: user(self.user),
            path: FieldPath::field(field),
        }
    }
}

fn list<T>(items: Option<&Vec<T>>) -> &[T] {
    items.map_or(&[], Vec::as_slice)
}

fn merge_list<'a, T: Named>(
    list: &'static str,
    user: &'a [T],
    template: Option<(&'a [T], FieldPath)>,
) -> Vec<Item<'a, T>> {
    let (theirs, named) = template.unwrap_or((&[], FieldPath::TEMPLATE));
    // Of several items with one name, the first is merged; the others are reported as duplicates.
    let find = |name: Option<&str>| {
        name.and_then(|name| user.iter().position(|item| item.name() == Some(name)))
    };
    let mut merged = Vec::with_capacity(theirs.len() + user.len());
    let mut merged_items = vec![false; user.len()];
    let kept = theirs
        .iter()
        .enumerate()
        .filter(|(_, item)| !item.removes());
    for (index, item) in kept {
        let user = find(item.name()).map(|at| {
            merged_items[at] = true;
            (at, &user[at])
        });
        if !user.is_some_and(|(_, item)| item.removes()) {
            merged.push(Item {
                list,
                user,
                template: Some((index, item, named)),
                pinned: None,
            });
        }
    }
    merged.extend(
        user.iter()
            .enumerate()
            .filter(|(index, item)| !merged_items[*index] && !item.removes())
            .map(|entry| Item {
                list,
                user: Some(entry),
                template: None,
                pinned: None,
            }),
    );
    merged
}
