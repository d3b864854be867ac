//! From the parser's events to a value and its positions, with every alias and every `<<` resolved.
//!
//! Size and depth are bounded with each copy by an alias counted, so that a few lines cannot become
//! more than a document of the allowed length could be.
//!
//! Reason: faults are reported with their lines, and what an alias or `<<` means is what PyYAML makes of it: the suite
//! `tests/tests/readers` compares both.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};
use serde_json::{Map, Value};

use super::diagnostics::{Diagnostic, invalid_yaml};
use super::messages;
use super::position::{Children, Field, Position, PositionTree};
use super::scalar::{self, ScalarError};
use super::syntax::TOO_DEEP;
use crate::code::Code;

/// Deepest nesting, aliases included. No module of cloud-init reaches ten; functions that walk a
/// document recursively must not run out of stack.
const DEPTH_MAX: usize = 64;
/// Most bytes that a document may take in memory, about, copies included. A handwritten one of
/// 256 KiB takes about a quarter of it.
const MEMORY_MAX: usize = 16 * 1024 * 1024;
/// Bytes of a value and its position without the text.
const NODE_BYTES: usize = 96;
/// Bytes of a mapping that is almost empty.
const MAPPING_BYTES: usize = 640;

/// Where the names of YAML's own types begin.
const CORE: &str = "tag:yaml.org,2002:";
const LIST_TAGS: [&str; 3] = ["seq", "omap", "pairs"];
const MAPPING_TAGS: [&str; 2] = ["map", "set"];

const COLLECTION_AS_KEY: &str =
    "a list or mapping as a key; put text that begins with '{' or '[' in quotes";

/// Why a text has no value.
pub(super) enum Fault {
    /// The parser fails.
    Parser(ScanError),
    /// What the parser reads has no value.
    Composer(Diagnostic),
}

impl From<Diagnostic> for Fault {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Composer(diagnostic)
    }
}

/// A value with its positions and its bytes in memory.
#[derive(Clone, Debug)]
struct Node {
    value: Value,
    positions: PositionTree,
    bytes: usize,
    height: usize,
    as_key: AsKey,
}

/// What a value means where a key is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AsKey {
    Name,
    /// A plain `<<`.
    Merge,
    /// An empty node.
    Blank,
}

/// A mapping that is being built.
type Fields = (Map<String, Value>, Vec<Field>);

/// A list or mapping that is not closed yet.
struct OpenCollection {
    at: Position,
    anchor: usize,
    bytes: usize,
    height: usize,
    content: Content,
}

enum Content {
    List(Vec<Value>, Vec<PositionTree>),
    Mapping {
        fields: Fields,
        /// Keys merged by `<<`; a later merge has precedence.
        merged: Vec<Fields>,
        key: Option<Key>,
    },
}

enum Key {
    Merge,
    Name(String, Position),
}

/// A document that is being built.
pub(super) struct Composer<'t> {
    text: &'t str,
    open: Vec<OpenCollection>,
    root: Option<Node>,
    anchored: HashMap<usize, Node>,
    anchor_names: HashSet<Cow<'t, str>>,
    bytes: usize,
    /// Positions of the texts that may contain tabs, in order.
    pub(super) quoted: Vec<Range<usize>>,
    /// End of the part that was read.
    pub(super) read: usize,
    /// Values that their author may not have meant.
    pub(super) diagnostics: Vec<Diagnostic>,
}

impl<'t> Composer<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            open: vec![],
            root: None,
            anchored: HashMap::new(),
            anchor_names: HashSet::new(),
            bytes: 0,
            quoted: vec![],
            read: 0,
            diagnostics: vec![],
        }
    }

    /// The only document of the text; nothing but comments is null.
    pub(super) fn compose(&mut self) -> Result<(Value, PositionTree), Fault> {
        let options = granit_parser::options! {
            emit_anchor_events: true,
            emit_comments: false,
            flow_nesting_limit: DEPTH_MAX,
            block_nesting_limit: DEPTH_MAX,
        };
        let mut has_begun = false;
        for next in Parser::new_from_str_with_options(self.text, options) {
            let (event, span) = next.map_err(Fault::Parser)?;
            let position = Position::from(&span.start);
            self.read = span.byte_range().map_or(self.read, |range| range.end);
            match event {
                Event::DocumentStart(..) if std::mem::replace(&mut has_begun, true) => {
                    let what = "a second document; there can be only one";
                    return Err(invalid_yaml(position, what).into());
                }
                Event::Scalar(text, style, anchor, tag) => {
                    if style != ScalarStyle::Plain {
                        self.quoted.extend(span.byte_range());
                    }
                    let node = scalar_node(&text, style, tag.as_deref(), &span)?;
                    self.reserve(node.bytes, position)?;
                    self.finish(node, anchor)?;
                }
                Event::SequenceStart(_, anchor, tag) => {
                    check_tag(tag.as_deref(), &LIST_TAGS, position)?;
                    self.begin(Content::List(vec![], vec![]), anchor, position)?;
                }
                Event::MappingStart(_, anchor, tag) => {
                    check_tag(tag.as_deref(), &MAPPING_TAGS, position)?;
                    let content = Content::Mapping {
                        fields: Fields::default(),
                        merged: vec![],
                        key: None,
                    };
                    self.begin(content, anchor, position)?;
                }
                Event::SequenceEnd | Event::MappingEnd => {
                    if let Some(open) = self.open.pop() {
                        let anchor = open.anchor;
                        self.diagnostics.extend(open.repeated());
                        self.finish(open.close(), anchor)?;
                    }
                }
                Event::Anchor(_, name) if !self.anchor_names.insert(name.clone()) => {
                    let what = "an anchor whose name is already used";
                    return Err(invalid_yaml(position, what).into());
                }
                Event::Alias(anchor) => {
                    let Some(node) = self.anchored.get(&anchor).cloned() else {
                        let what = "an alias inside the value that it refers to";
                        return Err(invalid_yaml(position, what).into());
                    };
                    self.reserve(node.bytes, position)?;
                    self.put(node, position)?;
                }
                _ => {}
            }
        }
        let root = self.root.take().map(|node| (node.value, node.positions));
        Ok(root.unwrap_or((Value::Null, PositionTree::leaf(Position::START))))
    }

    fn reserve(&mut self, bytes: usize, position: Position) -> Result<(), Diagnostic> {
        self.bytes += bytes;
        if self.bytes > MEMORY_MAX {
            return Err(invalid_yaml(
                position,
                "too large once its aliases are expanded",
            ));
        }
        Ok(())
    }

    fn begin(
        &mut self,
        content: Content,
        anchor: usize,
        position: Position,
    ) -> Result<(), Diagnostic> {
        if self.open.last().is_some_and(OpenCollection::expects_key) {
            return Err(invalid_yaml(position, COLLECTION_AS_KEY));
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(invalid_yaml(position, TOO_DEEP));
        }
        let bytes = match content {
            Content::List(..) => NODE_BYTES,
            Content::Mapping { .. } => MAPPING_BYTES,
        };
        self.reserve(bytes, position)?;
        self.open.push(OpenCollection {
            at: position,
            anchor,
            bytes,
            height: 0,
            content,
        });
        Ok(())
    }

    /// Adds a node to its parent, and keeps a copy for the aliases of its anchor.
    fn finish(&mut self, node: Node, anchor: usize) -> Result<(), Diagnostic> {
        let position = node.positions.at;
        if anchor != 0 {
            self.reserve(node.bytes, position)?;
            self.anchored.insert(anchor, node.clone());
        }
        self.put(node, position)
    }

    /// Adds a node to the list or mapping that is open, or sets it as the root.
    fn put(&mut self, node: Node, position: Position) -> Result<(), Diagnostic> {
        if self.open.len() + node.height > DEPTH_MAX {
            return Err(invalid_yaml(position, TOO_DEEP));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        open.bytes += node.bytes;
        open.height = open.height.max(node.height + 1);
        match &mut open.content {
            Content::List(items, positions) => {
                items.push(node.value);
                positions.push(node.positions);
            }
            Content::Mapping {
                fields,
                merged,
                key,
            } => match key.take() {
                None => *key = Some(node.into_key(position)?),
                Some(Key::Merge) => merged.extend(node.into_merged()?),
                Some(Key::Name(name, key)) => {
                    fields.1.push(Field {
                        name: name.as_str().into(),
                        key,
                        value: node.positions,
                    });
                    fields.0.insert(name, node.value);
                }
            },
        }
        Ok(())
    }
}

impl OpenCollection {
    fn expects_key(&self) -> bool {
        matches!(self.content, Content::Mapping { key: None, .. })
    }

    /// Keys that are not the first ones of their name.
    fn repeated(&self) -> Vec<Diagnostic> {
        let Content::Mapping {
            fields: (values, positions),
            ..
        } = &self.content
        else {
            return vec![];
        };
        if values.len() == positions.len() {
            return vec![];
        }
        let mut first = HashMap::new();
        let repeated = positions.iter().filter_map(|field| {
            let before = *first.entry(&*field.name).or_insert(field.key);
            (before != field.key).then(|| {
                let shown = messages::is_word(&field.name).then(|| format!("'{}'", field.name));
                let shown = shown.as_deref().unwrap_or("this key");
                let line = before.line;
                let text = format!("{shown} is in line {line} already; the last value is used");
                Diagnostic::new(field.key, Code::DuplicateYamlKey, text)
                    .with_identity(format!("{} is repeated", field.name))
            })
        });
        repeated.collect()
    }

    fn close(self) -> Node {
        let (value, children) = match self.content {
            Content::List(items, positions) => (Value::Array(items), Children::Items(positions)),
            Content::Mapping {
                fields: (mut values, mut positions),
                merged,
                ..
            } => {
                // Keys of the mapping itself have precedence.
                for (more, mut positions_of_more) in merged.into_iter().rev() {
                    for (name, value) in more {
                        values.entry(name).or_insert(value);
                    }
                    positions_of_more.append(&mut positions);
                    positions = positions_of_more;
                }
                positions.sort_by(|one, other| one.name.cmp(&other.name));
                (Value::Object(values), Children::Fields(positions))
            }
        };
        Node {
            value,
            positions: PositionTree {
                at: self.at,
                children,
            },
            bytes: self.bytes,
            height: self.height,
            as_key: AsKey::Name,
        }
    }
}

impl Node {
    fn into_key(self, position: Position) -> Result<Key, Diagnostic> {
        match (self.as_key, self.value) {
            (AsKey::Merge, _) => Ok(Key::Merge),
            (AsKey::Blank, _) => Err(invalid_yaml(position, "a ':' without a key before it")),
            (AsKey::Name, Value::Object(_) | Value::Array(_)) => {
                Err(invalid_yaml(position, COLLECTION_AS_KEY))
            }
            (AsKey::Name, Value::String(name)) => Ok(Key::Name(name, position)),
            (AsKey::Name, other) => Ok(Key::Name(other.to_string(), position)),
        }
    }

    /// Value of `<<`: a mapping, or a list of mappings of which the first has precedence.
    fn into_merged(self) -> Result<Vec<Fields>, Diagnostic> {
        let position = self.positions.at;
        let wrong = || invalid_yaml(position, "'<<' merges a mapping, or a list of them");
        match (self.value, self.positions.children) {
            (Value::Object(values), Children::Fields(positions)) => Ok(vec![(values, positions)]),
            (Value::Array(values), Children::Items(positions)) => {
                let items = values.into_iter().zip(positions).rev();
                let fields = items.map(|(value, positions)| match (value, positions.children) {
                    (Value::Object(values), Children::Fields(positions)) => Ok((values, positions)),
                    _ => Err(wrong()),
                });
                fields.collect()
            }
            _ => Err(wrong()),
        }
    }
}

fn scalar_node(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    span: &Span,
) -> Result<Node, Diagnostic> {
    let position = Position::from(&span.start);
    let is_plain = style == ScalarStyle::Plain;
    let value = match tag {
        None if !is_plain => Ok(text.into()),
        None => scalar::plain(text),
        Some(tag) if is_lone(tag) => scalar::plain(text),
        Some(tag) => core_name(tag)
            .ok_or(ScalarError::Tag)
            .and_then(|name| scalar::tagged(&name, text)),
    };
    Ok(Node {
        value: value.map_err(|error| invalid_yaml(position, error))?,
        positions: PositionTree::leaf(position),
        bytes: NODE_BYTES + text.len(),
        height: 0,
        as_key: if text == "<<" && is_plain && tag.is_none() {
            AsKey::Merge
        } else if span.is_empty() {
            AsKey::Blank
        } else {
            AsKey::Name
        },
    })
}

fn check_tag(tag: Option<&Tag>, allowed: &[&str], position: Position) -> Result<(), Diagnostic> {
    let is_allowed = |tag: &Tag| {
        let name = core_name(tag);
        is_lone(tag) || name.is_some_and(|name| allowed.contains(&&*name))
    };
    if tag.is_none_or(is_allowed) {
        return Ok(());
    }
    Err(invalid_yaml(position, ScalarError::Tag))
}

/// A lone `!`, which leaves the type as it is.
fn is_lone(tag: &Tag) -> bool {
    format!("{}{}", tag.handle(), tag.suffix()) == "!"
}

/// The name of one of YAML's own types.
fn core_name(tag: &Tag) -> Option<String> {
    let whole = format!("{}{}", tag.handle(), tag.suffix());
    whole.strip_prefix(CORE).map(str::to_owned)
}
