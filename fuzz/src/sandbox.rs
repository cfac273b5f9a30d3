//! Profiles of a sandbox: the decoder, the resolver and the patterns.

use std::path::{Component, Path, PathBuf};

use remex_proto::sandbox::{
    Access as WireAccess, Context, Entry, EntryPath, FileSystem, Permissions, Sandbox, Special,
};
use remex_sandbox::{
    Access, Policy, Preset, Request, resolve,
    testing::{Tree, context},
};

/// What the file system of every input has, with links that lead out, nowhere and in circles.
const TREE: [&str; 14] = [
    "/w/.git/config",
    "/w/src/main.rs",
    "/w/.env",
    "/w/out -> ../data",
    "/w/self -> .",
    "/w/none -> missing",
    "/data/a/b/c",
    "/home/user/.ssh/key",
    "/loop -> loop",
    "/tmp/",
    "/usr/lib/",
    "/lib -> usr/lib",
    "/etc/passwd",
    "/v -> w",
];

/// What is asked of every policy.
const PATHS: [&str; 12] = [
    "/",
    "/w",
    "/w/.git/config",
    "/w/new",
    "/w/.env",
    "/w/out",
    "/data/a/b",
    "/home/user/.ssh/key",
    "/tmp/x",
    "/usr/lib",
    "/etc/passwd",
    "/missing/deep",
];

/// A profile that decodes can be sent on; it is refused with an advice or becomes a policy that does not depend on
/// the order of its entries, and that a floor only narrows.
pub fn sandbox(data: &[u8]) {
    let Ok(sandbox) = serde_json::from_slice::<Sandbox>(data) else { return };
    let text = serde_json::to_string(&sandbox).unwrap();
    // Paths may be spelled in another way.
    let again = serde_json::from_str::<Sandbox>(&text).unwrap();
    assert_eq!(again.is_disabled(), sandbox.is_disabled(), "{text}");
    let Sandbox::Confined(context) = &sandbox else { return };

    let tree = Tree::new(TREE);
    let policy = match resolved(context, &tree) {
        Ok(policy) => policy,
        Err(error) => {
            assert!(!error.hint.is_empty() && !error.what.is_empty());
            assert!(resolved(&reversed(context), &tree).is_err(), "only one order is refused: {error}");
            return;
        }
    };
    assert_eq!(resolved(&reversed(context), &tree), Ok(policy.clone()));
    assert!(policy.is_open() || !sandbox.leaves_files_open());

    for preset in Preset::ALL {
        let floor = Context { permissions: preset.permissions(), ..(**context).clone() };
        let Ok(floor) = resolved(&floor, &tree) else { continue };
        let both = policy.narrow(&floor).unwrap();
        for path in PATHS.map(Path::new) {
            assert_eq!(both.access(path), policy.access(path).min(floor.access(path)), "{path:?}");
        }
    }
}

fn resolved(context: &Context, tree: &Tree) -> Result<Policy, remex_sandbox::PolicyError> {
    resolve(&Request { context, cwd: Some(Path::new("/w")), tmpdir: Some("/tmp".as_ref()) }, tree)
}

/// Returns the same profile with its entries in reverse.
fn reversed(context: &Context) -> Context {
    let mut context = context.clone();
    if let Permissions::Managed { file_system: FileSystem::Restricted { entries }, .. } =
        &mut context.permissions
    {
        entries.reverse();
    }
    context
}

/// The first line is a pattern and the rest an absolute path; a denied path is one that the pattern means.
pub fn sandbox_pattern(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some((pattern, path)) = text.split_once('\n') else { return };
    let entry = |path, access| Entry { path, access, missing_path_behavior: None };
    let root = entry(EntryPath::Special { value: Special::Root }, WireAccess::Read);
    let deny = entry(EntryPath::GlobPattern { pattern: pattern.to_owned() }, WireAccess::Deny);
    let context = context(vec![root, deny], Some(vec![PathBuf::from("/w").into()]));
    let Ok(policy) = resolved(&context, &Tree::new(["/w/"])) else { return };

    let path = Path::new(path);
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        assert_eq!(policy.access(path), Access::Deny);
        return;
    }
    let names: Vec<_> = path.iter().skip(1).filter_map(|name| name.to_str()).collect();
    // The model knows neither escapes, classes nor braces, and only ASCII.
    if pattern.contains(['\\', '[', '{', '~']) || !text.is_ascii() {
        return;
    }
    let full = if pattern.starts_with('/') { pattern.to_owned() } else { format!("/w/{pattern}") };
    let parts: Vec<_> = full.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let trailing = parts.iter().rev().take_while(|part| **part == "**").count();
    let parts = &parts[..parts.len() - trailing];
    let is_denied = (0..=names.len()).any(|length| slow_match(parts, &names[..length]));
    assert_eq!(policy.access(path) == Access::Deny, is_denied, "{pattern:?} and {path:?}");
}

/// Returns whether the components of a pattern match all names of a path.
fn slow_match(parts: &[&str], names: &[&str]) -> bool {
    // Position by position, which beginnings of the names a beginning of the pattern matches.
    let mut matched = vec![false; names.len() + 1];
    matched[0] = true;
    for part in parts {
        if *part == "**" {
            let shortest = matched.iter().position(|matched| *matched).unwrap_or(matched.len());
            matched[shortest..].fill(true);
        } else {
            for at in (0..names.len()).rev() {
                matched[at + 1] = matched[at] && slow_name(part.as_bytes(), names[at].as_bytes());
            }
            matched[0] = false;
        }
    }
    matched[names.len()]
}

fn slow_name(pattern: &[u8], name: &[u8]) -> bool {
    let mut matched = vec![false; name.len() + 1];
    matched[0] = true;
    for symbol in pattern {
        if *symbol == b'*' {
            let shortest = matched.iter().position(|matched| *matched).unwrap_or(matched.len());
            matched[shortest..].fill(true);
        } else {
            for at in (0..name.len()).rev() {
                matched[at + 1] = matched[at] && (*symbol == b'?' || *symbol == name[at]);
            }
            matched[0] = false;
        }
    }
    matched[name.len()]
}
