//! The layers of `common`: which of its modules may import which.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::{imports::imports_of, modules::Modules};

/// The modules of `common`, the lowest layer first, in two stacks: a module imports modules of its own layer and of
/// those below it in the same stack. `render` does not read the catalog, and neither the catalog nor `normalize`
/// reads what is rendered. A module that is in no layer is a violation.
const STACKS: [&[&[&str]]; 2] = [
    &[
        &["bounds"],
        BASE,
        &["api"],
        &["catalog"],
        &["normalize"],
        &["rules"],
        &["admission"],
    ],
    &[
        &["bounds"],
        BASE,
        &["api"],
        &["render"],
        &["rules"],
        &["admission"],
    ],
];

/// Values of one syntax, names, and what messages are made of.
const BASE: &[&str] = &[
    "address",
    "code",
    "cpu_list",
    "field_path",
    "glob",
    "guest_report",
    "host_uri",
    "image_source",
    "json",
    "mac",
    "merge_patch",
    "names",
    "pci",
    "quantity",
    "url_prefix",
    "userinfo",
    "violation",
    "words",
];

/// The imports of a higher layer, one line each, in the crate whose root is this file.
pub fn upward_imports(root: &Path) -> Result<Vec<String>> {
    let folder = root.parent().context("a folder of a crate's root")?;
    // `common/src/api/mac.rs` is part of the module `api`.
    let module = |file: &Path| -> Option<(String, String)> {
        let file = file.strip_prefix(folder).ok()?;
        let name = Path::new(file.iter().next()?).file_stem()?.to_str()?;
        Some((name.to_owned(), file.display().to_string()))
    };
    let mut found = Vec::new();
    for (file, imported) in imports_of(&Modules::read(root)?) {
        let Some((from, file)) = module(&file).filter(|(name, _)| name != "lib") else {
            continue;
        };
        if !is_in_a_layer(&from) {
            found.push(format!("{file}: module {from} is in no layer"));
        }
        for (other, names) in imported {
            let Some((to, other)) = module(&other).filter(|(name, _)| name != "lib") else {
                continue;
            };
            if from != to && is_in_a_layer(&from) && is_in_a_layer(&to) && !may_import(&from, &to) {
                let names = Vec::from_iter(names).join(", ");
                found.push(format!(
                    "{file} -> {other}: {names} ({from} must not import {to})"
                ));
            }
        }
    }
    Ok(found)
}

fn layer(stack: &[&[&str]], module: &str) -> Option<usize> {
    stack.iter().position(|layer| layer.contains(&module))
}

fn is_in_a_layer(module: &str) -> bool {
    STACKS.iter().any(|stack| layer(stack, module).is_some())
}

fn may_import(from: &str, to: &str) -> bool {
    STACKS.iter().any(|stack| {
        let both = layer(stack, from).zip(layer(stack, to));
        both.is_some_and(|(from, to)| to <= from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{layers::planted, paths};

    #[test]
    fn imports_of_a_higher_layer_are_reported_with_their_names() {
        let folder = planted(&[
            (
                "lib.rs",
                "mod api; mod bounds; mod catalog; mod odd; mod render; mod rules;",
            ),
            ("bounds.rs", "pub const MAX: u8 = 1; use crate::api::Kind;"),
            (
                "api/mod.rs",
                "mod kind; pub use kind::Kind; use crate::bounds::MAX;",
            ),
            (
                "api/kind.rs",
                "pub struct Kind; fn f() { crate::rules::check() }",
            ),
            (
                "catalog.rs",
                "pub struct Row; use crate::api::Kind; use super::render::draw;",
            ),
            ("odd.rs", "use crate::bounds::MAX;"),
            ("render.rs", "pub fn draw() {} use crate::catalog::Row;"),
            (
                "rules.rs",
                "pub fn check() {} use crate::{catalog::Row, render::draw};",
            ),
        ]);
        assert_eq!(
            upward_imports(&folder.path().join("lib.rs")).unwrap(),
            [
                "api/kind.rs -> rules.rs: check (api must not import rules)",
                "bounds.rs -> api/kind.rs: Kind (bounds must not import api)",
                "catalog.rs -> render.rs: draw (catalog must not import render)",
                "odd.rs: module odd is in no layer",
                "render.rs -> catalog.rs: Row (render must not import catalog)",
            ]
        );
    }

    #[test]
    fn common_imports_no_higher_layer() {
        let root = paths::repository().join("common/src/lib.rs");
        assert_eq!(upward_imports(&root).unwrap(), [""; 0]);
    }
}
