//! The name of an image.

use std::{fmt, str::FromStr};

use anyhow::{Error, ensure};

/// A repository and a tag, such as `registry.example.com/kubevirt-operator:v0.1.0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    repository: String,
    tag: String,
}

impl Reference {
    pub fn new(repository: &str, tag: &str) -> Result<Self, Error> {
        format!("{repository}:{tag}").parse()
    }

    pub fn repository(&self) -> &str {
        &self.repository
    }

    pub fn tag(&self) -> &str {
        &self.tag
    }
}

/// The grammar of the OCI distribution specification, with a registry, a repository and a tag, all of which are needed:
/// container engines complete a name that lacks one, each in its own way.
impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        const EXAMPLE: &str = "registry.example.com/kubevirt-operator:v0.1.0";
        let wrong = |what: &str| format!("{what}; an example is {EXAMPLE}");
        ensure!(
            !text.contains('@'),
            wrong("has a digest, which is computed")
        );
        let (name, tag) = text.rsplit_once(':').unwrap_or((text, ""));
        ensure!(
            !tag.is_empty() && !tag.contains('/'),
            wrong("has no tag after the last ':'")
        );
        let word = |character: char| character.is_ascii_alphanumeric() || character == '_';
        ensure!(
            tag.len() <= 128
                && tag.starts_with(word)
                && tag.chars().all(|it| word(it) || it == '.' || it == '-'),
            wrong("the tag may have up to 128 letters, digits, '_', '.' and '-'")
        );
        let (registry, path) = name.split_once('/').unwrap_or(("", name));
        ensure!(
            registry.contains(['.', ':']) || registry == "localhost",
            wrong("does not begin with a registry")
        );
        let part = |part: &str| {
            let inner = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit();
            part.starts_with(inner)
                && part.ends_with(inner)
                && part.chars().all(|it| inner(it) || "._-".contains(it))
        };
        ensure!(
            path.split('/').all(part),
            wrong(
                "the repository may have lower-case letters, digits, '.', '_' and '-' between its '/'"
            )
        );
        Ok(Self {
            repository: name.to_owned(),
            tag: tag.to_owned(),
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.repository, self.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_or_refused_with_the_reason() {
        for text in [
            "ghcr.io/vitistack/kubevirt-operator:0.1.0",
            "localhost:5000/a/b:latest",
            "localhost/a:v1_2",
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), text);
        }
        for (text, reason) in [
            ("", "has no tag"),
            ("registry.example.com/operator", "has no tag"),
            ("localhost:5000/operator", "has no tag"),
            ("operator:v1", "does not begin with a registry"),
            ("team/operator:v1", "does not begin with a registry"),
            ("example.com/Operator:v1", "lower-case"),
            ("example.com/a//b:v1", "lower-case"),
            ("example.com/a:-v1", "the tag may"),
            ("example.com/a:v 1", "the tag may"),
            ("example.com/a@sha256:00", "has a digest"),
        ] {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
