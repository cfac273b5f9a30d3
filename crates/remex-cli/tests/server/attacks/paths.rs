//! File requests of tokens with path prefixes, over the wire: every way out is refused, and nothing outside changes.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{AuditLog, Client, Guarded, decode, encode, token_of, uri};

/// A directory `in`, where a token may read and write, and what is beside it.
struct Scene {
    place: TempDir,
    guarded: Guarded,
    audit: AuditLog,
}

impl Scene {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a directory can be made");
        let path = |name: &str| place.path().canonicalize().expect("it exists").join(name);
        for directory in ["in/d", "out/d", "inside"] {
            fs::create_dir_all(path(directory)).expect("the directory is ours");
        }
        for (file, content) in [
            ("in/f", "fine"),
            ("in/d/f", "fine"),
            ("out/f", "secret"),
            ("out/d/f", "secret"),
            ("inside/f", "secret"),
        ] {
            fs::write(path(file), content).expect("the directory is ours");
        }
        for (target, link) in [
            ("../out", "in/away"),
            ("../out/f", "in/away-file"),
            ("../out/new", "in/away-new"),
            ("in", "alias"),
        ] {
            symlink(target, path(link)).expect("the directory is ours");
        }
        let (inside, alias) = (path("in"), path("alias"));
        let (guarded, audit) = Guarded::audited(&format!(
            "{} name=limited scope=files:read={inside},files:write={inside}\n{} name=alias scope=files:read={alias}\n\
             {} name=runner scope=processes,files:read={inside}\n",
            token_of("limited"),
            token_of("alias"),
            token_of("runner"),
            inside = inside.display(),
            alias = alias.display(),
        ));
        Scene { place, guarded, audit }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().canonicalize().expect("it exists").join(name)
    }

    fn client(&self, token: &str) -> Client {
        self.guarded.client(&token_of(token))
    }

    /// Describes everything but `in`.
    fn outside(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![self.path("out"), self.path("inside")];
        while let Some(path) = waiting.pop() {
            let metadata = path.symlink_metadata().expect("it exists");
            let content =
                if metadata.is_file() { fs::read_to_string(&path).expect("text") } else { String::new() };
            if metadata.is_dir() {
                waiting.extend(
                    fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()),
                );
            }
            let times = (metadata.mtime(), metadata.mtime_nsec(), metadata.mode());
            found.insert(path, format!("{times:?} {content}"));
        }
        found
    }
}

/// Every request about a path, with the files inside that it needs.
fn requests(inside: &Path, path: &str) -> Vec<(&'static str, Value)> {
    let walk = json!({"maxDepth": 3, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": true});
    let (file, new) = (inside.join("f"), inside.join("new"));
    let open = |mode: &str| json!({"handleId": "h", "path": path, "mode": mode});
    vec![
        ("fs/readFile", json!({"path": path})),
        ("fs/writeFile", json!({"path": path, "dataBase64": "eA=="})),
        ("fs/writeFile", json!({"path": path, "dataBase64": "eA==", "atomic": true})),
        ("fs/createDirectory", json!({"path": path})),
        ("fs/getMetadata", json!({"path": path})),
        ("fs/canonicalize", json!({"path": path})),
        ("fs/readDirectory", json!({"path": path})),
        ("fs/walk", json!({"path": path, "options": walk})),
        ("fs/copy", json!({"sourcePath": file, "destinationPath": path, "recursive": false})),
        ("fs/setPermissions", json!({"path": path, "mode": 0o777})),
        ("fs/setTimes", json!({"path": path, "modifiedAtMs": 0})),
        ("fs/hash", json!({"path": path})),
        ("fs/search", json!({"path": path, "options": {"pattern": "."}})),
        ("fs/open", open("read")),
        ("fs/open", open("write")),
        ("fs/open", open("replace")),
        ("fs/watch", json!({"watchId": 1, "path": path})),
        // The entry itself, even if it is a link.
        ("fs/remove", json!({"path": path})),
        ("fs/copy", json!({"sourcePath": path, "destinationPath": new, "recursive": true})),
        ("fs/rename", json!({"sourcePath": path, "destinationPath": new})),
        ("fs/rename", json!({"sourcePath": file, "destinationPath": path})),
        ("fs/symlink", json!({"path": path, "target": "/"})),
        ("fs/readLink", json!({"path": path})),
        ("fs/watchMissing", json!({"watchId": 1, "missing": [path]})),
    ]
}

/// How many of the requests follow a link at the end of a path.
const FOLLOWING: usize = 17;

#[test]
fn every_escape_from_a_prefix_is_refused_and_recorded() {
    let scene = Scene::new();
    let (client, before) = (scene.client("limited"), scene.outside());
    let (inside, root) = (scene.path("in"), scene.path(""));
    let at = |way: &str| format!("{}/{way}", root.display());
    let by_uri = |way: &str| format!("{}/{way}", uri(&root).trim_end_matches('/'));
    let mut ways = vec![
        (at("out/f"), true),
        (at("out/missing"), true),
        (at("in/../out/f"), true),
        (at("in/./.././out/./f"), true),
        (at("in//..//out//f"), true),
        (at("in/d/../../out/f"), true),
        (at("in/away/f"), true),
        (at("in/away/d/f"), true),
        (at("in/away-file"), false),
        (at("in/away-new"), false),
        (at("inside/f"), true),
        // On the way to the prefix.
        (root.display().to_string(), true),
        (at("in/.."), false),
        (format!("/proc/self/root{}", at("out/f")), true),
        (format!("/proc/thread-self/cwd/..{}", at("out/f")), true),
        (by_uri("in/%2e%2e/out/f"), true),
        (by_uri("in/.%2E/out/%66"), true),
        (by_uri("in/%61way/f"), true),
        (by_uri("in%73ide/f"), true),
    ];
    ways.push((by_uri("in/../out/f").replace("file://", "file://localhost"), true));
    let mut recorded = 0;
    for (way, is_for_all) in &ways {
        let requests = requests(&inside, way);
        let count = if *is_for_all { requests.len() } else { FOLLOWING };
        for (method, params) in &requests[..count] {
            let answer = client.call(method, params.clone());
            if answer == Ok(json!({"watching": false})) && way.contains("way/") {
                // No link is followed to a missing path, wherever it leads.
                continue;
            }
            let error = answer.expect_err(&format!("{method} {params}"));
            assert_eq!(error["data"]["kind"], "permissionDenied", "{method} {params}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
            recorded += 1;
        }
    }
    // An encoded slash is no separator, and an encoded NUL no end.
    for way in [by_uri("in/..%2Fout%2Ff"), by_uri("in/..%2fout/f"), by_uri("in/f%00/../../out/f")] {
        for (method, params) in requests(&inside, &way) {
            let answer = client.call(method, params);
            assert!(
                answer.is_err() || answer == Ok(json!({"watching": false})),
                "{method} {way}: {answer:?}"
            );
            assert!(!format!("{answer:?}").contains("secret"), "{method} {way}: {answer:?}");
        }
    }
    assert_eq!(scene.outside(), before);
    let denied = json!({"identity": "token:limited", "outcome": "permissionDenied"});
    let lines = scene.audit.lines_with(&denied, recorded);
    assert!(lines.len() >= recorded, "{} of {recorded} refusals are recorded", lines.len());
    for line in lines {
        assert!(line["paths"].as_array().is_some_and(|paths| !paths.is_empty()), "{line}");
    }
    for name in ["f", "d/f"] {
        let read = client.call("fs/readFile", json!({"path": inside.join(name)})).expect("it is inside");
        assert_eq!(decode(&read["dataBase64"]), b"fine");
    }
}

#[test]
fn a_prefix_may_be_a_link_a_hard_link_is_inside_and_processes_are_not_confined() {
    let scene = Scene::new();
    let read = |client: &Client, path: &Path| {
        let answer = client.call("fs/readFile", json!({"path": path}));
        answer.map(|read| String::from_utf8_lossy(&decode(&read["dataBase64"])).into_owned())
    };
    let alias = scene.client("alias");
    for name in ["alias/f", "in/f", "alias/d/../f"] {
        assert_eq!(read(&alias, &scene.path(name)).expect(name), "fine");
    }
    for name in ["out/f", "alias/../out/f", "alias/away/f", "inside/f"] {
        let error = read(&alias, &scene.path(name)).expect_err(name);
        assert_eq!(error["data"]["kind"], "permissionDenied", "{name}: {error}");
    }

    // A hard link is indistinguishable from the original name.
    fs::hard_link(scene.path("out/f"), scene.path("in/hard")).expect("both are on one file system");
    assert_eq!(read(&scene.client("limited"), &scene.path("in/hard")).expect("it is inside"), "secret");

    let limited = scene.client("limited");
    let start = json!({"processId": "p", "argv": ["/bin/cat", "f"], "cwd": scene.path("out"), "env": {}, "tty": false});
    let error = limited.call("process/start", start.clone()).expect_err("it may not start anything");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("`processes`")), "{error}");
    let runner = scene.client("runner");
    assert_eq!(read(&runner, &scene.path("out/f")).expect_err("outside")["data"]["kind"], "permissionDenied");
    runner.call("process/start", start).expect("prefixes are about file requests");
    assert_eq!(runner.collect("p").text(), "secret", "as SECURITY.md says");
}

#[test]
fn a_handle_refers_to_its_file_and_closes_when_its_scopes_are_revoked() {
    let scene = Scene::new();
    let client = scene.client("limited");
    let open = json!({"handleId": "h", "path": scene.path("in/d/f"), "mode": "read"});
    client.call("fs/open", open.clone()).expect("it is inside");
    let block = json!({"handleId": "h", "offset": 0, "len": 10});
    fs::rename(scene.path("in/d/f"), scene.path("out/moved")).expect("another program may move it");
    let read = client.call("fs/readBlock", block.clone()).expect("the handle keeps its file");
    assert_eq!(decode(&read["chunk"]), b"fine");
    client
        .call("fs/open", json!({"handleId": "i", "path": scene.path("out/moved"), "mode": "read"}))
        .expect_err("outside");

    let narrower =
        format!("{} name=limited scope=files:read={}\n", token_of("limited"), scene.path("in/d").display());
    scene.guarded.rewrite(&narrower);
    client.closed_for("its scopes changed");
    let again = scene.client("limited");
    let error = again.call("fs/readBlock", block).expect_err("handles end with their connection");
    assert_ne!(error["data"]["kind"], "permissionDenied", "{error}");
    assert_eq!(again.call("fs/open", open).expect_err("it was moved")["data"]["kind"], "notFound");
}

#[test]
fn a_watch_inside_a_prefix_does_not_follow_links() {
    let scene = Scene::new();
    let client = scene.client("limited");
    let inside = scene.path("in");
    client.call("fs/watch", json!({"watchId": 1, "path": inside, "recursive": true})).expect("it is inside");
    fs::write(scene.path("out/d/unseen"), "").expect("the directory is ours");
    fs::write(inside.join("d/seen"), "").expect("the directory is ours");
    let told = client.wait("a change of `seen`", |seen| {
        let changes: Vec<_> = seen
            .notifications()
            .filter(|note| note["method"] == "fs/changed")
            .map(Value::to_string)
            .collect();
        changes.iter().any(|change| change.contains("/in/d/seen")).then_some(changes)
    });
    assert!(!told.concat().contains("unseen"), "{told:?}");
}

/// Ends the swaps also when the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn swapping_a_directory_for_a_link_during_requests_does_not_escape() {
    const REQUESTS: usize = 600;
    let scene = Scene::new();
    let (client, before) = (scene.client("limited"), scene.outside());
    let (directory, link) = (scene.path("in/d"), scene.path("in/swap"));
    symlink("../out/d", &link).expect("the directory is ours");
    let (is_over, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                renameat_with(CWD, &directory, CWD, &link, RenameFlags::EXCHANGE).expect("both exist");
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _over = SetOnDrop(&is_over);
        let path = directory.join("f");
        let mut inside = 0;
        for _ in 0..REQUESTS / 3 {
            let ids = [
                client.send("fs/readFile", json!({"path": path})),
                client.send("fs/writeFile", json!({"path": path, "dataBase64": encode("fine")})),
                client.send("fs/hash", json!({"path": path})),
            ];
            let [read, write, hash] = ids.map(|id| client.outcome(&id));
            if let Ok(read) = &read {
                assert_eq!(decode(&read["dataBase64"]), b"fine");
            }
            for error in [&read, &write, &hash].into_iter().filter_map(|answer| answer.as_ref().err()) {
                let kind = error["data"]["kind"].as_str().unwrap_or_default();
                assert!(matches!(kind, "permissionDenied" | "symbolicLink" | "notADirectory"), "{error}");
            }
            inside += usize::from(read.is_ok()) + usize::from(write.is_ok());
        }
        assert!(inside > 0, "some requests found the directory");
    });
    assert!(swaps.load(Ordering::Relaxed) > 100, "{swaps:?} swaps");
    assert_eq!(scene.outside(), before);
}
