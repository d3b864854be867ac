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

/// The imports of a crate outside of tests. A file imports what its `use` items and its paths name. A re-export of what
/// a submodule declares is no import: the files that use it import the submodule.
///
/// Without the types of all expressions it is not known whose method is called: a call to a method of an `impl` in another
/// file is not seen. Nor are paths in the texts of attributes, and a macro of the crate counts for its root.
pub(super) fn imports_of(modules: &Modules) -> Imports {
    let mut imports = Imports::new();
    for (path, module) in &modules.0 {
        let mut found = Paths::default();
        for item in &module.items {
            found.visit_item(item);
        }
        let from = imports.entry(module.file.clone()).or_default();
        let used = found.used.iter();
        // A single name may be that of a variable: it counts only if it is imported.
        let used = used.filter(|it| it.len() > 1 || it.iter().all(|name| module.imports(name)));
        let used = used.map(|names| (names, false));
        let reexported = found.reexported.iter().map(|names| (names, true));
        for (names, is_reexport) in used.chain(reexported) {
            let Some(to) = modules.resolve(path, names) else {
                continue;
            };
            let is_child = to.starts_with(path);
            if let (Some(to), Some(name)) = (modules.0.get(&to), names.last())
                && to.file != module.file
                && !(is_reexport && is_child)
            {
                from.entry(to.file.clone())
                    .or_default()
                    .insert(name.clone());
            }
        }
    }
    imports
}

/// The paths of some syntax.
#[derive(Default)]
struct Paths {
    used: Vec<Vec<String>>,
    /// Those of `pub use`.
    reexported: Vec<Vec<String>>,
}

impl Paths {
    fn add(&mut self, path: Vec<String>) {
        if !path.is_empty() {
            self.used.push(path);
        }
    }

    /// The arguments of a macro have a syntax of their own: all names in them are counted as paths, except those of
    /// `pub(in …)`.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(name) if name == "pub" => {
                    tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
                }
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
        let paths = modules::imports(item).into_iter().map(|it| it.path);
        match item.vis {
            Visibility::Inherited => self.used.extend(paths),
            _ => self.reexported.extend(paths),
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
