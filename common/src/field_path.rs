//! Paths of fields in messages: the field of a value, and the field at which its author changes it.
//!
//! A value of a template is reported at the field that names the template, because that is what the
//! author of a Machine can edit; the path within the template is added to the message.

use std::fmt;

use crate::names::LABEL_TEMPLATE;

/// The author of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Author {
    /// The user, in the spec.
    User,
    /// The author of the template that `spec.template` names.
    Template,
    /// The author of the template that the label names.
    LabelledTemplate,
}

/// A position below a spec or below a template's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// The whole object.
    Whole,
    /// A field.
    Field(&'static str),
    /// List, index and field of an item; the field is empty for the item itself.
    Item(&'static str, usize, &'static str),
    /// List and index of an item that is a scalar.
    Element(&'static str, usize),
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Field(field) => f.write_str(field),
            Self::Item(list, index, "") | Self::Element(list, index) => {
                write!(f, "{list}[{index}]")
            }
            Self::Item(list, index, field) => write!(f, "{list}[{index}].{field}"),
        }
    }
}

/// Path of a value in a spec or in the template it comes from.
///
/// `Display` gives the field that the author of the object edits to change the value: of a value from
/// a template, the field or label that names the template. Copying is cheap; the text is built only
/// for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPath {
    author: Author,
    segment: Segment,
}

impl FieldPath {
    /// The field that names the template.
    pub const TEMPLATE: Self = Self {
        author: Author::Template,
        segment: Segment::Whole,
    };
    /// The label that names the template.
    pub const TEMPLATE_LABEL: Self = Self {
        author: Author::LabelledTemplate,
        segment: Segment::Whole,
    };

    /// A field of the spec.
    pub const fn field(field: &'static str) -> Self {
        Self {
            author: Author::User,
            segment: Segment::Field(field),
        }
    }

    /// A field of an item of a list of the spec; the field is empty for the item itself.
    pub const fn item(list: &'static str, index: usize, field: &'static str) -> Self {
        Self {
            author: Author::User,
            segment: Segment::Item(list, index, field),
        }
    }

    /// Path of an item of the list of scalars at this path.
    #[must_use]
    pub fn element(self, index: usize) -> Self {
        match self.segment {
            Segment::Field(list) => self.at(Segment::Element(list, index)),
            Segment::Whole | Segment::Item(..) | Segment::Element(..) => self,
        }
    }

    /// Path of another field of the same item of a list.
    #[must_use]
    pub(crate) const fn beside(self, field: &'static str) -> Self {
        match self.segment {
            Segment::Item(list, index, _) => self.at(Segment::Item(list, index, field)),
            Segment::Whole | Segment::Field(_) | Segment::Element(..) => self,
        }
    }

    /// Another position of the same author.
    pub(crate) const fn at(self, segment: Segment) -> Self {
        Self { segment, ..self }
    }

    /// Whether the value is in the user's spec and not in a template.
    pub fn is_from_user(self) -> bool {
        self.author == Author::User
    }

    /// This path, or `other` if only `other` is in the user's spec. Used for a contradiction between two
    /// fields, which is reported where the user can edit.
    #[must_use]
    pub fn or_user_path(self, other: Self) -> Self {
        if !self.is_from_user() && other.is_from_user() {
            other
        } else {
            self
        }
    }

    /// The path within the template, if the value comes from one.
    pub fn in_template(self) -> Option<String> {
        (!self.is_from_user() && self.segment != Segment::Whole).then(|| self.segment.to_string())
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.author {
            Author::User => write!(f, "spec.{}", self.segment),
            Author::Template => f.write_str("spec.template"),
            Author::LabelledTemplate => {
                write!(f, "metadata.labels[{LABEL_TEMPLATE}]")
            }
        }
    }
}
