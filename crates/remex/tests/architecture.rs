//! The arrows between our crates, the layers within the larger ones, and where `unsafe` may stand: what the compiler does not
//! guard by itself.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod layers;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use layers::LAYERS;
use serde_json::Value;

/// Who may use whom, complete; the crates at the edge that nothing depends on are free in what they use.
const ARROWS: [(&str, &str); 50] = [
    // Errors, requests and the limits of a log, in the types of the wire; only where there is a server.
    ("remex-base", "remex-proto"),
    ("remex-rpc", "remex-proto"),
    // Names in certificates, and files that may be trusted.
    ("remex-rpc", "remex-base"),
    // Profiles arrive in the types of the wire.
    ("remex-sandbox", "remex-proto"),
    // Policies are enforced where processes start.
    ("remex-process", "remex-sandbox"),
    // How a mutex is locked.
    ("remex-process", "remex-base"),
    // What clients call, and errors.
    ("remex-access", "remex-proto"),
    // Names in certificates, limits, files that may be trusted.
    ("remex-access", "remex-base"),
    // Floors, and what nothing confined may reach.
    ("remex-access", "remex-sandbox"),
    // Scopes, accounts, and the policy of a request.
    ("remex-files", "remex-access"),
    // Files that may be trusted, threads that may hang.
    ("remex-files", "remex-base"),
    ("remex-files", "remex-proto"),
    // What a policy allows.
    ("remex-files", "remex-sandbox"),
    // Accounts, audit, and the sandbox of a start.
    ("remex-engine", "remex-access"),
    // Limits, threads that may hang, deadlines.
    ("remex-engine", "remex-base"),
    ("remex-engine", "remex-proto"),
    ("remex-engine", "remex-process"),
    // Who connects to the keeper.
    ("remex-engine", "remex-rpc"),
    // Policies and lists of hosts.
    ("remex-engine", "remex-sandbox"),
    // Output on disk.
    ("remex-engine", "remex-log"),
    ("remex-server", "remex-access"),
    ("remex-server", "remex-engine"),
    ("remex-server", "remex-files"),
    ("remex-server", "remex-base"),
    ("remex-server", "remex-proto"),
    ("remex-server", "remex-rpc"),
    ("remex-server", "remex-process"),
    // Streams, cursors, holds and gaps.
    ("remex-log", "remex-proto"),
    // How a mutex is locked.
    ("remex-client", "remex-base"),
    ("remex-client", "remex-proto"),
    ("remex-client", "remex-rpc"),
    // A client's trace becomes that of a span.
    ("remex-otlp", "remex-proto"),
    ("remex-mcp", "remex-client"),
    // How a mutex is locked.
    ("remex-mcp", "remex-base"),
    // The matcher of output, and paths.
    ("remex-mcp", "remex-proto"),
    ("remex", "remex-server"),
    ("remex", "remex-client"),
    // Files that may be trusted, and names in certificates.
    ("remex", "remex-base"),
    // The library describes the host.
    ("remex", "remex-proto"),
    // The library links a server and a client in one process.
    ("remex", "remex-rpc"),
    ("remex-cli", "remex"),
    // Names in certificates, and how a mutex is locked.
    ("remex-cli", "remex-base"),
    // The program keeps, and collects logs that no server has.
    ("remex-cli", "remex-engine"),
    // What the program does about its own process: signals, its end, its terminal, the handover.
    ("remex-cli", "remex-process"),
    // The program serves.
    ("remex-cli", "remex-server"),
    ("remex-cli", "remex-client"),
    // `remex mcp`.
    ("remex-cli", "remex-mcp"),
    // The program lists and reads processes of other sessions.
    ("remex-cli", "remex-proto"),
    // The program chooses where to listen.
    ("remex-cli", "remex-rpc"),
    // The program exports spans, if it is built with the feature `otlp`.
    ("remex-cli", "remex-otlp"),
];

/// What only the program may depend on.
const COMMAND_LINE: [&str; 5] = ["clap", "clap_complete", "clap_mangen", "crossterm", "ratatui"];

/// Nothing depends on these.
const EDGE: [&str; 2] = ["remex-bench", "remex-fuzz"];

/// The only crate that may use `unsafe`.
const UNSAFE: &str = "remex-process";

#[test]
fn the_arrows_between_our_crates_are_those_of_the_architecture() {
    let packages = packages();
    let names: BTreeSet<_> = packages.iter().map(name).collect();
    let found: BTreeSet<_> = packages
        .iter()
        .filter(|package| !EDGE.contains(&name(package)))
        .flat_map(|package| uses(package).map(move |dependency| (name(package), dependency)))
        .filter(|(_, dependency)| dependency["kind"].is_null())
        .map(|(from, dependency)| (from, name(dependency)))
        .filter(|(_, to)| names.contains(to))
        .collect();
    for (from, to) in &found {
        assert!(
            ARROWS.contains(&(from, to)),
            "`{from}` depends on `{to}`, an arrow that the architecture does not have"
        );
    }
    for (from, to) in ARROWS.iter().filter(|(from, to)| names.contains(from) && names.contains(to)) {
        assert!(
            found.contains(&(from, to)),
            "the architecture has an arrow from `{from}` to `{to}`, but `{from}` does not use `{to}`"
        );
    }
}

#[test]
fn nothing_depends_on_the_benchmarks_and_the_fuzz_targets() {
    for package in &packages() {
        for dependency in uses(package) {
            let (from, to) = (name(package), name(dependency));
            assert!(!EDGE.contains(&to), "`{from}` depends on `{to}`, which nothing may depend on");
        }
    }
}

#[test]
fn the_library_depends_on_no_command_line_crate() {
    let tree =
        cargo(&["tree", "-p", "remex", "--prefix", "none", "--format", "{p}", "--locked", "--offline"]);
    let tree = String::from_utf8(tree).unwrap();
    let names: BTreeSet<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains("remex-client"), "this is no tree of `remex`: {tree}");
    for name in COMMAND_LINE {
        assert!(!names.contains(name), "`remex` depends on `{name}`; see `cargo tree -p remex -i {name}`");
    }
}

#[test]
fn each_module_uses_only_those_below_it() {
    for (package, layers) in LAYERS {
        check_layers(package, layers);
    }
}

#[test]
fn the_top_level_of_each_crate_can_be_seen_at_a_glance() {
    for source in entries(&root().join("crates")).into_iter().map(|directory| directory.join("src")) {
        // A room is a folder, and a file of the same name beside it.
        let names: BTreeSet<_> = entries(&source).iter().map(|path| path.with_extension("")).collect();
        let roots = ["lib", "main", "tests"].map(|root| source.join(root));
        let count = names.iter().filter(|name| !roots.contains(name)).count();
        assert!(count <= 12, "{count} modules and rooms stand side by side in {}", source.display());
    }
}

#[test]
fn the_documents_list_the_rooms_of_the_code() {
    let layers: BTreeMap<_, _> = LAYERS.into_iter().collect();
    let mut listed = BTreeSet::new();
    // Names of one line are apart by one space, and what they are for by more.
    fn names(lines: &[String]) -> impl Iterator<Item = &str> {
        lines.iter().flat_map(|line| line.split("  ").next().unwrap().split(' '))
    }
    for (package, lines) in blocks("ARCHITECTURE.md", "rooms ") {
        let layers = layers[&package[..]];
        let mut rooms: Vec<_> = layers.iter().rev().map(|layer| layer.split('/').next().unwrap()).collect();
        rooms.dedup();
        assert!(names(&lines).eq(rooms), "the rooms of `{package}`, from the top down");
        listed.insert(package);
    }
    for (package, _) in LAYERS {
        assert!(listed.contains(package), "no page lists the rooms of `{package}`");
    }
    for (package, lines) in blocks("docs/design/server.md", "modules ") {
        let modules = layers[&package[..]].iter().rev().map(|layer| layer.rsplit('/').next().unwrap());
        assert!(names(&lines).eq(modules), "the modules of `{package}`, from the top down");
    }
}

#[test]
fn the_architecture_lists_the_arrows_between_our_crates() {
    let blocks = blocks("ARCHITECTURE.md", "arrows");
    let [(_, lines)] = &blocks[..] else { panic!("ARCHITECTURE.md has {} lists of arrows", blocks.len()) };
    let mut listed = BTreeSet::new();
    for line in lines {
        let (from, to) = line.split_once('→').unwrap_or_else(|| panic!("`{line}` has no arrow"));
        let to = to.trim().split("  ").next().unwrap();
        listed.extend(to.split(", ").map(|to| (from.trim(), to)));
    }
    assert_eq!(listed, ARROWS.into_iter().collect(), "the arrows of ARCHITECTURE.md and those of this test");
}

#[test]
fn only_the_arguments_of_the_program_know_the_argument_parser() {
    let source = root().join("crates/remex-cli/src");
    for file in files(&source).iter().filter(|file| !file.starts_with(source.join("args"))) {
        let text = fs::read_to_string(file).unwrap();
        let mut code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let is_parser = file.ends_with("src/args.rs");
        assert!(is_parser || !code.any(|line| line.contains("clap")), "`{}` uses clap", file.display());
    }
}

#[test]
fn the_layer_test_sees_what_a_module_uses() {
    let text = "use crate::{\n    a::{self, B},\n    c,\n};\nfn f() { crate::d::g(); }\n\
                pub(crate) use crate::e::F;\nuse super::{h::I, super::J};\nuse super::*;\n// crate::comment::x\n\
                #[cfg(test)]\nmod tests {\n    use crate::tests::G;\n}\n";
    let used = ["a", "a::B", "c", "d::g", "e::F", "room", "room::h::I"];
    assert_eq!(used_paths(text, &["room", "own"]), used.map(str::to_owned).into());
}

#[test]
fn the_layer_test_sees_what_the_root_exports() {
    let root = "mod a;\npub use a::A;\npub use b::{\n    B,\n    inner::C,\n    D as E,\n};\n// pub use c::F;\n\
                pub use remex_proto::G;\nfn h() {}\n";
    let exported =
        [("A", "a::A"), ("B", "b::B"), ("C", "b::inner::C"), ("E", "b::D"), ("G", "remex_proto::G")];
    assert_eq!(exports(root), exported.map(|(name, path)| (name.to_owned(), path.to_owned())).into());
}

#[test]
fn unsafe_code_is_confined_to_one_crate() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let denial = lines_of(&manifest, "[workspace.lints.rust]").find(|line| line.starts_with("unsafe_code"));
    assert_eq!(denial, Some("unsafe_code = \"deny\""), "the workspace does not deny unsafe code");
    for crate_dir in entries(&root().join("crates")) {
        let manifest = fs::read_to_string(crate_dir.join("Cargo.toml")).unwrap();
        let inherits = lines_of(&manifest, "[lints]").any(|line| line == "workspace = true");
        assert!(inherits, "`{}` does not inherit the lints of the workspace", crate_dir.display());
        if !crate_dir.ends_with(UNSAFE) {
            check_safe(&crate_dir.join("src"));
        }
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let mut has_reason = false;
    for line in lines_of(&manifest, "[workspace.dependencies]") {
        let is_entry = line.starts_with(|first: char| first.is_ascii_alphanumeric());
        let is_ours = line.contains("path = \"crates/");
        assert!(!is_entry || is_ours || has_reason, "no comment says why we need `{line}`");
        has_reason = line.starts_with("# ");
    }
}

/// Fails where a source file below `path` uses `unsafe` or asks to be allowed to.
fn check_safe(path: &Path) {
    if path.is_dir() {
        entries(path).iter().for_each(|entry| check_safe(entry));
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    for (at, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let mut words = code.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let is_safe = !words.any(|word| matches!(word, "unsafe" | "unsafe_code"));
        assert!(is_safe, "{}:{} has unsafe code, which belongs in `{UNSAFE}`", path.display(), at + 1);
    }
}

/// Fails where a module of a crate uses one that is not below it, by its path or by what the root exports of it.
fn check_layers(package: &str, layers: &[&str]) {
    let source = root().join("crates").join(package).join("src");
    // A program has no exports.
    let exports = exports(&fs::read_to_string(source.join("lib.rs")).unwrap_or_default());
    let rooms: BTreeSet<_> =
        layers.iter().filter_map(|layer| layer.split_once('/')).map(|(room, _)| room).collect();
    let layer_of = |path: &[&str]| {
        let is = |layer: &&str| layer.split('/').eq(path.iter().copied().take(layer.split('/').count()));
        layers.iter().position(is)
    };
    let mut found = BTreeSet::new();
    for file in files(&source).into_iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
        let path = file.strip_prefix(&source).unwrap().with_extension("");
        let module: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
        if matches!(module[..], ["lib" | "main"]) || module.contains(&"tests") {
            continue;
        }
        if module.len() == 1 && rooms.contains(module[0]) {
            continue;
        }
        let Some(layer) = layer_of(&module) else {
            panic!("`{}` is no layer of `{package}`; add it to the list where it belongs", module.join("/"))
        };
        found.insert(layer);
        for used in used_paths(&fs::read_to_string(&file).unwrap(), &module) {
            let name = used.split("::").next().unwrap();
            let used = exports.get(name).unwrap_or(&used);
            let is_below = match layer_of(&used.split("::").collect::<Vec<_>>()) {
                Some(used) => used <= layer,
                None => used.starts_with("remex_"),
            };
            assert!(is_below, "`{}` uses `{used}`, which is not below `{}`", file.display(), layers[layer]);
        }
    }
    for (number, layer) in layers.iter().enumerate() {
        assert!(found.contains(&number), "`{layer}` is a layer of `{package}`, but no module");
    }
}

/// Returns the blocks of a page whose language begins with a word, each with the rest of that and its lines.
fn blocks(page: &str, kind: &str) -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let blocks = text.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix(kind));
    let parts = blocks.map(|block| block.split_once('\n').unwrap());
    parts.map(|(name, lines)| (name.to_owned(), lines.lines().map(str::to_owned).collect())).collect()
}

/// Returns what the root of a crate exports, each name with its path.
fn exports(root: &str) -> BTreeMap<String, String> {
    let code: String = root.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let trees = code.split(';').filter_map(|statement| Some(statement.split_once("pub use ")?.1));
    let mut exports = BTreeMap::new();
    for path in trees.flat_map(|tree| paths_of(tree).0) {
        let (path, alias) = path.split_once(" as ").unwrap_or((&path, &path));
        let name = alias.rsplit("::").next().unwrap();
        exports.insert(name.to_owned(), path.to_owned());
    }
    exports
}

/// Returns the paths from the root of the crate that a source file names, apart from its tests.
fn used_paths(text: &str, module: &[&str]) -> BTreeSet<String> {
    let code = text.split("mod tests {").next().unwrap_or_default();
    let code: Vec<_> = code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join(" ");
    let mut used = BTreeSet::new();
    let mut rest = &code[..];
    while let Some(at) = [rest.find("crate::"), rest.find("super::")].into_iter().flatten().min() {
        let (paths, behind) = paths_of(&rest[at..]);
        let is_visibility = rest[..at].ends_with("pub(in ");
        for path in paths.iter().filter(|_| !is_visibility) {
            let path = path.split(" as ").next().unwrap();
            let up = path.split("::").take_while(|part| *part == "super").count();
            let names: Vec<_> = path.split("::").skip(up.max(1)).collect();
            let path = match up {
                0 => names,
                // `super` within a module of the file is the file.
                _ if up >= module.len() => continue,
                _ => module[..module.len() - up].iter().copied().chain(names).collect(),
            };
            used.insert(path.join("::"));
        }
        rest = behind;
    }
    used
}

/// Returns the paths of a tree such as `a::{b, c::D}` at the start of a text, and what follows.
fn paths_of(text: &str) -> (Vec<String>, &str) {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let text = text.trim_start();
    let end = text.find(|c| !is_path(c)).unwrap_or(text.len());
    let (prefix, mut rest) = text.split_at(end);
    let prefix = prefix.trim_end_matches(':');
    let Some(group) = rest.strip_prefix('{') else {
        let alias = rest.strip_prefix(" as ").map(|alias| alias.split(|c| !is_path(c)).next().unwrap());
        let path = alias.map_or_else(|| prefix.to_owned(), |alias| format!("{prefix} as {alias}"));
        let rest = alias.map_or(rest, |alias| &rest[" as ".len() + alias.len()..]);
        return (vec![path], rest);
    };
    rest = group;
    let mut paths = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',', '*']);
        if let Some(behind) = rest.strip_prefix('}') {
            return (paths, behind);
        }
        let (inner, behind) = paths_of(rest);
        assert!(behind.len() < rest.len(), "`{rest}` is no list of paths");
        for path in inner {
            let path = if path == "self" { prefix.to_owned() } else { format!("{prefix}::{path}") };
            paths.push(path);
        }
        rest = behind;
    }
}

/// Returns all files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    entries(directory)
        .into_iter()
        .flat_map(|entry| if entry.is_dir() { files(&entry) } else { vec![entry] })
        .collect()
}

fn packages() -> Vec<Value> {
    let metadata = cargo(&["metadata", "--format-version", "1", "--no-deps", "--locked", "--offline"]);
    let mut metadata: Value = serde_json::from_slice(&metadata).unwrap();
    serde_json::from_value(metadata["packages"].take()).unwrap()
}

/// Runs cargo in the workspace and returns its output.
fn cargo(args: &[&str]) -> Vec<u8> {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program).args(args).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "cargo {}: {}", args[0], String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn name(package_or_dependency: &Value) -> &str {
    package_or_dependency["name"].as_str().unwrap()
}

fn uses(package: &Value) -> impl Iterator<Item = &Value> {
    package["dependencies"].as_array().unwrap().iter()
}

/// Returns the lines of one table of a manifest.
fn lines_of<'a>(manifest: &'a str, table: &str) -> impl Iterator<Item = &'a str> {
    manifest.lines().skip_while(move |line| *line != table).skip(1).take_while(|line| !line.starts_with('['))
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
