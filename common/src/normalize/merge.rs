//! An intent over its template: which value counts, and whose it is.
//!
//! A field the user set wins over the template's, field by field. Lists with identity merge by
//! name: the template's items first, in their order, then the user's new ones. Nothing is parsed
//! here; every value keeps the place where its author wrote it, so that a fault is told there.

use std::fmt;

use crate::api::machine::{Cdrom, Disk, MachineSpec, Network};
use crate::api::template::TemplateContent;

/// Where a value stands, as the path of a field. Cheap to copy; formatted only for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A field of the spec.
    Field(&'static str),
    /// A field of an item of a list of the spec; the field is empty for the item itself.
    Item(&'static str, usize, &'static str),
    /// An item of a list of scalars in the spec.
    Element(&'static str, usize),
    /// The label that names the template.
    TemplateLabel,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(field) => write!(f, "spec.{field}"),
            Self::Item(list, index, "") | Self::Element(list, index) => {
                write!(f, "spec.{list}[{index}]")
            }
            Self::Item(list, index, field) => write!(f, "spec.{list}[{index}].{field}"),
            Self::TemplateLabel => write!(f, "metadata.labels[{}]", crate::names::LABEL_TEMPLATE),
        }
    }
}

/// A value that counts, if there is one, and where a fault of it is told.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<V> {
    /// The value.
    pub value: Option<V>,
    /// Where its author wrote it, or where its user would.
    pub place: Place,
}

/// What the intent stands on.
#[derive(Clone, Copy, Debug)]
pub enum Base<'a> {
    /// No template.
    Nothing,
    /// A template with this content, named at this place.
    Template(&'a TemplateContent, Place),
    /// A template that does not exist: whatever it would have brought cannot be judged.
    Unknown,
    /// The object is itself a template: what it lacks, a Machine brings.
    IsTemplate,
}

/// A named item of a list with identity.
pub trait Named {
    /// The item's name.
    fn name(&self) -> Option<&str>;
    /// Whether the item stands for the absence of the template's item.
    fn removes(&self) -> bool {
        false
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
    template: Option<(&'a T, Place)>,
}

impl<'a, T: Named> Item<'a, T> {
    /// The item's name, which its authors agree on.
    pub fn name(&self) -> Leaf<&'a str> {
        self.pick("name", |item: &'a T| item.name())
    }

    /// The value of a field: the user's, else the template's.
    pub fn pick<V>(&self, field: &'static str, get: impl Fn(&'a T) -> Option<V>) -> Leaf<V> {
        let user = self.user.map(|(index, item)| Leaf {
            value: get(item),
            place: Place::Item(self.list, index, field),
        });
        let template = self.template.map(|(item, place)| Leaf {
            value: get(item),
            place,
        });
        match (user, template) {
            (Some(leaf), None) | (None, Some(leaf)) => leaf,
            (Some(user), Some(template)) if user.value.is_none() && template.value.is_some() => {
                template
            }
            (Some(user), Some(_)) => user,
            (None, None) => Leaf {
                value: None,
                place: Place::Field(self.list),
            },
        }
    }

    /// The place of a part of the item that belongs to a value of it: with the user's value if the
    /// user gave one, else the template's.
    pub fn place(&self, part: &'static str, given_by: impl Fn(&'a T) -> bool) -> Place {
        self.pick(part, |item| given_by(item).then_some(())).place
    }
}

/// An intent over its template.
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
}

impl<'a> Merged<'a> {
    /// Merges `user` over `base`.
    pub fn new(user: &'a MachineSpec, base: Base<'a>) -> Self {
        let template = match base {
            Base::Template(content, place) => Some((content, place)),
            Base::Nothing | Base::Unknown | Base::IsTemplate => None,
        };
        Self {
            user,
            base,
            disks: merge_list(
                "disks",
                list(user.disks.as_ref()),
                template.map(|(t, p)| (list(t.disks.as_ref()), p)),
            ),
            networks: merge_list(
                "networks",
                list(user.networks.as_ref()),
                template.map(|(t, p)| (list(t.networks.as_ref()), p)),
            ),
            cdroms: merge_list("cdroms", list(user.cdroms.as_ref()), None),
        }
    }

    /// The user's own spec.
    pub fn user(&self) -> &'a MachineSpec {
        self.user
    }

    /// What the intent stands on.
    pub fn base(&self) -> Base<'a> {
        self.base
    }

    /// Whether what is absent here is absent for good: neither an unknown template nor a Machine
    /// of this template could still bring it.
    pub fn is_complete(&self) -> bool {
        match self.base {
            Base::Nothing | Base::Template(..) => true,
            Base::Unknown | Base::IsTemplate => false,
        }
    }

    /// The value of a field that templates have too: the user's, else the template's.
    pub fn pick<V>(
        &self,
        field: &'static str,
        user: impl Fn(&'a MachineSpec) -> Option<V>,
        template: impl Fn(&'a TemplateContent) -> Option<V>,
    ) -> Leaf<V> {
        let own = Place::Field(field);
        if let Some(value) = user(self.user) {
            return Leaf {
                value: Some(value),
                place: own,
            };
        }
        match self.base {
            Base::Template(content, place) => match template(content) {
                Some(value) => Leaf {
                    value: Some(value),
                    place,
                },
                None => Leaf {
                    value: None,
                    place: own,
                },
            },
            Base::Nothing | Base::Unknown | Base::IsTemplate => Leaf {
                value: None,
                place: own,
            },
        }
    }

    /// The value of a field that only Machines have.
    pub fn own<V>(
        &self,
        field: &'static str,
        user: impl Fn(&'a MachineSpec) -> Option<V>,
    ) -> Leaf<V> {
        Leaf {
            value: user(self.user),
            place: Place::Field(field),
        }
    }
}

fn list<T>(items: Option<&Vec<T>>) -> &[T] {
    items.map_or(&[], Vec::as_slice)
}

fn merge_list<'a, T: Named>(
    list: &'static str,
    user: &'a [T],
    template: Option<(&'a [T], Place)>,
) -> Vec<Item<'a, T>> {
    let (theirs, place) = template.unwrap_or((&[], Place::Field("template")));
    // The first of several items of one name merges; the later ones are duplicates and told as such.
    let find = |name: Option<&str>| {
        name.and_then(|name| user.iter().position(|item| item.name() == Some(name)))
    };
    let mut merged = Vec::with_capacity(theirs.len() + user.len());
    let mut taken = vec![false; user.len()];
    for item in theirs {
        let user = find(item.name()).map(|index| {
            taken[index] = true;
            (index, &user[index])
        });
        if !user.is_some_and(|(_, item)| item.removes()) {
            merged.push(Item {
                list,
                user,
                template: Some((item, place)),
            });
        }
    }
    merged.extend(
        user.iter()
            .enumerate()
            .filter(|(index, item)| !taken[*index] && !item.removes())
            .map(|entry| Item {
                list,
                user: Some(entry),
                template: None,
            }),
    );
    merged
}
