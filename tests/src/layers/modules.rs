//! The modules of a crate, as its source declares them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use syn::{Attribute, Expr, ExprLit, Item, ItemUse, Lit, Meta, MetaNameValue, UseTree};

/// The path of a module from the root of its crate; empty for the root.
pub(super) type ModulePath = Vec<String>;

/// The modules of one crate that are compiled without `cfg(test)`.
#[derive(Default)]
pub(super) struct Modules(pub(super) BTreeMap<ModulePath, Module>);

/// A module of a file, or within one.
pub(super) struct Module {
    /// The file it is written in.
    pub(super) file: PathBuf,
    /// Its items, except those of tests and of modules within the file.
    pub(super) items: Vec<Item>,
    /// The names that it declares itself.
    declared: BTreeSet<String>,
    /// The names that its `use` items bring into it, with their paths.
    imported: BTreeMap<String, Vec<String>>,
    /// The paths of its `use` items that end in `*`.
    globs: Vec<Vec<String>>,
}

impl Modules {
    /// Reads a crate from the file of its root.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut modules = Self::default();
        let folder = root.parent().context("a folder of a crate's root")?;
        modules.read_file(Vec::new(), root, folder)?;
        Ok(modules)
    }

    /// Reads the file of a module; the files of its children are in `folder`.
    fn read_file(&mut self, path: ModulePath, file: &Path, folder: &Path) -> Result<()> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let syntax = syn::parse_file(&text).with_context(|| file.display().to_string())?;
        self.add(path, file, folder, syntax.items)
    }

    fn add(
        &mut self,
        path: ModulePath,
        file: &Path,
        folder: &Path,
        items: Vec<Item>,
    ) -> Result<()> {
        let mut module = Module::new(file);
        for item in items {
            match item {
                Item::Mod(child) if !is_test(&child.attrs) => {
                    let name = child.ident.to_string();
                    let below = folder.join(&name);
                    let child_path = joined(&path, &name);
                    if let Some((_, items)) = child.content {
                        self.add(child_path, file, &below, items)?;
                    } else {
                        let flat = below.with_extension("rs");
                        let file = match elsewhere(&child.attrs) {
                            Some(path) => file.with_file_name(path),
                            None if flat.is_file() => flat,
                            None => below.join("mod.rs"),
                        };
                        self.read_file(child_path, &file, &below)?;
                    }
                }
                Item::Mod(_) => {}
                item => module.add(item),
            }
        }
        self.0.insert(path, module);
        Ok(())
    }

    /// The module that declares the item at a path, or the last module found on the path; `None` if the path
    /// leaves the crate. `pub use` is followed, so that a re-export counts for the module that declares the item.
    pub(super) fn resolve(&self, from: &ModulePath, path: &[String]) -> Option<ModulePath> {
        self.resolve_within(from, path, MAX_REEXPORTS)
    }

    fn resolve_within(
        &self,
        from: &ModulePath,
        path: &[String],
        depth: usize,
    ) -> Option<ModulePath> {
        let mut at = from.clone();
        let mut names = path.iter().peekable();
        match names.peek()?.as_str() {
            "crate" => {
                at.clear();
                names.next();
            }
            "self" => {
                names.next();
            }
            "super" => {
                while names.next_if(|name| *name == "super").is_some() {
                    at.pop()?;
                }
            }
            // The path begins with a child, an import, or a crate.
            first if !self.knows(&at, first) => return None,
            _ => {}
        }
        for name in names {
            let child = joined(&at, name);
            if self.0.contains_key(&child) {
                at = child;
                continue;
            }
            let module = self.0.get(&at)?;
            if module.declared.contains(name) || depth == 0 {
                return Some(at);
            }
            if let Some(import) = module.imported.get(name) {
                // An import of another crate counts for the module in which it is written.
                match self.resolve_within(&at, import, depth - 1) {
                    Some(found) => at = found,
                    None => return Some(at),
                }
                continue;
            }
            let mut globs = module.globs.iter();
            let found = globs.find_map(|glob| {
                let module = self.resolve_within(&at, glob, depth - 1)?;
                self.knows(&module, name)
                    .then(|| self.resolve_within(&module, std::slice::from_ref(name), depth - 1))?
            });
            match found {
                Some(found) => at = found,
                // A name that a macro declares.
                None => return Some(at),
            }
        }
        Some(at)
    }

    fn knows(&self, path: &ModulePath, name: &str) -> bool {
        self.0.contains_key(&joined(path, name))
            || self.0.get(path).is_some_and(|module| {
                module.declared.contains(name) || module.imported.contains_key(name)
            })
    }
}

/// Limit of followed re-exports: after this many, the name counts for the module reached by then.
const MAX_REEXPORTS: usize = 8;

fn joined(path: &ModulePath, name: &str) -> ModulePath {
    let mut path = path.clone();
    path.push(name.to_owned());
    path
}

impl Module {
    fn new(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            items: Vec::new(),
            declared: BTreeSet::new(),
            imported: BTreeMap::new(),
            globs: Vec::new(),
        }
    }

    /// Whether a `use` item brings this name into the module.
    pub(super) fn imports(&self, name: &str) -> bool {
        self.imported.contains_key(name)
    }

    fn add(&mut self, item: Item) {
        if is_test(attributes(&item)) {
            return;
        }
        if let Item::Use(item) = &item {
            for Import { path, name } in imports(item) {
                match name {
                    Some(name) => drop(self.imported.insert(name, path)),
                    None => self.globs.push(path),
                }
            }
        }
        self.declared.extend(declared(&item));
        self.items.push(item);
    }
}

/// One path of a `use` item.
pub(super) struct Import {
    /// The path, without the `*` of a glob.
    pub(super) path: Vec<String>,
    /// The name it has where it is imported; `None` for a glob.
    name: Option<String>,
}

/// The paths of a `use` item, one for each leaf of its tree.
pub(super) fn imports(item: &ItemUse) -> Vec<Import> {
    let mut imports = Vec::new();
    if item.leading_colon.is_none() {
        leaves(&item.tree, &[], &mut imports);
    }
    imports
}

fn leaves(tree: &UseTree, before: &[String], imports: &mut Vec<Import>) {
    let with = |name: &syn::Ident| {
        let mut path = before.to_vec();
        // `a::{self}` is `a`.
        if name != "self" || before.is_empty() {
            path.push(name.to_string());
        }
        path
    };
    match tree {
        UseTree::Path(it) => leaves(&it.tree, &with(&it.ident), imports),
        UseTree::Name(it) => {
            let path = with(&it.ident);
            let name = path.last().cloned();
            imports.push(Import { path, name });
        }
        UseTree::Rename(it) => imports.push(Import {
            path: with(&it.ident),
            name: Some(it.rename.to_string()),
        }),
        UseTree::Glob(_) => imports.push(Import {
            path: before.to_vec(),
            name: None,
        }),
        UseTree::Group(it) => {
            for tree in &it.items {
                leaves(tree, before, imports);
            }
        }
    }
}

/// Whether something is compiled for tests only.
pub(super) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            let words = condition.split(|c: char| !c.is_alphanumeric() && c != '_');
            !condition.starts_with("not") && words.into_iter().any(|word| word == "test")
        }
        _ => false,
    })
}

/// The file that `#[path = "…"]` names, from the folder of the file that declares the module.
fn elsewhere(attributes: &[Attribute]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| match &attribute.meta {
            Meta::NameValue(MetaNameValue {
                path,
                value:
                    Expr::Lit(ExprLit {
                        lit: Lit::Str(file),
                        ..
                    }),
                ..
            }) if path.is_ident("path") => Some(file.value()),
            _ => None,
        })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

/// The name that an item declares.
fn declared(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(it) => &it.ident,
        Item::Enum(it) => &it.ident,
        Item::Fn(it) => &it.sig.ident,
        Item::Macro(it) => it.ident.as_ref()?,
        Item::Static(it) => &it.ident,
        Item::Struct(it) => &it.ident,
        Item::Trait(it) => &it.ident,
        Item::Type(it) => &it.ident,
        Item::Union(it) => &it.ident,
        _ => return None,
    };
    Some(name.to_string())
}
