//! File requests while a directory in their paths and a link that leads outside change places all the time.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{MetadataExt as _, symlink},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use remex_access::{
    confinement::{Confinement, SandboxFloor},
    scope::FileAccess,
};
use remex_proto::{
    ErrorKind,
    sandbox::{Access, Entry, EntryPath, FileSystem, Permissions},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::*;
use crate::paths::{guard::tests::TestTree, open::Links};

/// How often the directory and the link change places.
const SWAPS: usize = 10_000;

/// What is in every file outside.
const SECRET: &str = "outside";

struct Race {
    tree: TestTree,
    bound: Bound,
    confinement: Confinement,
    is_over: AtomicBool,
}

/// What keeps requests inside.
enum Bound {
    /// The scopes of a credential.
    Scopes(PathGuard),
    /// The profile of a sandbox, which is resolved for each request.
    Profile(Sandbox),
}

impl Race {
    fn new(bound: impl FnOnce(&TestTree) -> Bound) -> Self {
        let tree = TestTree::new();
        for name in ["victim", "moved", "hidden"] {
            fs::write(tree.path("out").join(name), SECRET).unwrap();
        }
        fs::create_dir_all(tree.path("out/tree")).unwrap();
        fs::write(tree.path("out/tree/f"), SECRET).unwrap();
        fs::create_dir_all(tree.path("in/x/d")).unwrap();
        fs::create_dir_all(tree.path("in/x/tree")).unwrap();
        fs::write(tree.path("in/x/f"), "inside").unwrap();
        fs::write(tree.path("in/x/tree/f"), "inside").unwrap();
        symlink("../out", tree.path("in/link")).unwrap();
        let (bound, is_over) = (bound(&tree), AtomicBool::new(false));
        Race {
            tree,
            bound,
            confinement: Confinement::new(SandboxFloor::default(), Default::default()),
            is_over,
        }
    }

    fn guard(&self) -> PathGuard {
        match &self.bound {
            Bound::Scopes(guard) => guard.clone(),
            Bound::Profile(sandbox) => {
                let guard = PathGuard::default().confined(&self.confinement, sandbox).unwrap();
                assert!(guard.is_limited());
                guard
            }
        }
    }

    /// Lets the directory `in/x` and the link `in/link` change places.
    fn swap(&self) {
        let _over = Over(&self.is_over);
        let (x, link, aside) =
            (self.tree.path("in/x"), self.tree.path("in/link"), self.tree.path("in/aside"));
        for _ in 0..SWAPS / 2 {
            for _ in 0..2 {
                fs::rename(&x, &aside).unwrap();
                fs::rename(&link, &x).unwrap();
                fs::rename(&aside, &link).unwrap();
            }
        }
    }

    /// Repeats `attempt` until the swaps are over; returns how often it succeeded.
    fn repeat(&self, mut attempt: impl FnMut(&CancelCheck) -> Result<(), RpcError>) -> usize {
        let (check, mut successes) = (CancelCheck::new(|| true), 0);
        while !self.is_over.load(Ordering::Relaxed) {
            successes += usize::from(attempt(&check).is_ok());
        }
        successes
    }

    fn run<W>(&self, params: &Value, check: &CancelCheck) -> Result<W::Reply, RpcError>
    where
        W: FileWork + Request + DeserializeOwned,
    {
        let params = params.to_string().replace("IN/", &format!("{}/", self.tree.path("in").display()));
        serde_json::from_str::<W>(&params).unwrap().run(&self.guard(), check)
    }

    fn read(&self, path: &str) -> Result<(), RpcError> {
        let path = self.tree.path(path);
        let guard = self.guard();
        let at = guard.target(&path, Links::Follow, FileAccess::Read)?;
        let (mut text, mut file) = (String::new(), open::for_reading(&at)?.0);
        file.read_to_string(&mut text).map_err(|error| io_error(&error, &path))?;
        assert_ne!(text, SECRET, "a file outside was read");
        Ok(())
    }

    fn copy_out(&self, check: &CancelCheck) -> Result<(), RpcError> {
        let copy = json!({"sourcePath": "IN/x/tree", "destinationPath": "IN/copied", "recursive": true});
        self.run::<wire::Copy>(&copy, check)?;
        assert_ne!(
            fs::read_to_string(self.tree.path("in/copied/f")).unwrap(),
            SECRET,
            "a tree outside was copied"
        );
        Ok(())
    }

    fn list(&self, check: &CancelCheck) -> Result<(), RpcError> {
        let listing = self.run::<wire::ReadDirectory>(&json!({"path": "IN/x"}), check)?;
        assert!(
            listing.entries.iter().all(|entry| entry.file_name != "hidden"),
            "a directory outside was listed"
        );
        Ok(())
    }

    fn describe_outside(&self) -> Vec<String> {
        let mut found = Vec::new();
        for name in ["", "f", "d", "victim", "moved", "tree", "tree/f"] {
            let path = self.tree.path("out").join(name);
            let metadata = path.symlink_metadata().expect("everything outside is still there");
            let text = if metadata.is_file() { fs::read_to_string(&path).unwrap() } else { String::new() };
            let entries = if metadata.is_dir() { fs::read_dir(&path).unwrap().count() } else { 0 };
            found.push(format!("{name} {:o} {} {entries} {text}", metadata.mode(), metadata.mtime()));
        }
        found
    }
}

/// Ends the race when dropped, also if the swaps fail.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_link_swapped_in_during_a_request_never_leads_outside_the_scopes_of_a_credential() {
    run(&Race::new(|tree| Bound::Scopes(tree.guard())));
}

#[test]
fn a_link_swapped_in_during_a_request_never_leads_to_what_a_profile_does_not_list() {
    run(&Race::new(|tree| Bound::Profile(tree.sandbox(&[(Access::Write, "in")]))));
}

#[test]
fn a_link_swapped_in_during_a_request_never_leads_to_what_a_profile_denies() {
    run(&Race::new(|tree| {
        let entries = [(Access::Write, ""), (Access::Read, "/"), (Access::Deny, "out")];
        Bound::Profile(tree.sandbox(&entries))
    }));
}

#[test]
fn a_link_swapped_in_during_a_request_never_leads_to_what_a_pattern_denies() {
    run(&Race::new(|tree| Bound::Profile(with_pattern(tree, "out/**"))));
}

/// Returns a sandbox in which everything in the tree can be written, except for what matches a pattern.
fn with_pattern(tree: &TestTree, pattern: &str) -> Sandbox {
    let pattern = tree.path(pattern).display().to_string();
    let path = EntryPath::GlobPattern { pattern };
    let denied = Entry { path, access: Access::Deny, missing_path_behavior: None };
    let Sandbox::Confined(mut context) = tree.sandbox(&[(Access::Write, "")]) else { unreachable!() };
    if let Permissions::Managed { file_system: FileSystem::Restricted { entries }, .. } =
        &mut context.permissions
    {
        entries.push(denied);
    }
    Sandbox::Confined(context)
}

#[test]
fn racing_requests_never_move_a_directory_with_something_denied_in_it() {
    let race = &Race::new(|tree| {
        for directory in ["in/vault", "in/a"] {
            fs::create_dir(tree.path(directory)).unwrap();
        }
        fs::write(tree.path("in/vault/key"), SECRET).unwrap();
        Bound::Profile(with_pattern(tree, "in/vault/*"))
    });
    let rename = |from: &str, to: &str| json!({"sourcePath": from, "destinationPath": to});
    thread::scope(|scope| {
        let moving = scope.spawn(|| {
            race.repeat(|check| {
                race.run::<wire::Rename>(&rename("IN/a", "IN/b"), check)?;
                race.run::<wire::Rename>(&rename("IN/b", "IN/a"), check).map(drop)
            })
        });
        let stealing = scope.spawn(|| {
            race.repeat(|check| {
                for to in ["IN/a", "IN/b", "IN/c"] {
                    let error = race.run::<wire::Rename>(&rename("IN/vault", to), check).unwrap_err();
                    assert_eq!(error.kind, ErrorKind::PermissionDenied, "{error}");
                }
                Ok(())
            })
        });
        scope.spawn(|| race.swap());
        assert!(moving.join().unwrap() > 0 && stealing.join().unwrap() > 0);
    });
    assert_eq!(fs::read_to_string(race.tree.path("in/vault/key")).unwrap(), SECRET);
}

fn run(race: &Race) {
    let before = race.describe_outside();
    thread::scope(|scope| {
        scope.spawn(|| race.swap());
        let read = scope.spawn(|| {
            race.repeat(|check| {
                race.read("in/x/f")
                    .and(race.read("in/x/tree/f"))
                    .and(race.list(check))
                    .and(race.copy_out(check))
            })
        });
        let write = scope.spawn(|| {
            race.repeat(|check| {
                let data = json!({"path": "IN/x/f", "dataBase64": "aW5zaWRl"});
                race.run::<wire::WriteFile>(&data, check)?;
                let below = json!({"path": "IN/x/tree/f", "dataBase64": "aW5zaWRl"});
                race.run::<wire::WriteFile>(&below, check)?;
                let mut atomic = data;
                atomic["atomic"] = json!(true);
                race.run::<wire::WriteFile>(&atomic, check)?;
                race.run::<wire::Copy>(
                    &json!({"sourcePath": "IN/f", "destinationPath": "IN/x/victim", "recursive": false}),
                    check,
                )?;
                Ok(())
            })
        });
        let names = scope.spawn(|| {
            race.repeat(|check| {
                let results = [
                    race.run::<wire::Remove>(&json!({"path": "IN/x/victim"}), check),
                    race.run::<wire::Remove>(&json!({"path": "IN/x/tree/gone"}), check),
                    race.run::<wire::Rename>(
                        &json!({"sourcePath": "IN/x/moved", "destinationPath": "IN/stolen"}),
                        check,
                    ),
                    race.run::<wire::Symlink>(&json!({"path": "IN/x/new", "target": "f"}), check),
                    race.run::<wire::CreateDirectory>(
                        &json!({"path": "IN/x/made", "recursive": false}),
                        check,
                    ),
                    race.run::<wire::SetPermissions>(&json!({"path": "IN/x/f", "mode": 0o600}), check)
                        .map(|_| remex_proto::call::Empty {}),
                    race.run::<wire::SetTimes>(&json!({"path": "IN/x/f", "modifiedAtMs": 1000}), check),
                ];
                if results.iter().all(Result::is_err) {
                    results.into_iter().next().unwrap().map(drop)
                } else {
                    Ok(())
                }
            })
        });
        for (what, thread) in [("read", read), ("written", write), ("changed", names)] {
            assert!(thread.join().unwrap() > 0, "nothing inside was ever {what}");
        }
    });
    assert_eq!(race.describe_outside(), before);
    assert!(!race.tree.path("in/stolen").exists(), "a file outside was moved");
}
