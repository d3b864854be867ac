//! Writes and reads the XML of libvirt.
//!
//! roxmltree reads. The writer is our own 80 lines: xmlwriter is unmaintained, and every byte that another
//! writer formats differently would show up as a change of the goldens without a benefit.

use std::fmt::{self, Display, Write as _};
use std::str::FromStr;

use roxmltree::{Document, Node};

/// Why XML from libvirt cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XmlError {
    /// The text is not well-formed XML, or has a DTD.
    #[error("is not valid XML: {0}")]
    Malformed(String),
    /// An element or attribute is missing that libvirt always writes.
    #[error("has no {0}")]
    Missing(&'static str),
    /// A value cannot be parsed.
    #[error("has an invalid {what} {text:?}")]
    Invalid {
        /// Name of the element or attribute.
        what: &'static str,
        /// The text that cannot be parsed.
        text: String,
    },
}

/// An element to write.
#[derive(Debug)]
pub(super) struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    text: String,
    children: Vec<Element>,
}

impl Element {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            attributes: Vec::new(),
            text: String::new(),
            children: Vec::new(),
        }
    }

    pub(super) fn attr(mut self, name: impl Into<String>, value: impl Display) -> Self {
        self.attributes.push((name.into(), value.to_string()));
        self
    }

    pub(super) fn text(mut self, text: impl Display) -> Self {
        self.text = text.to_string();
        self
    }

    pub(super) fn child(mut self, child: Self) -> Self {
        self.children.push(child);
        self
    }

    /// Appends children from a list or an option.
    pub(super) fn children(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children.extend(children);
        self
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        let Self { name, .. } = self;
        let indent = depth * 2;
        write!(f, "{:indent$}<{name}", "")?;
        for (name, value) in &self.attributes {
            write!(f, " {name}='")?;
            escape(f, value)?;
            f.write_char('\'')?;
        }
        if self.children.is_empty() && self.text.is_empty() {
            return f.write_str("/>\n");
        }
        f.write_char('>')?;
        escape(f, &self.text)?;
        if !self.children.is_empty() {
            f.write_char('\n')?;
            for child in &self.children {
                child.write(f, depth + 1)?;
            }
            write!(f, "{:indent$}", "")?;
        }
        writeln!(f, "</{name}>")
    }
}

impl Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

fn escape(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        match c {
            '&' => f.write_str("&amp;")?,
            '<' => f.write_str("&lt;")?,
            '>' => f.write_str("&gt;")?,
            '\'' => f.write_str("&apos;")?,
            // Written as references, because a parser turns these characters into spaces in attributes.
            '\t' | '\n' | '\r' => write!(f, "&#{};", u32::from(c))?,
            // XML cannot represent these characters.
            '\0'..' ' | '\u{fffe}' | '\u{ffff}' => f.write_char(char::REPLACEMENT_CHARACTER)?,
            _ => f.write_char(c)?,
        }
    }
    Ok(())
}

/// Parses a document. A document with a DTD is refused, because it could define entities.
pub(super) fn document(text: &str) -> Result<Document<'_>, XmlError> {
    Document::parse(text).map_err(|error| XmlError::Malformed(error.to_string()))
}

/// The descendant element at this path of element names.
pub(super) fn find<'a, 'input>(node: Node<'a, 'input>, path: &[&str]) -> Option<Node<'a, 'input>> {
    path.iter().try_fold(node, |node, name| {
        node.children().find(|child| child.has_tag_name(*name))
    })
}

/// All child elements with this name.
pub(super) fn all<'a, 'input>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    let children = node.children();
    children.filter(move |child| child.has_tag_name(name))
}

/// An attribute of the descendant element at this path.
pub(super) fn attribute<'a>(node: Node<'a, '_>, path: &[&str], name: &str) -> Option<&'a str> {
    find(node, path)?.attribute(name)
}

/// The trimmed text of the descendant element at this path.
pub(super) fn text<'a>(node: Node<'a, '_>, path: &[&str]) -> Option<&'a str> {
    find(node, path)?.text().map(str::trim)
}

/// Parses a text; `what` names the value in the error.
pub(super) fn value<T: FromStr>(what: &'static str, text: &str) -> Result<T, XmlError> {
    text.parse().map_err(|_| XmlError::Invalid {
        what,
        text: text.to_owned(),
    })
}
