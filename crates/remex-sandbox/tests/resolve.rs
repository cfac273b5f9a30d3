//! What a profile is relative to, and what is refused.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::path::{Path, PathBuf};

use remex_proto::HostPath;
use remex_proto::sandbox::{
    Access as Wire, Context, Entry, EntryPath, FileSystem, Network, Permissions, PolicyContext, Special,
};
use remex_sandbox::{
    Access, Action, Kind, Link, Policy, PolicyError, Reason, Request, resolve,
    testing::{Tree, context},
};

fn path(text: &str) -> HostPath {
    HostPath::parse(text).unwrap()
}

fn special(value: Special, access: Wire) -> Entry {
    Entry { path: EntryPath::Special { value }, access, missing_path_behavior: None }
}

fn roots(access: Wire) -> Entry {
    special(Special::ProjectRoots { subpath: None }, access)
}

fn at(text: &str, access: Wire) -> Entry {
    Entry { path: EntryPath::Path { path: path(text) }, access, missing_path_behavior: None }
}

fn pattern(pattern: &str, access: Wire) -> Entry {
    Entry {
        path: EntryPath::GlobPattern { pattern: pattern.to_owned() },
        access,
        missing_path_behavior: None,
    }
}

fn tree() -> Tree {
    Tree::new([
        "/a/f",
        "/b/f",
        "/c/f",
        "/tmp/",
        "/t/",
        "/home/user/.ssh/key",
        "/bin -> usr/bin",
        "/usr/bin/env",
    ])
}

fn resolved(context: &Context) -> Result<Policy, PolicyError> {
    resolve(&Request { context, cwd: None, tmpdir: None }, &tree())
}

fn writable(context: &Context, cwd: Option<&str>) -> Vec<PathBuf> {
    let policy = resolve(&Request { context, cwd: cwd.map(Path::new), tmpdir: None }, &tree()).unwrap();
    let writable = policy.rules().iter().filter(|rule| rule.access == Access::Write);
    writable.map(|rule| rule.path.clone()).collect()
}

#[test]
fn project_roots_are_those_of_the_policy_context_then_of_the_context_then_the_working_directory() {
    let bare = context(vec![roots(Wire::Write)], None);
    assert_eq!(writable(&bare, Some("/c")), [Path::new("/c")]);
    let with_cwd = Context { cwd: Some(path("/b")), ..bare.clone() };
    assert_eq!(writable(&with_cwd, Some("/c")), [Path::new("/b")]);
    let with_roots = Context { workspace_roots: Some(vec![path("/a"), path("/b")]), ..with_cwd.clone() };
    assert_eq!(writable(&with_roots, Some("/c")), [Path::new("/a"), Path::new("/b")]);
    let inner = |cwd, workspace_roots| Some(PolicyContext { cwd, workspace_roots });
    let with_inner = Context { policy_context: inner(None, Some(vec![path("/c")])), ..with_roots };
    assert_eq!(writable(&with_inner, None), [Path::new("/c")]);
    let with_inner_cwd = Context { policy_context: inner(Some(path("/a")), None), ..with_cwd };
    assert_eq!(writable(&with_inner_cwd, None), [Path::new("/a")]);
    let error = resolved(&bare).unwrap_err();
    assert_eq!(error.why, Reason::NoRoots);
    assert_eq!(
        error.to_string(),
        "cannot apply `write` to `project_roots`: neither `workspaceRoots` nor `cwd` says where it starts"
    );
    assert_eq!(error.hint, "send `workspaceRoots` or `cwd` in the sandbox context");
}

#[test]
fn temporary_directories_are_those_of_the_context_then_of_the_environment() {
    let bare = context(vec![special(Special::Tmpdir, Wire::Write)], None);
    let policy = |context: &Context, tmpdir: Option<&str>| {
        let tmpdir = tmpdir.map(AsRef::as_ref);
        resolve(&Request { context, cwd: None, tmpdir }, &tree()).unwrap()
    };
    assert_eq!(policy(&bare, Some("/t")).temporary_directories(), [Path::new("/t")]);
    assert_eq!(policy(&bare, Some("t")).rules(), []);
    assert_eq!(policy(&bare, None).rules(), []);
    let named = Context { temporary_directories: Some(vec![path("/tmp")]), ..bare };
    assert_eq!(policy(&named, Some("/t")).temporary_directories(), [Path::new("/tmp")]);
}

#[test]
fn the_names_of_many_writable_directories_are_protected_or_the_profile_is_refused() {
    let roots = |count: usize| {
        let names: Vec<_> = (0..count).map(|number| format!("/many/{number}")).collect();
        let tree = Tree::new(
            names.iter().map(|name| format!("{name}/")).collect::<Vec<_>>().iter().map(|name| &**name),
        );
        let entries = names.iter().map(|name| at(name, Wire::Write)).collect();
        let context = context(entries, None);
        resolve(&Request { context: &context, cwd: None, tmpdir: None }, &tree)
    };
    let policy = roots(1000).unwrap();
    assert_eq!(policy.access(Path::new("/many/999/.git/hooks")), Access::Read);
    assert_eq!(policy.access(Path::new("/many/999/hooks")), Access::Write);
    let error = roots(1100).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot apply the protected names of its writable directories: the profile has more than 4096 protected names"
    );
}

#[test]
fn a_write_grant_for_a_missing_path_is_refused_if_the_client_asks_for_that() {
    let tree = Tree::new(["/w/link -> /data", "/data/f", "/system -> data", "/data/in -> f"]);
    let resolve_with = |written: &str, refuse_missing_writes| {
        let bare = context(vec![at(written, Wire::Write)], None);
        let context = Context { refuse_missing_writes, ..bare };
        resolve(&Request { context: &context, cwd: None, tmpdir: None }, &tree)
            .map_err(|error| error.to_string())
    };
    for (written, why) in [
        (
            "/data/new",
            "cannot apply `write` to `/data/new`: `/data/new` does not exist, so nothing can be granted",
        ),
        ("/data/new/deep", "`/data/new/deep` does not exist"),
        ("/data/f/below", "`/data/f/below` does not exist"),
        ("/system/new", "`/data/new` does not exist"),
        (
            "/w/link/new",
            "it leads through the symbolic link `/w/link` to `/data/new`, and a confined program may",
        ),
    ] {
        let error = resolve_with(written, Some(true)).unwrap_err();
        assert!(error.contains(why), "{error}");
        for silent in [None, Some(false)] {
            assert_eq!(resolve_with(written, silent).unwrap().rules(), [], "{written}");
        }
    }
    assert!(resolve_with("/data/f", Some(true)).is_ok());
    // What has a name of its own is on no client's list.
    let bare = context(vec![special(Special::SlashTmp, Wire::Write)], None);
    let context = Context { refuse_missing_writes: Some(true), ..bare };
    assert!(resolve(&Request { context: &context, cwd: None, tmpdir: None }, &tree).is_ok());
}

#[test]
fn a_pattern_may_start_at_the_home_directory() {
    let entries = vec![special(Special::Root, Wire::Read), pattern("~/.ssh/**", Wire::Deny)];
    let bare = context(entries, None);
    assert_eq!(resolved(&bare).unwrap_err().why, Reason::NoHome);
    let policy = resolved(&Context { user_home_dir: Some(path("/home/user")), ..bare }).unwrap();
    assert_eq!(policy.access(Path::new("/home/user/.ssh/key")), Access::Deny);
    assert_eq!(policy.access(Path::new("/home/user/x")), Access::Read);
}

#[test]
fn a_profile_that_leaves_files_open_becomes_an_open_policy() {
    let with = |permissions| Context { permissions, ..context(Vec::new(), None) };
    let unrestricted = FileSystem::Unrestricted;
    let network = Network::Restricted;
    for (context, network) in [
        (with(Permissions::Disabled), Network::Enabled),
        (with(Permissions::External { network }), network),
        (with(Permissions::Managed { file_system: unrestricted, network }), network),
        (context(vec![special(Special::Root, Wire::Write), at("/a", Wire::Write)], None), network),
    ] {
        let policy = resolved(&context).unwrap();
        assert!(policy.is_open(), "{context:?}");
        assert_eq!(policy.network(), network, "{context:?}");
    }
    let restricted = context(vec![special(Special::Root, Wire::Write), at("/a", Wire::Read)], None);
    assert!(!resolved(&restricted).unwrap().is_open());
}

#[test]
fn an_unknown_profile_is_refused() {
    let many = (0..5000).map(|number| at(&format!("/a/{number}"), Wire::Deny)).collect();
    for (entries, why) in [
        (vec![at("file://server/x", Wire::Deny)], "the path is not on this host"),
        (vec![pattern("*.txt", Wire::Read)], "a pattern can deny access"),
        (vec![pattern("[", Wire::Deny)], "a `[` has no `]`"),
        (vec![at("/missing/../x", Wire::Deny)], "`..` follows something that is not a directory"),
        (many, "the profile has more than 4096 entries and roots"),
    ] {
        let error = resolved(&context(entries, Some(vec![path("/a")]))).unwrap_err();
        assert!(error.why.to_string().contains(why), "{error}");
    }
}

#[test]
fn only_canonical_paths_are_allowed() {
    let policy = resolved(&context(vec![at("/a", Wire::Write)], None)).unwrap();
    for (path, access) in [
        ("/a", Access::Write),
        ("/a/", Access::Write),
        ("//a/.//f", Access::Write),
        ("/a/../a/f", Access::Deny),
        ("a/f", Access::Deny),
        ("", Access::Deny),
        ("/", Access::Deny),
        ("/ab", Access::Deny),
    ] {
        assert_eq!(policy.access(Path::new(path)), access, "{path:?}");
    }
    assert!(policy.leads_to_grant(Path::new("/")));
    assert!(!policy.leads_to_grant(Path::new("/b")));
}

#[test]
fn a_policy_lists_links_to_granted_paths_and_pinned_directories() {
    let entries = vec![special(Special::Minimal, Wire::Read), at("/home", Wire::Write)];
    let policy =
        resolved(&context([entries, vec![at("/home/user/.ssh", Wire::Deny)]].concat(), None)).unwrap();
    assert_eq!(policy.links(), [Link { path: "/bin".into(), target: "usr/bin".into() }]);
    assert_eq!(policy.pinned(), [Path::new("/home/user")]);
    assert!(!policy.allows(Path::new("/home/user"), Action::Remove));
    let found = policy.rules().iter().filter(|rule| !rule.kind.is_missing());
    let kinds: Vec<_> = found.map(|rule| (rule.path.to_str().unwrap(), rule.kind)).collect();
    let directory = Kind::Directory;
    assert_eq!(kinds, [("/home", directory), ("/home/user/.ssh", directory), ("/usr", directory)]);
}
