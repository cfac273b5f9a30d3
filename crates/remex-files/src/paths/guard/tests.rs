use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
};

use remex_proto::sandbox::{Access, Entry, EntryPath};
use remex_sandbox::testing::context;
use tempfile::TempDir;

use super::*;

/// A directory `in` that may be read and written, and a directory `out` beside it.
pub(crate) struct TestTree {
    place: TempDir,
}

impl TestTree {
    pub(crate) fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("in/d")).unwrap();
        fs::create_dir_all(place.path().join("out/d")).unwrap();
        fs::write(place.path().join("in/f"), "inside").unwrap();
        fs::write(place.path().join("out/f"), "outside").unwrap();
        TestTree { place }
    }

    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.place.path().canonicalize().unwrap().join(path)
    }

    pub(crate) fn guard(&self) -> PathGuard {
        self.guard_for(&["files:read=in", "files:write=in"])
    }

    /// Returns the guard for scopes with paths in this tree.
    fn guard_for(&self, scopes: &[&str]) -> PathGuard {
        let word = |word: &&str| match word.split_once('=') {
            Some((scope, path)) => format!("{scope}={}", self.path(path).display()),
            None => (*word).to_owned(),
        };
        let words: Vec<String> = scopes.iter().map(word).collect();
        PathGuard::new(&Arc::new(words.join(" ").parse().unwrap()))
    }

    /// Returns a sandbox with these entries, whose paths are in this tree.
    pub(crate) fn sandbox(&self, entries: &[(Access, &str)]) -> Sandbox {
        let entry = |(access, path): &(Access, &str)| Entry {
            path: EntryPath::Path { path: self.path(path).into() },
            access: *access,
            missing_path_behavior: None,
        };
        Sandbox::Confined(Box::new(context(entries.iter().map(entry).collect(), None)))
    }

    fn link(&self, target: impl AsRef<Path>, path: &str) {
        symlink(target, self.path(path)).unwrap();
    }

    /// Returns where a path leads, relative to the tree, or the kind of the error.
    fn target(
        &self,
        guard: &PathGuard,
        path: impl AsRef<Path>,
        access: FileAccess,
    ) -> Result<String, ErrorKind> {
        let path = self.path(path);
        let located = guard.target(&path, Links::Follow, access).map_err(|error| error.kind)?;
        let real = located.real().expect("the guard has limits");
        assert_eq!(
            located.name(),
            real.file_name().map_or(Path::new("."), Path::new),
            "the name is the last"
        );
        Ok(real.strip_prefix(self.path("")).map_or(real, |real| real).to_string_lossy().into_owned())
    }

    fn read(&self, path: impl AsRef<Path>) -> Result<String, ErrorKind> {
        self.target(&self.guard(), path, FileAccess::Read)
    }
}

const DENIED: ErrorKind = ErrorKind::PermissionDenied;

#[test]
fn without_path_limits_the_path_itself_is_used() {
    let guard = PathGuard::new(&Arc::new(Scopes::all()));
    let located = guard.target(Path::new("/a/../b"), Links::Follow, FileAccess::Write).unwrap();
    assert_eq!((located.name(), located.open_flags()), (Path::new("/a/../b"), OFlags::empty()));
    assert!(located.parent().is_none() && guard.check_unlimited("m").is_ok());
}

#[test]
fn paths_inside_resolve_whether_they_exist_or_not() {
    let tree = TestTree::new();
    for (path, real) in [
        ("in", "in"),
        ("in/", "in"),
        ("in/f", "in/f"),
        ("in/./d//", "in/d"),
        ("in/new", "in/new"),
        ("in/d/../f", "in/f"),
        ("in/d/..", "in"),
        ("in/../in/f", "in/f"),
    ] {
        assert_eq!(tree.read(path).as_deref(), Ok(real), "{path}");
    }
    assert_eq!(tree.read("in/new/below"), Err(ErrorKind::NotFound));
    assert_eq!(tree.read("in/f/below"), Err(ErrorKind::NotADirectory));
    let odd = Path::new("in").join(OsStr::from_bytes(b"\xff\xfe"));
    fs::write(tree.path(&odd), "").unwrap();
    let (guard, path) = (tree.guard(), tree.path(&odd));
    assert_eq!(guard.canonicalize(&path).unwrap(), path, "any bytes are a name");
}

#[test]
fn paths_outside_are_refused_with_the_same_error_whether_they_exist_or_not() {
    let tree = TestTree::new();
    for path in [
        "",
        "out",
        "out/f",
        "out/missing",
        "out/missing/x",
        "missing",
        "missing/../in/f",
        "in/../out/f",
        "in/../missing",
        "in/d/../../out/f",
        "inn",
        "in/..",
        "../..",
    ] {
        for access in [FileAccess::Read, FileAccess::Write] {
            assert_eq!(tree.target(&tree.guard(), path, access), Err(DENIED), "{path} {access:?}");
        }
    }
    let (guard, path) = (tree.guard(), tree.path("out/f"));
    let error = guard.target(&path, Links::Follow, FileAccess::Read).unwrap_err();
    assert!(
        error.message.contains(&format!("it needs the scope `files:read={}`", path.display())),
        "{error:?}"
    );
}

#[test]
fn links_are_followed_inside_and_never_lead_out() {
    let tree = TestTree::new();
    tree.link("f", "in/near");
    tree.link("near", "in/nearer");
    tree.link(tree.path("in/d"), "in/absolute");
    tree.link("../in/d", "in/around");
    tree.link("new", "in/dangling");
    tree.link("../out/f", "in/relative-out");
    tree.link(tree.path("out"), "in/absolute-out");
    tree.link("../out/missing", "in/dangling-out");
    tree.link("/", "in/root");
    tree.link("loop", "in/loop");
    for (path, real) in [
        ("in/near", "in/f"),
        ("in/nearer", "in/f"),
        ("in/absolute/x", "in/d/x"),
        ("in/around/../f", "in/f"),
        ("in/dangling", "in/new"),
    ] {
        assert_eq!(tree.read(path).as_deref(), Ok(real), "{path}");
    }
    for path in [
        "in/relative-out",
        "in/absolute-out",
        "in/absolute-out/f",
        "in/dangling-out",
        "in/root",
        "in/root/etc",
    ] {
        assert_eq!(tree.read(path), Err(DENIED), "{path}");
    }
    assert_eq!(tree.read("in/loop"), Err(ErrorKind::SymbolicLink));
    let (guard, path) = (tree.guard(), tree.path("in/relative-out"));
    let entry = guard.entry(&path, Links::Follow, FileAccess::Read).unwrap();
    assert_eq!(entry.kind(), Ok(FileType::Symlink), "the link itself is inside");
    let refused = guard.target(&tree.path("in/absolute/x"), Links::Refuse, FileAccess::Read).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotADirectory);
}

#[test]
fn too_many_links_are_a_loop() {
    let tree = TestTree::new();
    tree.link("f", "in/0");
    for number in 1..=40 {
        tree.link((number - 1).to_string(), &format!("in/{number}"));
    }
    assert_eq!(tree.read("in/39").as_deref(), Ok("in/f"));
    assert_eq!(tree.read("in/40"), Err(ErrorKind::SymbolicLink));
}

#[test]
fn the_links_of_the_kernel_are_text() {
    let guard = PathGuard::new(&Arc::new("files:read=/proc files:read=/dev".parse().unwrap()));
    let tree = TestTree::new();
    let held = fs::File::open(tree.path("out/f")).unwrap();
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
    for path in ["/proc/self/root", "/proc/self/root/etc/passwd", "/proc/self/cwd", "/proc/self/exe", &link] {
        let error = guard.target(Path::new(path), Links::Follow, FileAccess::Read).unwrap_err();
        assert_eq!(error.kind, DENIED, "{path}");
    }
    let descriptor = link.replace("/proc/self/fd", "/dev/fd");
    let error = guard.target(Path::new(&descriptor), Links::Follow, FileAccess::Read).unwrap_err();
    assert_eq!(error.kind, DENIED, "{descriptor}");
    let status = guard.canonicalize(Path::new("/proc/self/status")).unwrap();
    assert_eq!(status, Path::new(&format!("/proc/{}/status", std::process::id())));
}

#[test]
fn a_deep_descent_goes_up_beyond_the_open_directories() {
    let tree = TestTree::new();
    let deep: PathBuf = std::iter::repeat_n("x", 100).collect();
    fs::create_dir_all(tree.path("in").join(&deep)).unwrap();
    let up: PathBuf = std::iter::repeat_n("..", 100).collect();
    assert_eq!(tree.read(Path::new("in").join(&deep).join(&up).join("f")).as_deref(), Ok("in/f"));
    assert_eq!(tree.read(Path::new("in").join(&deep).join(&up).join("../out/f")), Err(DENIED));
}

#[test]
fn a_prefix_may_lead_through_links_and_may_be_missing() {
    let tree = TestTree::new();
    tree.link("in", "link");
    tree.link("link", "second");
    let guard = tree.guard_for(&["files:read=second/d", "files:write=second/missing/deep"]);
    let target = |path: &str, access| tree.target(&guard, path, access);
    for path in ["second/d/x", "link/d/x", "in/d/x"] {
        assert_eq!(target(path, FileAccess::Read).as_deref(), Ok("in/d/x"), "{path}");
        assert_eq!(target(path, FileAccess::Write), Err(DENIED), "{path}");
    }
    assert_eq!(target("second/f", FileAccess::Read), Err(DENIED));
    assert_eq!(target("in/missing/deep/x", FileAccess::Write), Err(ErrorKind::NotFound));
    fs::create_dir_all(tree.path("in/missing/deep")).unwrap();
    assert_eq!(target("second/missing/deep/x", FileAccess::Write).as_deref(), Ok("in/missing/deep/x"));
    assert_eq!(target("in/missing/other", FileAccess::Write), Err(DENIED));
}

#[test]
fn a_credential_cannot_choose_its_own_prefix() {
    let tree = TestTree::new();
    for scopes in [
        &["files:read=in/d", "files:write=in"][..],
        &["files:write=in/d", "files:write=in", "files:read=in"],
        &["files:read=in/d", "files:write"],
    ] {
        let before = tree.guard_for(scopes);
        fs::remove_dir(tree.path("in/d")).unwrap();
        tree.link("../out", "in/d");
        for guard in [before, tree.guard_for(scopes)] {
            assert_eq!(tree.target(&guard, "in/d/f", FileAccess::Read), Err(DENIED), "{scopes:?}");
            assert_eq!(tree.target(&guard, "out/f", FileAccess::Read), Err(DENIED), "{scopes:?}");
        }
        fs::remove_file(tree.path("in/d")).unwrap();
        fs::create_dir(tree.path("in/d")).unwrap();
    }
    let (guard, path) = (tree.guard(), tree.path("in"));
    assert_eq!(
        guard.change(&path, Links::Follow, Action::Remove).unwrap_err().kind,
        DENIED,
        "the prefix itself stays"
    );
    assert!(guard.target(&path, Links::Follow, FileAccess::Write).is_ok());
    let dots = tree.path("in/d/..");
    assert_eq!(guard.change(&dots, Links::Follow, Action::Remove).unwrap_err().kind, ErrorKind::InvalidInput);
}

#[test]
fn a_scope_for_one_access_says_nothing_about_the_other() {
    let tree = TestTree::new();
    let write_only = tree.guard_for(&["files:write=in"]);
    assert_eq!(tree.target(&write_only, "in/f", FileAccess::Read), Err(DENIED));
    assert_eq!(tree.target(&write_only, "out/f", FileAccess::Read), Err(DENIED));
    assert_eq!(tree.target(&write_only, "in/f", FileAccess::Write).as_deref(), Ok("in/f"));
    let read_only = tree.guard_for(&["files:read=in"]);
    assert_eq!(tree.target(&read_only, "in/f", FileAccess::Write), Err(DENIED));
    let free_writer = tree.guard_for(&["files:read=in", "files:write"]);
    assert_eq!(tree.target(&free_writer, "out/f", FileAccess::Write).as_deref(), Ok("out/f"));
    assert_eq!(tree.target(&free_writer, "out/f", FileAccess::Read), Err(DENIED));
}

#[test]
fn an_unreadable_entry_is_not_moved_to_a_readable_place() {
    let tree = TestTree::new();
    let guard = tree.guard_for(&["files:read=in", "files:write=in", "files:write=out"]);
    let (secret, readable) = (tree.path("out/f"), tree.path("in/f"));
    let (inside, hidden) = (tree.path("in/new"), tree.path("out/new"));
    let check = |source: &Path, destination: &Path| {
        let source = guard.change(source, Links::Follow, Action::Remove).unwrap();
        guard
            .check_move(&source, &guard.change(destination, Links::Follow, Action::Remove).unwrap())
            .map_err(|error| error.kind)
    };
    assert_eq!(check(&secret, &inside), Err(DENIED));
    assert_eq!(check(&secret, &hidden), Ok(()));
    assert_eq!(check(&readable, &hidden), Ok(()));
    assert_eq!(check(&readable, &inside), Ok(()));
}

#[test]
fn a_profile_is_another_judge_of_the_same_walk() {
    let tree = TestTree::new();
    fs::create_dir_all(tree.path("in/closed/deep/open")).unwrap();
    fs::write(tree.path("in/closed/deep/open/f"), "").unwrap();
    fs::create_dir(tree.path("in/fixed")).unwrap();
    tree.link("../out/f", "in/away");
    tree.link("closed/deep/open", "in/short");
    let sandbox = tree.sandbox(&[
        (Access::Write, "in"),
        (Access::Deny, "in/closed"),
        (Access::Read, "in/closed/deep/open"),
        (Access::Read, "in/fixed"),
    ]);
    let confinement =
        Confinement::new(remex_access::confinement::SandboxFloor::default(), Default::default());
    let guard = PathGuard::default().confined(&confinement, &sandbox).unwrap();
    let found = |path: &str, access| tree.target(&guard, path, access);
    for (path, real) in [
        ("in/f", "in/f"),
        ("in/new", "in/new"),
        ("in/closed/deep/open/f", "in/closed/deep/open/f"),
        ("in/short/f", "in/closed/deep/open/f"),
        ("in/short/../open/f", "in/closed/deep/open/f"),
        ("in/fixed/x", "in/fixed/x"),
    ] {
        assert_eq!(found(path, FileAccess::Read).as_deref(), Ok(real), "{path}");
    }
    for path in
        ["", "out/f", "in/away", "in/closed", "in/closed/deep", "in/closed/x", "in/closed/deep/x", "in/.."]
    {
        assert_eq!(found(path, FileAccess::Read), Err(DENIED), "{path}");
        assert_eq!(found(path, FileAccess::Write), Err(DENIED), "{path}");
    }
    assert_eq!(found("in/f", FileAccess::Write).as_deref(), Ok("in/f"));
    assert_eq!(found("in/fixed/x", FileAccess::Write), Err(DENIED));
    assert_eq!(found("in/short/f", FileAccess::Write), Err(DENIED));
    for (path, action, is_allowed) in [
        ("in/f", Action::Remove, true),
        ("in/new", Action::Create, true),
        ("in", Action::Remove, false),
        ("in/fixed", Action::Remove, false),
        ("in/closed", Action::Remove, false),
        ("in/short", Action::Remove, true),
    ] {
        let path = tree.path(path);
        let changed = guard.change(&path, Links::Follow, action).map(drop).map_err(|error| error.kind);
        assert_eq!(changed, if is_allowed { Ok(()) } else { Err(DENIED) }, "{}", path.display());
    }
    // Together with a credential, the narrowest holds.
    let both = tree
        .guard_for(&["files:read=in/d", "files:write=in/closed"])
        .confined(&confinement, &sandbox)
        .unwrap();
    assert_eq!(tree.target(&both, "in/d/x", FileAccess::Read).as_deref(), Ok("in/d/x"));
    assert_eq!(tree.target(&both, "in/f", FileAccess::Read), Err(DENIED));
    assert_eq!(tree.target(&both, "in/closed/x", FileAccess::Write), Err(DENIED));
}
