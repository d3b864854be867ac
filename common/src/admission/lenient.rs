//! A deserializer that does not stop at a value of the wrong type: it reports the value's path and
//! continues with an empty value. It finds all such faults in one pass.
//!
//! It supports the types of an intent, whose fields are all optional: texts, whole numbers, booleans,
//! and lists, maps and structs of them. A null counts as absent, except as an item of a list. A newtype struct is an
//! object of any JSON, whose values are not checked here.
//!
//! Why not the crate serde_path_to_error: it adds the path to the first fault, at which decoding ends, so a user would read
//! one fault of a manifest at a time (`common/tests/cases/form.yaml` has cases with several).

use std::cell::RefCell;

use crate::code::Code;
use crate::json::Json;
use crate::violation::{Findings, Kind, Location, Violation};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

type Error = serde_json::Error;

/// Values below this field may be secrets, so messages never repeat them.
const SECRET: &str = "spec.cloudInit";

/// The path of a value, as a linked list on the stack: no text is built unless a fault is reported.
#[derive(Clone, Copy)]
enum Path<'p> {
    Root(&'p str),
    Member(&'p Path<'p>, &'p str),
    Key(&'p Path<'p>, &'p str),
    Index(&'p Path<'p>, usize),
}

impl Path<'_> {
    fn location(&self) -> Location {
        match self {
            Self::Root(root) => Location::from(*root),
            Self::Member(parent, field) => parent.location().member(field),
            Self::Key(parent, key) => parent.location().key(key),
            Self::Index(parent, index) => parent.location().key(&index.to_string()),
        }
    }
}

/// Whether a key is written in a path without brackets.
fn is_plain(key: &str) -> bool {
    key.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// Reads a value whose path is `root`.
pub(super) fn read<'v, T: serde::Deserialize<'v> + Default>(
    value: &'v Json<'v>,
    root: &str,
    findings: &mut Findings,
) -> T {
    let sink = RefCell::new(findings);
    let reader = Reader {
        value,
        path: Path::Root(root),
        findings: &sink,
    };
    // Only a type with checks of its own could return an error, and the types of an intent have none.
    T::deserialize(reader).unwrap_or_default()
}

/// Extends the path of an object by one of its keys.
type Step = for<'p> fn(&'p Path<'p>, &'p str) -> Path<'p>;

#[derive(Clone, Copy)]
struct Reader<'v, 'p, 'f> {
    value: &'v Json<'v>,
    path: Path<'p>,
    findings: &'p RefCell<&'f mut Findings>,
}

impl<'v> Reader<'v, '_, '_> {
    fn fields<V: Visitor<'v>>(self, visitor: V, step: Step) -> Result<V::Value, Error> {
        let fields = match self.value {
            Json::Object(fields) => Some(fields.iter()),
            _ => None,
        };
        if fields.is_none() {
            self.deny_type("an object");
        }
        visitor.visit_map(Fields {
            rest: fields.into_iter().flatten(),
            next: None,
            object: self,
            step,
        })
    }

    /// Whether the value is a size of memory or of a disk.
    fn is_size(&self) -> bool {
        matches!(self.path, Path::Member(_, "size" | "maxSize"))
    }

    fn deny_type(&self, expected: &str) {
        let violation = Violation::new(
            self.path.location(),
            Code::WrongType,
            Kind::TypeInvalid,
            format!("must be {expected}"),
        );
        let violation = match self.value {
            Json::Null => violation.value("null"),
            Json::List(_) => violation.value("a list"),
            Json::Object(_) => violation.value("an object"),
            _ if violation.field.starts_with(SECRET) => violation,
            Json::Text(text) => violation.text(text),
            Json::Bool(value) => violation.value(value),
            Json::Number(number) => violation.value(number),
        };
        self.findings.borrow_mut().deny(violation);
    }
}

impl<'v> Deserializer<'v> for Reader<'v, '_, '_> {
    type Error = Error;

    fn deserialize_option<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Json::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_string<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Json::Text(text) => visitor.visit_borrowed_str(text),
            other => {
                let is_scalar = matches!(other, Json::Bool(_) | Json::Number(_));
                // A number in quotes would be so many bytes, which is the next fault.
                let size = match other {
                    Json::Number(number) if self.is_size() => Some(number),
                    _ => None,
                };
                if let Some(number) = size {
                    self.deny_type(&format!("a text with a unit; did you mean '{number}Gi'?"));
                } else {
                    self.deny_type(if is_scalar {
                        "a text; put it in quotes"
                    } else {
                        "a text"
                    });
                }
                visitor.visit_borrowed_str("")
            }
        }
    }

    fn deserialize_str<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_bool<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Error> {
        if let Json::Bool(value) = self.value {
            return visitor.visit_bool(*value);
        }
        self.deny_type("true or false, without quotes");
        visitor.visit_bool(false)
    }

    fn deserialize_i64<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Error> {
        if let Json::Number(number) = self.value
            && let Some(value) = number.as_i64()
        {
            return visitor.visit_i64(value);
        }
        self.deny_type("a whole number, without quotes");
        visitor.visit_i64(1)
    }

    fn deserialize_seq<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Error> {
        let items = if let Json::List(items) = self.value {
            items.as_slice()
        } else {
            self.deny_type("a list");
            &[]
        };
        visitor.visit_seq(Items {
            items: items.iter().enumerate(),
            list: self,
        })
    }

    fn deserialize_map<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Error> {
        self.fields(visitor, |path, key| Path::Key(path, key))
    }

    fn deserialize_struct<V: Visitor<'v>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.fields(visitor, |path, field| {
            if is_plain(field) {
                Path::Member(path, field)
            } else {
                Path::Key(path, field)
            }
        })
    }

    fn deserialize_any<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Json::Null => visitor.visit_unit(),
            Json::Bool(value) => visitor.visit_bool(*value),
            Json::Number(number) => number.deserialize_any(visitor),
            Json::Text(text) => visitor.visit_borrowed_str(text),
            Json::List(_) => self.deserialize_seq(visitor),
            Json::Object(_) => self.deserialize_map(visitor),
        }
    }

    /// A value of any JSON, with its nulls: the only such type is an object.
    fn deserialize_newtype_struct<V: Visitor<'v>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let value = if let Json::Object(_) = self.value {
            serde_json::to_value(self.value)?
        } else {
            self.deny_type("an object");
            serde_json::Value::Object(serde_json::Map::new())
        };
        visitor.visit_newtype_struct(value)
    }

    fn deserialize_ignored_any<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        <V: Visitor<'v>>
        i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct
        tuple tuple_struct enum identifier
    }
}

struct Items<'v, 'p, 'f> {
    items: std::iter::Enumerate<std::slice::Iter<'v, Json<'v>>>,
    list: Reader<'v, 'p, 'f>,
}

impl<'v> SeqAccess<'v> for Items<'v, '_, '_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'v>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some((index, value)) = self.items.next() else {
            return Ok(None);
        };
        let item = Reader {
            value,
            path: Path::Index(&self.list.path, index),
            findings: self.list.findings,
        };
        seed.deserialize(item).map(Some)
    }
}

struct Fields<'v, 'p, 'f, I> {
    rest: I,
    next: Option<(&'v str, &'v Json<'v>)>,
    object: Reader<'v, 'p, 'f>,
    step: Step,
}

impl<'v, I: Iterator<Item = (&'v str, &'v Json<'v>)>> MapAccess<'v> for Fields<'v, '_, '_, I> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'v>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let next = self.rest.find(|(_, value)| !value.is_null());
        let Some((key, value)) = next else {
            return Ok(None);
        };
        self.next = Some((key, value));
        seed.deserialize(serde::de::value::BorrowedStrDeserializer::new(key))
            .map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'v>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let (key, value) = self.next.take().unwrap_or(("", &Json::Null));
        seed.deserialize(Reader {
            value,
            path: (self.step)(&self.object.path, key),
            findings: self.object.findings,
        })
    }
}
