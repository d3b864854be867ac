//! Circles of imports: files that cannot be understood, tested or moved one without the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{
    imports::{Imports, imports_of},
    modules::Modules,
};
use crate::paths;

/// Files of one folder may import each other, in groups small enough to be read together.
const MAX_FILES: usize = 3;

/// Files that import each other, and the imported names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circle {
    pub files: BTreeSet<PathBuf>,
    /// The imports among them: from, to, names.
    pub ties: Vec<(PathBuf, PathBuf, BTreeSet<String>)>,
}

impl Circle {
    fn allowed(&self) -> bool {
        let folders: BTreeSet<_> = self.files.iter().map(|file| file.parent()).collect();
        self.files.len() <= MAX_FILES && folders.len() == 1
    }
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |path: &Path| {
            let path = path.strip_prefix(paths::repository()).unwrap_or(path);
            path.display().to_string()
        };
        write!(
            f,
            "{} files import each other (at most {MAX_FILES}, and all of one folder):",
            self.files.len()
        )?;
        for (from, to, names) in &self.ties {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            write!(
                f,
                "\n  {} -> {}: {}",
                shown(from),
                shown(to),
                names.join(", ")
            )?;
        }
        Ok(())
    }
}

/// The circles of a crate that are not allowed; `root` is the file of its root.
pub fn circles_of(root: &Path) -> Result<Vec<Circle>> {
    let imports = imports_of(&Modules::read(root)?);
    let mut circles = circles(&imports);
    circles.retain(|circle| !circle.allowed());
    Ok(circles)
}

/// The largest sets of files of which each reaches every other.
fn circles(imports: &Imports) -> Vec<Circle> {
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> = imports
        .keys()
        .map(|file| (file, reached(imports, file)))
        .collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for (file, others) in &reached {
        let back = |other: &&&PathBuf| reached.get(**other).is_some_and(|it| it.contains(file));
        let files: BTreeSet<PathBuf> = others.iter().filter(back).map(|it| (*it).clone()).collect();
        if files.len() < 2 || !seen.insert(files.clone()) {
            continue;
        }
        let ties = imports.iter().filter(|(from, _)| files.contains(*from));
        let ties = ties.flat_map(|(from, to)| {
            let within = to.iter().filter(|(to, _)| files.contains(*to));
            within.map(|(to, names)| (from.clone(), to.clone(), names.clone()))
        });
        let ties = ties.collect();
        circles.push(Circle { files, ties });
    }
    circles
}

/// The files that a file imports, and those that these import, and so on.
fn reached<'a>(imports: &'a Imports, file: &'a PathBuf) -> BTreeSet<&'a PathBuf> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![file];
    while let Some(file) = waiting.pop() {
        for next in imports.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(next) {
                waiting.push(next);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of a crate that consists of these files, with paths relative to its folder.
    fn planted(files: &[(&str, &str)]) -> Vec<String> {
        let folder = crate::layers::planted(files);
        let circles = circles_of(&folder.path().join("lib.rs")).unwrap();
        let prefix = format!("{}/", folder.path().display());
        let shown = circles.iter().map(ToString::to_string);
        shown.map(|text| text.replace(&prefix, "")).collect()
    }

    #[test]
    fn a_circle_between_folders_is_reported_with_its_files_and_names() {
        let circles = planted(&[
            ("lib.rs", "mod rules; mod admission;"),
            (
                "rules/mod.rs",
                "use crate::admission::{Review as It, answer::Deny};",
            ),
            ("admission/mod.rs", "mod answer; pub struct Review;"),
            (
                "admission/answer.rs",
                "pub struct Deny; fn f() { crate::rules::f(super::Review) }",
            ),
        ]);
        assert_eq!(
            circles,
            [
                "2 files import each other (at most 3, and all of one folder):
  admission/answer.rs -> rules/mod.rs: f
  rules/mod.rs -> admission/answer.rs: Deny"
            ]
        );
    }

    #[test]
    fn a_circle_through_reexports_of_two_folders_is_reported() {
        let circles = planted(&[
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod x; pub use x::X;"),
            ("a/x.rs", "pub struct X(crate::b::Y);"),
            ("b/mod.rs", "mod y; pub use self::y::*;"),
            (
                "b/y.rs",
                "pub struct Y; fn f() -> Option<crate::a::X> { None }",
            ),
        ]);
        assert_eq!(
            circles,
            [
                "2 files import each other (at most 3, and all of one folder):
  a/x.rs -> b/y.rs: Y
  b/y.rs -> a/x.rs: X"
            ]
        );
    }

    #[test]
    fn a_circle_of_four_files_of_one_folder_is_reported() {
        let circles = planted(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use super::c; pub struct B;"),
            ("c.rs", "fn f() { println!(\"{}\", crate::d::D); }"),
            ("d.rs", "pub const D: u8 = 1; use crate::{a::{self}};"),
        ]);
        assert_eq!(circles.len(), 1, "{circles:#?}");
        assert!(circles[0].starts_with("4 files"), "{circles:#?}");
        assert!(circles[0].contains("\n  c.rs -> d.rs: D"), "{circles:#?}");
    }

    #[test]
    fn a_module_that_uses_its_own_modules_imports_them() {
        let child = "use super::Parent; fn f() { crate::parent::high::g() }";
        let circles = planted(&[
            ("lib.rs", "mod parent;"),
            (
                "parent/mod.rs",
                "mod called; mod reexported; mod high;
                 pub use reexported::Reexported;
                 pub struct Parent(Reexported); fn f() { called::f() }",
            ),
            ("parent/called.rs", child),
            (
                "parent/reexported.rs",
                "pub struct Reexported; use super::high::g;",
            ),
            (
                "parent/high.rs",
                "macro_rules! m { () => { pub(in crate::other) fn g() {} } } fn h(_: super::Parent) {}",
            ),
        ]);
        assert_eq!(
            circles,
            [
                "4 files import each other (at most 3, and all of one folder):
  parent/called.rs -> parent/high.rs: g
  parent/called.rs -> parent/mod.rs: Parent
  parent/high.rs -> parent/mod.rs: Parent
  parent/mod.rs -> parent/called.rs: f
  parent/mod.rs -> parent/reexported.rs: Reexported
  parent/reexported.rs -> parent/high.rs: g"
            ]
        );
    }

    #[test]
    fn layers_small_circles_and_imports_of_tests_are_allowed() {
        let circles = planted(&[
            ("lib.rs", "mod low; mod high; mod pair;"),
            // A module that re-exports its children, of which one uses another.
            (
                "low/mod.rs",
                "mod one; mod two; pub use one::One; pub(crate) use two::Two;",
            ),
            ("low/one.rs", "pub struct One(super::Two);"),
            (
                "low/two.rs",
                "pub(in crate::low) struct Two; #[cfg(test)] mod tests { use crate::high::f; }",
            ),
            (
                "high.rs",
                "use crate::low::One; pub fn f(_: One) {} #[test] fn t() { super::pair::g() }",
            ),
            // A module and its child in one folder.
            (
                "pair/mod.rs",
                "mod child; use self::child::Child; pub struct Parent; fn g() {}",
            ),
            (
                "pair/child.rs",
                "pub struct Child(super::Parent); use std::fmt; use crate::high;",
            ),
        ]);
        assert_eq!(circles, [""; 0]);
    }
}
