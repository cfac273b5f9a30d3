//! Compares the public API of the crate with `api.txt`, so that no change to it goes unnoticed.
//!
//! The test parses the sources, follows `pub mod` and `pub use` from `lib.rs`, and lists every public item on a line
//! of its own. `UPDATE_SNAPSHOTS=1 cargo test -p remex-client --test public_api` rewrites the file.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

use quote::ToTokens;
use syn::{
    Attribute, Fields, ImplItem, Item, ItemImpl, Meta, Signature, Token, TraitItem, Type, UseTree,
    Visibility, punctuated::Punctuated,
};

const CRATE: &str = "remex_client";

#[test]
fn the_public_api_is_the_one_in_the_committed_list() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("api.txt");
    let found = Api::of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).lines;
    let text: String = found.iter().map(|line| format!("{line}\n")).collect();
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&list, text).unwrap();
        return;
    }
    let committed = fs::read_to_string(&list).unwrap_or_default();
    let committed: BTreeSet<_> = committed.lines().map(str::to_owned).collect();
    let removed = committed.difference(&found).map(|line| format!("- {line}\n"));
    let added = found.difference(&committed).map(|line| format!("+ {line}\n"));
    let changes: String = removed.chain(added).collect();
    assert!(
        changes.is_empty(),
        "the public API differs from crates/remex-client/api.txt:\n{changes}\
         if that is intended, run `UPDATE_SNAPSHOTS=1 cargo test -p remex-client --test public_api` and commit the file"
    );
}

#[test]
fn signatures_read_as_written() {
    let item: syn::ItemFn = syn::parse_str(
        "pub async fn f<'a, A: Into<String>>(&'a mut self, of: &[(u64, A)], run: impl Fn(&str) -> (u8, u8)) \
         -> Result<Option<Vec<u8>>, crate::Error> where A: Send + 'static {}",
    )
    .unwrap();
    assert_eq!(
        tidy(&item.sig),
        "async fn f<'a, A: Into<String>>(&'a mut self, of: &[(u64, A)], run: impl Fn(&str) -> (u8, u8)) \
         -> Result<Option<Vec<u8>>, crate::Error> where A: Send + 'static"
    );
}

/// The path of a module within the crate; empty for the root.
type ModulePath = Vec<String>;

/// One item of a module.
#[derive(Clone)]
struct Definition {
    module: ModulePath,
    item: Item,
}

/// The public items of a crate.
struct Api {
    modules: BTreeMap<ModulePath, Vec<Item>>,
    lines: BTreeSet<String>,
    /// Where each public type or trait is defined, and its public path.
    public: BTreeMap<(ModulePath, String), String>,
}

/// What a name refers to.
enum Resolved {
    Item(Box<Definition>),
    Module(ModulePath),
    /// Something of another crate, by its full path.
    Foreign(String),
}

impl Api {
    fn of(source: &Path) -> Self {
        let mut modules = BTreeMap::new();
        load(&source.join("lib.rs"), source, &Vec::new(), &mut modules);
        let mut api = Self { modules, lines: BTreeSet::new(), public: BTreeMap::new() };
        api.export_module(&Vec::new(), CRATE);
        api.add_impls();
        api
    }

    /// Lists what a public module exports.
    fn export_module(&mut self, module: &ModulePath, public_path: &str) {
        for item in self.modules[module].clone() {
            match &item {
                Item::Use(used) if is_public(&used.vis) => {
                    for (name, path) in flatten(&used.tree) {
                        let resolved = self.resolve_path(module, &path);
                        self.export(resolved, &format!("{public_path}::{name}"));
                    }
                }
                Item::Mod(inner) if is_public(&inner.vis) => {
                    let inner_path = child(module, &inner.ident.to_string());
                    let public_path = format!("{public_path}::{}", inner.ident);
                    self.add(format!("pub mod {public_path}"));
                    self.export_module(&inner_path, &public_path);
                }
                other => {
                    if let Some((name, vis)) = named(other)
                        && is_public(vis)
                        && !matches!(other, Item::Mod(_))
                    {
                        let definition = Definition { module: module.clone(), item: other.clone() };
                        self.export_item(&definition, &format!("{public_path}::{name}"));
                    }
                }
            }
        }
    }

    fn export(&mut self, resolved: Resolved, public_path: &str) {
        match resolved {
            Resolved::Item(definition) => self.export_item(&definition, public_path),
            Resolved::Module(module) => {
                self.add(format!("pub mod {public_path}"));
                self.export_module(&module, public_path);
            }
            Resolved::Foreign(path) => self.add(format!("pub use {path} as {public_path}")),
        }
    }

    fn export_item(&mut self, definition: &Definition, path: &str) {
        if let Some((name, _)) = named(&definition.item) {
            self.public.insert((definition.module.clone(), name), path.to_owned());
        }
        match &definition.item {
            Item::Struct(item) => {
                let kind = if item.fields.iter().all(|field| is_public(&field.vis)) { "" } else { " { .. }" };
                self.add(format!(
                    "{}pub struct {path}{}{kind}",
                    exhaustiveness(&item.attrs),
                    tidy(&item.generics)
                ));
                for (index, field) in
                    item.fields.iter().enumerate().filter(|(_, field)| is_public(&field.vis))
                {
                    let name = field.ident.as_ref().map_or(index.to_string(), ToString::to_string);
                    self.add(format!("pub {path}::{name}: {}", tidy(&field.ty)));
                }
                self.add_derives(&item.attrs, path);
            }
            Item::Enum(item) => {
                self.add(format!("{}pub enum {path}{}", exhaustiveness(&item.attrs), tidy(&item.generics)));
                for variant in &item.variants {
                    let fields = match &variant.fields {
                        Fields::Unit => String::new(),
                        Fields::Named(fields) => {
                            let fields = fields.named.iter().map(|field| {
                                format!("{}: {}", field.ident.to_token_stream(), tidy(&field.ty))
                            });
                            format!(" {{ {} }}", fields.collect::<Vec<_>>().join(", "))
                        }
                        Fields::Unnamed(fields) => {
                            let fields = fields.unnamed.iter().map(|field| tidy(&field.ty));
                            format!("({})", fields.collect::<Vec<_>>().join(", "))
                        }
                    };
                    self.add(format!("pub {path}::{}{fields}", variant.ident));
                }
                self.add_derives(&item.attrs, path);
            }
            Item::Trait(item) => {
                let bounds = if item.supertraits.is_empty() {
                    String::new()
                } else {
                    format!(": {}", tidy(&item.supertraits))
                };
                self.add(format!("pub trait {path}{}{bounds}", tidy(&item.generics)));
                for member in &item.items {
                    match member {
                        TraitItem::Fn(function) => {
                            let body = if function.default.is_some() { " { .. }" } else { "" };
                            self.add(format!("{}{body}", signature(&function.sig, path)));
                        }
                        other => self.add(format!("pub {path}::{}", tidy(other))),
                    }
                }
            }
            Item::Fn(item) => {
                let (parent, _) = path.rsplit_once("::").unwrap();
                self.add(signature(&item.sig, parent));
            }
            Item::Const(item) => self.add(format!("pub const {path}: {}", tidy(&item.ty))),
            Item::Static(item) => self.add(format!("pub static {path}: {}", tidy(&item.ty))),
            Item::Type(item) => {
                self.add(format!("pub type {path}{} = {}", tidy(&item.generics), tidy(&item.ty)));
            }
            other => panic!("the list cannot show `{}` at {path}; teach it to", tidy(other)),
        }
    }

    /// Lists the derived traits of a type.
    fn add_derives(&mut self, attrs: &[Attribute], path: &str) {
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("derive")) {
            let traits = attr.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated).unwrap();
            for derived in traits {
                self.add(format!("impl {} for {path}", tidy(&derived)));
            }
        }
    }

    /// Lists the methods and traits of public types, wherever in the crate they are implemented.
    fn add_impls(&mut self) {
        let modules = self.modules.clone();
        for (module, items) in &modules {
            for item in items {
                let Item::Impl(block) = item else { continue };
                let Some(path) = self.public_path(module, &block.self_ty) else { continue };
                self.add_impl(block, &path);
            }
        }
    }

    fn add_impl(&mut self, block: &ItemImpl, path: &str) {
        if let Some((_, implemented, _)) = &block.trait_ {
            let ty = tidy(&block.self_ty);
            let arguments = ty.find('<').map_or("", |at| &ty[at..]);
            let generics = tidy(&block.generics);
            self.add(format!("impl{generics} {} for {path}{arguments}", tidy(implemented)));
            return;
        }
        for item in &block.items {
            match item {
                ImplItem::Fn(function) if is_public(&function.vis) => {
                    self.add(signature(&function.sig, path));
                }
                ImplItem::Const(constant) if is_public(&constant.vis) => {
                    self.add(format!("pub const {path}::{}: {}", constant.ident, tidy(&constant.ty)));
                }
                _ => {}
            }
        }
    }

    /// Returns the public path of a type as it is named in a module, if it is public.
    fn public_path(&self, module: &ModulePath, ty: &Type) -> Option<String> {
        let Type::Path(ty) = ty else { return None };
        let path: Vec<_> = ty.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        match self.try_resolve(module, &path)? {
            Resolved::Item(definition) => {
                let (name, _) = named(&definition.item)?;
                self.public.get(&(definition.module, name)).cloned()
            }
            Resolved::Module(_) | Resolved::Foreign(_) => None,
        }
    }

    fn resolve_path(&self, module: &ModulePath, path: &[String]) -> Resolved {
        self.try_resolve(module, path)
            .unwrap_or_else(|| panic!("`{}` in `{}` leads nowhere", path.join("::"), module.join("::")))
    }

    /// Finds what a path means in a module.
    fn try_resolve(&self, module: &ModulePath, path: &[String]) -> Option<Resolved> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Resolved::Module(Vec::new()),
            "self" => Resolved::Module(module.clone()),
            "super" => Resolved::Module(module[..module.len().checked_sub(1)?].to_vec()),
            name => self.find(module, name).unwrap_or_else(|| Resolved::Foreign(name.to_owned())),
        };
        rest.iter().try_fold(start, |at, name| match at {
            Resolved::Module(module) => self.find(&module, name),
            Resolved::Foreign(path) => Some(Resolved::Foreign(format!("{path}::{name}"))),
            Resolved::Item(_) => None,
        })
    }

    /// Finds a name in a module: an item, an inner module, or an import.
    fn find(&self, module: &ModulePath, name: &str) -> Option<Resolved> {
        let items = self.modules.get(module)?;
        for item in items {
            match item {
                Item::Mod(inner) if inner.ident == name => {
                    return Some(Resolved::Module(child(module, name)));
                }
                Item::Use(used) => {
                    let import = flatten(&used.tree).into_iter().find(|(imported, _)| imported == name);
                    // An import such as `use bytes::Bytes` of a crate must not be taken for itself.
                    if let Some((_, path)) = import.filter(|(_, path)| path.len() > 1) {
                        return self.try_resolve(module, &path);
                    }
                }
                other if named(other).is_some_and(|(found, _)| found == name) => {
                    let definition = Definition { module: module.clone(), item: other.clone() };
                    return Some(Resolved::Item(Box::new(definition)));
                }
                _ => {}
            }
        }
        None
    }

    fn add(&mut self, line: String) {
        self.lines.insert(line);
    }
}

/// Reads a module and those below it, without tests.
fn load(file: &Path, directory: &Path, path: &ModulePath, modules: &mut BTreeMap<ModulePath, Vec<Item>>) {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    add_module(parsed.items, directory, path, modules);
}

fn add_module(
    items: Vec<Item>,
    directory: &Path,
    path: &ModulePath,
    modules: &mut BTreeMap<ModulePath, Vec<Item>>,
) {
    let items: Vec<_> = items.into_iter().filter(|item| !is_test(attributes(item))).collect();
    for item in &items {
        let Item::Mod(inner) = item else { continue };
        let name = inner.ident.to_string();
        let inner_directory = directory.join(&name);
        match &inner.content {
            Some((_, items)) => add_module(items.clone(), &inner_directory, &child(path, &name), modules),
            None => {
                let files = [directory.join(format!("{name}.rs")), inner_directory.join("mod.rs")];
                let file: &PathBuf = files.iter().find(|file| file.exists()).unwrap_or(&files[0]);
                load(file, &inner_directory, &child(path, &name), modules);
            }
        }
    }
    modules.insert(path.clone(), items);
}

/// Returns the names that a `use` brings in, each with the path it stands for.
fn flatten(tree: &UseTree) -> Vec<(String, Vec<String>)> {
    match tree {
        UseTree::Path(path) => flatten(&path.tree)
            .into_iter()
            .map(|(name, mut rest)| {
                rest.insert(0, path.ident.to_string());
                // `use a::{self}` brings in `a`.
                if name == "self" {
                    (path.ident.to_string(), rest[..rest.len() - 1].to_vec())
                } else {
                    (name, rest)
                }
            })
            .collect(),
        UseTree::Name(name) => vec![(name.ident.to_string(), vec![name.ident.to_string()])],
        UseTree::Rename(renamed) => vec![(renamed.rename.to_string(), vec![renamed.ident.to_string()])],
        UseTree::Group(group) => group.items.iter().flat_map(flatten).collect(),
        UseTree::Glob(_) => Vec::new(),
    }
}

fn child(module: &ModulePath, name: &str) -> ModulePath {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_test(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        Meta::List(list) => attr.path().is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

fn exhaustiveness(attrs: &[Attribute]) -> &'static str {
    let is_open = attrs.iter().any(|attr| attr.path().is_ident("non_exhaustive"));
    if is_open { "#[non_exhaustive] " } else { "" }
}

fn named(item: &Item) -> Option<(String, &Visibility)> {
    let (ident, vis) = match item {
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::Fn(item) => (&item.sig.ident, &item.vis),
        Item::Const(item) => (&item.ident, &item.vis),
        Item::Static(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        _ => return None,
    };
    Some((ident.to_string(), vis))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        _ => &[],
    }
}

/// Writes a function with the path of what it belongs to.
fn signature(signature: &Signature, parent: &str) -> String {
    let name = format!("fn {}", signature.ident);
    format!("pub {}", tidy(signature).replacen(&name, &format!("fn {parent}::{}", signature.ident), 1))
}

/// Writes tokens with the spaces that a person would put.
fn tidy(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (spaced, tight) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        ("< ", "<"),
        (" <", "<"),
        (" >", ">"),
        (" ,", ","),
        (",)", ")"),
        (" ;", ";"),
        ("& ", "&"),
        ("( ", "("),
        (" )", ")"),
        (" (", "("),
        ("[ ", "["),
        (" ]", "]"),
        (" : ", ": "),
        (" :", ":"),
        ("->(", "-> ("),
        (":(", ": ("),
        (",(", ", ("),
        ("=(", "= ("),
    ] {
        text = text.replace(spaced, tight);
    }
    text.trim_end_matches(',').to_owned()
}
