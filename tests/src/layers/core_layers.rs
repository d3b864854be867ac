//! The floors of `common`: which of its modules may import which.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::{imports::imports_of, modules::Modules};

/// The modules of `common` from the ground up, in two towers: a module imports modules of its own floor and of
/// those below it in the same tower. `render` does not read the catalog, and neither the catalog nor `normalize`
/// reads what is rendered. A module that is on no floor is a violation.
const FLOORS: [&[&[&str]]; 2] = [
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

/// The imports of a higher floor, one line each, in the crate whose root is this file.
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
        if !is_on_a_floor(&from) {
            found.push(format!("{file}: module {from} is on no floor"));
        }
        for (other, names) in imported {
            let Some((to, other)) = module(&other).filter(|(name, _)| name != "lib") else {
                continue;
            };
            if from != to && is_on_a_floor(&from) && is_on_a_floor(&to) && !may_import(&from, &to) {
                let names = Vec::from_iter(names).join(", ");
                found.push(format!(
                    "{file} -> {other}: {names} ({from} must not import {to})"
                ));
            }
        }
    }
    Ok(found)
}

fn floor(tower: &[&[&str]], module: &str) -> Option<usize> {
    tower.iter().position(|floor| floor.contains(&module))
}

fn is_on_a_floor(module: &str) -> bool {
    FLOORS.iter().any(|tower| floor(tower, module).is_some())
}

fn may_import(from: &str, to: &str) -> bool {
    FLOORS.iter().any(|tower| {
        let both = floor(tower, from).zip(floor(tower, to));
        both.is_some_and(|(from, to)| to <= from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{layers::planted, paths};

    #[test]
    fn imports_of_a_higher_floor_are_reported_with_their_names() {
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
                "odd.rs: module odd is on no floor",
                "render.rs -> catalog.rs: Row (render must not import catalog)",
            ]
        );
    }

    #[test]
    fn common_imports_no_higher_floor() {
        let root = paths::repository().join("common/src/lib.rs");
        assert_eq!(upward_imports(&root).unwrap(), [""; 0]);
    }
}
