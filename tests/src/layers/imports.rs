//! The imports between the files of a crate.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    ImplItemFn, ItemFn, ItemUse, Macro, Visibility,
    visit::{self, Visit},
};

use super::modules::{self, Modules, is_test};

/// The names that each file imports from each other file of its crate.
pub(super) type Imports = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

/// The imports of a crate: its `use` items and paths that begin with `crate`, `super` or `self`, outside of tests.
pub(super) fn imports_of(modules: &Modules) -> Imports {
    let mut imports = Imports::new();
    for (path, module) in &modules.0 {
        let mut found = Paths::default();
        for item in &module.items {
            found.visit_item(item);
        }
        let from = imports.entry(module.file.clone()).or_default();
        for names in found.0 {
            let to = modules
                .resolve(path, &names)
                .and_then(|to| modules.0.get(&to));
            if let (Some(to), Some(name)) = (to, names.last())
                && to.file != module.file
            {
                from.entry(to.file.clone())
                    .or_default()
                    .insert(name.clone());
            }
        }
    }
    imports
}

/// The paths of some syntax that begin with `crate`, `super` or `self`.
#[derive(Default)]
struct Paths(Vec<Vec<String>>);

impl Paths {
    fn add(&mut self, path: Vec<String>) {
        let begins = |first: &String| ["crate", "super", "self"].contains(&first.as_str());
        if path.len() > 1 && path.first().is_some_and(begins) {
            self.0.push(path);
        }
    }

    /// The arguments of a macro have a syntax of their own: every `crate::…` in them is counted as a path.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.add(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.add(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.add(path);
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        for import in modules::imports(item) {
            self.add(import.path);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.add(names.collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.add_tokens(call.tokens.clone());
    }

    /// `pub(in crate::a)` imports nothing from `a`.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }
}
