//! What changes in the file system, told to who asked.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, PATIENCE, Server};

/// A directory to work in, a server, and a client of it.
struct Place {
    directory: TempDir,
    server: Server,
    client: Client,
}

impl Place {
    fn new() -> Self {
        let server = Server::start();
        let client = server.client();
        Place { directory: TempDir::new().expect("a directory"), server, client }
    }

    fn path(&self, below: &str) -> PathBuf {
        let top = self.directory.path().canonicalize().expect("it is there");
        if below.is_empty() { top } else { top.join(below) }
    }

    fn uri(&self, below: &str) -> String {
        format!("file://{}", self.path(below).display())
    }

    fn mkdir(&self, below: &str) {
        fs::create_dir_all(self.path(below)).expect("a directory");
    }

    fn write(&self, below: &str, text: &str) {
        fs::write(self.path(below), text).expect("a file");
    }

    fn watch(&self, id: u64, below: &str) {
        let watched = self.client.call("fs/watch", json!({"watchId": id, "path": self.uri(below)}));
        assert_eq!(watched, Ok(json!({})));
    }

    fn unwatch(&self, id: u64) {
        assert_eq!(self.client.call("fs/unwatch", json!({"watchId": id})), Ok(json!({})));
    }

    /// Waits until a watch has told about a path, and returns all it has told.
    ///
    /// A file that was created may have been told as modified since; other kinds are the last word.
    fn told(&self, id: u64, last: &str, kind: &str) -> Told {
        let last = self.uri(last);
        self.client.wait(&format!("`{last}` {kind} by watch {id}"), |seen| {
            let told = Told::of(id, seen.notifications());
            let is_told = match kind {
                "created" => told.created.contains(&last),
                kind => told.kind(&last) == Some(kind),
            };
            is_told.then_some(told)
        })
    }

    /// Waits until a watch has told that too much has changed.
    fn overflow(&self, id: u64) {
        self.client.wait("an overflow", |seen| Told::of(id, seen.notifications()).overflow.then_some(()));
    }

    fn watch_missing(&self, id: u64, missing: &[&str], present: Option<&str>) -> bool {
        let missing: Vec<_> = missing.iter().map(|below| self.uri(below)).collect();
        let present = present.map(|below| self.uri(below));
        let params = json!({"watchId": id, "missing": missing, "present": present});
        let reply = self.client.call("fs/watchMissing", params).expect("an answer");
        reply["watching"].as_bool().expect("yes or no")
    }

    /// Waits until the watch for missing paths has told something, and checks that it was the only one.
    fn appeared(&self, id: u64) {
        let told: Vec<Value> = self.client.wait(&format!("fs/missingChanged of watch {id}"), |seen| {
            let told = |note: &&Value| note["method"] == "fs/missingChanged";
            let notes: Vec<_> =
                seen.notifications().filter(told).map(|note| note["params"]["watchId"].clone()).collect();
            notes.contains(&json!(id)).then_some(notes)
        });
        assert_eq!(told.iter().filter(|told| **told == id).count(), 1, "it is told once");
    }

    /// Returns how many directories the server watches.
    fn watched_directories(&self) -> usize {
        let infos = fs::read_dir(format!("/proc/{}/fdinfo", self.server.pid())).expect("a process has some");
        infos
            .flatten()
            .filter_map(|info| fs::read_to_string(info.path()).ok())
            .map(|info| info.lines().filter(|line| line.starts_with("inotify wd:")).count())
            .sum()
    }

    /// Waits until the server watches this many directories; nothing tells when it lets go of one.
    fn wait_for_watched_directories(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.watched_directories() != count {
            assert!(Instant::now() < deadline, "{} directories are watched", self.watched_directories());
            self.client.call("environment/status", json!({})).expect("the server is there");
        }
    }
}

/// What one watch has told so far.
#[derive(Debug, Default)]
struct Told {
    /// The last word about each path.
    net: BTreeMap<String, String>,
    /// What was ever told as created: what is written in two steps may be told in two.
    created: BTreeSet<String>,
    overflow: bool,
}

impl Told {
    fn of<'a>(id: u64, notes: impl Iterator<Item = &'a Value>) -> Self {
        let mut told = Told::default();
        for note in notes.filter(|note| note["method"] == "fs/changed" && note["params"]["watchId"] == id) {
            let changes = note["params"]["changes"].as_array().expect("a list");
            let paths: Vec<_> =
                changes.iter().map(|change| change["path"].as_str().expect("a path")).collect();
            let mut once = paths.clone();
            once.dedup();
            assert_eq!(paths, once, "each path is told once: {note}");
            for change in changes {
                let kind = change["kind"].as_str().expect("a kind");
                let path = change["path"].as_str().expect("a path");
                if kind == "created" {
                    told.created.insert(path.to_owned());
                }
                told.net.insert(path.to_owned(), kind.to_owned());
            }
            told.overflow |= note["params"]["overflow"] == true;
            assert!(note["params"]["overflow"] == true || !changes.is_empty(), "empty news: {note}");
        }
        told
    }

    fn kind(&self, uri: &str) -> Option<&str> {
        self.net.get(uri).map(String::as_str)
    }
}

#[test]
fn changes_at_every_depth_are_reported() {
    let place = Place::new();
    place.mkdir("w/a/b");
    place.write("w/a/b/old", "1");
    place.write("w/doomed", "1");
    place.watch(1, "w");

    place.write("w/a/b/new", "1");
    place.told(1, "w/a/b/new", "created");
    place.write("w/a/b/old", "2");
    place.told(1, "w/a/b/old", "modified");
    fs::remove_file(place.path("w/doomed")).expect("it was there");
    place.told(1, "w/doomed", "removed");
    fs::rename(place.path("w/a/b/old"), place.path("w/moved")).expect("a move");
    let told = place.told(1, "w/moved", "created");
    let told = if told.kind(&place.uri("w/a/b/old")) == Some("removed") {
        told
    } else {
        place.told(1, "w/a/b/old", "removed")
    };
    assert!(!told.overflow);
    symlink("moved", place.path("w/link")).expect("a link");
    place.told(1, "w/link", "created");
}

#[test]
fn the_response_precedes_the_first_change() {
    let place = Place::new();
    place.mkdir("w");
    place.write("w/f", "0");
    for id in 1..30 {
        let request = place.client.send("fs/watch", json!({"watchId": id, "path": place.uri("w")}));
        place.write("w/f", "1");
        place.client.outcome(&request).expect("a watch");
        place.write("w/f", "2");
        place.told(id, "w/f", "modified");
    }
    let (mut answered, mut told) = (0, Vec::new());
    place.client.look(|seen| {
        for message in &seen.messages {
            match message["params"]["watchId"].as_u64() {
                Some(id) => told.push((id, answered)),
                None => answered += 1,
            }
        }
    });
    for (id, answered) in told {
        assert!(answered > id, "watch {id} was told before its answer, as number {answered}");
    }
}

#[test]
fn directories_moved_in_with_content_are_reported_completely() {
    let place = Place::new();
    place.mkdir("w");
    place.watch(1, "w");
    for round in 0..50 {
        let top = format!("w/{round}");
        place.mkdir(&format!("{top}/a/b/c"));
        place.write(&format!("{top}/a/b/c/f"), "1");
    }
    for round in 0..50 {
        place.told(1, &format!("w/{round}/a/b/c/f"), "created");
        place.told(1, &format!("w/{round}"), "created");
    }
    place.write("w/7/a/b/c/f", "2");
    place.told(1, "w/7/a/b/c/f", "modified");

    place.mkdir("elsewhere/x/y");
    place.write("elsewhere/x/y/z", "1");
    fs::rename(place.path("elsewhere"), place.path("w/here")).expect("a move");
    place.told(1, "w/here/x/y/z", "created");
    place.write("w/here/x/y/z", "2");
    place.told(1, "w/here/x/y/z", "modified");
}

#[test]
fn a_directory_moved_within_the_tree_stays_watched_and_one_moved_out_does_not() {
    let place = Place::new();
    place.mkdir("w/a/b");
    place.watch(1, "w");
    fs::rename(place.path("w/a"), place.path("w/c")).expect("a move");
    place.told(1, "w/a", "removed");
    place.told(1, "w/c/b", "created");
    place.write("w/c/b/f", "1");
    place.told(1, "w/c/b/f", "created");

    fs::rename(place.path("w/c"), place.path("away")).expect("a move");
    place.told(1, "w/c", "removed");
    place.write("away/b/unseen", "1");
    place.write("w/fence", "1");
    let told = place.told(1, "w/fence", "created");
    assert!(told.net.keys().all(|uri| !uri.contains("unseen")), "{told:?}");
}

#[test]
fn directories_that_are_created_and_removed_rapidly_are_reported_in_their_final_state() {
    let place = Place::new();
    place.mkdir("w");
    place.watch(1, "w");
    for round in 0..300 {
        place.mkdir("w/d/e");
        place.write("w/d/e/f", &round.to_string());
        if round % 3 == 0 {
            fs::rename(place.path("w/d"), place.path("w/moved")).expect("a move");
            fs::remove_dir_all(place.path("w/moved")).expect("it was there");
        } else {
            fs::remove_dir_all(place.path("w/d")).expect("it was there");
        }
    }
    place.mkdir("w/d/e");
    place.write("w/d/e/last", "1");
    let told = place.told(1, "w/d/e/last", "created");
    assert_eq!(told.kind(&place.uri("w/d")), Some("created"));
    place.write("w/d/e/last", "2");
    place.told(1, "w/d/e/last", "modified");
    fs::remove_dir_all(place.path("w/d")).expect("it was there");
    place.told(1, "w/d", "removed");
}

#[test]
fn many_changes_of_one_file_are_coalesced() {
    let place = Place::new();
    place.mkdir("w");
    place.watch(1, "w");
    for round in 0..2000 {
        place.write("w/f", &round.to_string());
    }
    place.write("w/fence", "");
    place.told(1, "w/fence", "created");
    let notes = place.client.look(|seen| seen.notifications().count());
    assert!(notes < 200, "{notes} notifications");
}

#[test]
fn a_nonrecursive_watch_stays_in_its_directory() {
    let place = Place::new();
    place.mkdir("w/sub");
    let params = json!({"watchId": 1, "path": place.uri("w"), "recursive": false});
    place.client.call("fs/watch", params).expect("a watch");
    place.write("w/sub/unseen", "1");
    place.mkdir("w/new/unseen");
    place.write("w/fence", "1");
    let told = place.told(1, "w/fence", "created");
    assert_eq!(told.kind(&place.uri("w/new")), Some("created"));
    assert!(told.net.keys().all(|uri| !uri.contains("unseen")), "{told:?}");
}

#[test]
fn a_watched_file_can_be_replaced() {
    let place = Place::new();
    place.write("f", "1");
    place.watch(1, "f");
    place.write("other", "1");
    place.write("f", "2");
    place.told(1, "f", "modified");
    place.write("new", "3");
    fs::rename(place.path("new"), place.path("f")).expect("a move");
    place.told(1, "f", "created");
    fs::remove_file(place.path("f")).expect("it was there");
    let told = place.told(1, "f", "removed");
    assert_eq!(told.net.len(), 1, "{told:?}");
    place.write("f", "4");
    place.told(1, "f", "created");
}

#[test]
fn a_root_that_is_removed_and_recreated_is_still_watched() {
    let place = Place::new();
    place.mkdir("up/w/a");
    place.watch(1, "up/w");
    fs::remove_dir_all(place.path("up/w")).expect("it was there");
    place.told(1, "up/w", "removed");
    place.mkdir("up/w/b");
    place.told(1, "up/w/b", "created");
    place.write("up/w/b/f", "1");
    place.told(1, "up/w/b/f", "created");

    fs::rename(place.path("up"), place.path("down")).expect("a move");
    place.told(1, "up/w", "removed");
    place.mkdir("up/w/c");
    place.write("up/w/c/f", "1");
    place.told(1, "up/w/c/f", "created");
    place.write("down/w/unseen", "1");
    place.write("up/w/fence", "1");
    let told = place.told(1, "up/w/fence", "created");
    assert_eq!(told.kind(&place.uri("up/w")), Some("created"));
    assert!(told.net.keys().all(|uri| !uri.contains("unseen")), "{told:?}");
}

#[test]
fn paths_are_reported_as_the_client_spelled_them() {
    let place = Place::new();
    place.mkdir("real dir");
    symlink("real dir", place.path("link")).expect("a link");
    place.watch(1, "link");
    place.write("real dir/a b", "1");
    place.client.wait("the name below the link", |seen| {
        let told = Told::of(1, seen.notifications());
        told.net.contains_key(&place.uri("link/a%20b")).then_some(())
    });
}

#[test]
fn watches_of_the_same_directory_are_independent() {
    let place = Place::new();
    let other = place.server.client();
    place.mkdir("w/a");
    place.watch(1, "w");
    place.watch(2, "w/a");
    other.call("fs/watch", json!({"watchId": 1, "path": place.uri("w/a")})).expect("a watch");
    place.write("w/a/one", "1");
    place.told(1, "w/a/one", "created");
    place.told(2, "w/a/one", "created");
    place.unwatch(2);
    place.write("w/a/two", "1");
    place.told(1, "w/a/two", "created");
    other.cut();
    place.write("w/a/three", "1");
    let told = place.told(1, "w/a/three", "created");
    assert!(!told.overflow);
    let second = place.client.look(|seen| Told::of(2, seen.notifications()));
    assert!(!second.net.keys().any(|uri| uri.contains("three")), "{second:?}");
}

#[test]
fn a_directory_watched_twice_can_be_moved() {
    let place = Place::new();
    place.mkdir("w/a/b");
    place.watch(1, "w");
    place.watch(2, "w/a");
    for _ in 0..50 {
        fs::rename(place.path("w/a"), place.path("w/c")).expect("a move");
        fs::rename(place.path("w/c"), place.path("w/a")).expect("a move");
    }
    place.write("w/a/b/f", "1");
    place.told(1, "w/a/b/f", "created");
    place.told(2, "w/a/b/f", "created");
    place.write("w/a/b/f", "2");
    place.told(1, "w/a/b/f", "modified");
    place.told(2, "w/a/b/f", "modified");
}

#[test]
fn too_many_changes_become_an_overflow_and_the_watch_continues() {
    let place = Place::new();
    place.mkdir("w");
    place.mkdir("many/deep");
    for number in 0..5000 {
        place.write(&format!("many/{number}"), "");
    }
    place.watch(1, "w");
    fs::rename(place.path("many"), place.path("w/many")).expect("a move");
    place.overflow(1);
    place.write("w/many/deep/f", "1");
    place.told(1, "w/many/deep/f", "created");
}

#[test]
fn invalid_watches_are_refused() {
    let place = Place::new();
    place.mkdir("w");
    let call = |params: Value| place.client.call("fs/watch", params).expect_err("a refusal");
    let error = call(json!({"watchId": 1, "path": place.uri("nothing")}));
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32004), &json!("notFound")));
    place.watch(1, "w");
    let error = call(json!({"watchId": 1, "path": place.uri("w")}));
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32600), &json!("idInUse")));
    let error = call(json!({"watchId": 2, "path": "file://elsewhere/w"}));
    assert_eq!(error["code"], -32600);
    let confined = json!({"permissions": {"type": "managed", "network": "restricted", "file_system":
        {"type": "restricted", "entries": []}}, "windowsSandboxLevel": "disabled"});
    let error = call(json!({"watchId": 2, "path": place.uri("w"), "sandbox": confined}));
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32600), &json!("permissionDenied")));

    for id in 2..=128 {
        place.watch(id, "w");
    }
    let error = call(json!({"watchId": 129, "path": place.uri("w")}));
    assert_eq!(error["data"]["kind"], "limitExceeded");
    place.unwatch(5);
    place.unwatch(5);
    place.watch(129, "w");
    place.write("w/f", "");
    place.told(129, "w/f", "created");
    place.told(1, "w/f", "created");
}

#[test]
fn nothing_stays_behind_when_a_watch_or_its_connection_ends() {
    let mut place = Place::new();
    for number in 0..20 {
        place.mkdir(&format!("w/{number}/x"));
    }
    assert_eq!(place.watched_directories(), 0);
    place.watch(1, "w");
    let way = place.path("w").ancestors().skip(1).count();
    assert_eq!(place.watched_directories(), way + 41);
    place.watch(2, "w/3");
    place.watch(3, "w");
    assert!(place.watch_missing(1, &["w/4/x/y"], None));
    assert_eq!(place.watched_directories(), way + 41, "each is watched once");
    place.unwatch(1);
    place.unwatch(3);
    place.wait_for_watched_directories(way + 1 + 2 + 2);
    std::mem::replace(&mut place.client, place.server.client()).cut();
    place.wait_for_watched_directories(0);
}

#[test]
fn end_of_input_ends_watches_at_once() {
    let directory = TempDir::new().expect("a directory");
    let uri = format!("file://{}", directory.path().display());
    let (mut server, client) = Server::stdio(&[]);
    client.initialize();
    client.call("fs/watch", json!({"watchId": 1, "path": uri})).expect("a watch");
    let missing = json!({"watchId": 1, "missing": [format!("{uri}/x")], "present": null});
    assert_eq!(client.call("fs/watchMissing", missing), Ok(json!({"watching": true})));
    let asked = Instant::now();
    client.finish_writing();
    assert_eq!(server.wait().code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(4), "it took {:?}", asked.elapsed());
}

#[test]
fn a_path_that_appears_is_reported_once() {
    let place = Place::new();
    assert!(place.watch_missing(1, &["a", "b/c/d"], None));
    place.write("other", "");
    place.write("a", "");
    place.appeared(1);
    fs::remove_file(place.path("a")).expect("it was there");
    place.write("a", "");
    assert!(place.watch_missing(2, &["b/c/d"], None));
    place.mkdir("b");
    place.appeared(2);
    assert!(place.watch_missing(3, &["b/c/d"], None));
    place.mkdir("b/c");
    place.appeared(3);
    place.appeared(1);
}

#[test]
fn every_kind_of_entry_counts_as_appearing() {
    let place = Place::new();
    place.mkdir("elsewhere/x");
    for (id, kind) in (1..).zip(["a link that leads nowhere", "a directory that is moved there", "a file"]) {
        let name = format!("m{id}");
        assert!(place.watch_missing(id, &[&name], None), "{kind}");
        let path = place.path(&name);
        let made = match id {
            1 => symlink("nowhere", path),
            2 => fs::rename(place.path("elsewhere"), path),
            _ => fs::write(path, ""),
        };
        made.expect("it can be made");
        place.appeared(id);
        assert!(!place.watch_missing(100 + id, &["new", &name], None), "{kind} is there");
    }
}

#[test]
fn a_change_of_the_existing_ancestor_and_its_removal_are_reported() {
    let place = Place::new();
    place.mkdir("up/d");
    place.write("up/f", "1");
    assert!(place.watch_missing(1, &["m"], Some("up/f")));
    place.write("up/f", "2");
    place.appeared(1);
    assert!(place.watch_missing(2, &["m"], Some("up/f")));
    fs::remove_file(place.path("up/f")).expect("it was there");
    place.appeared(2);
    assert!(place.watch_missing(3, &["up/d/m"], None));
    fs::rename(place.path("up"), place.path("down")).expect("a move");
    place.appeared(3);
    assert!(place.watch_missing(4, &["down/d/m"], None));
    fs::remove_dir(place.path("down/d")).expect("it was there");
    place.appeared(4);
}

#[test]
fn paths_that_exist_or_cannot_be_inspected_are_not_awaited() {
    let place = Place::new();
    place.write("f", "");
    place.mkdir("d");
    symlink("d", place.path("link")).expect("a link");
    assert!(!place.watch_missing(1, &[], None));
    assert!(!place.watch_missing(1, &[], Some("f")));
    for there in ["f", "d", "link", "f/x", "link/x"] {
        assert!(!place.watch_missing(1, &["new", there], None), "{there}");
    }
    assert!(!place.watch_missing(1, &["new"], Some("nothing")));
    let foreign = json!({"watchId": 1, "missing": ["file://elsewhere/x"], "present": null});
    assert_eq!(place.client.call("fs/watchMissing", foreign), Ok(json!({"watching": false})));
    let (code, _) = place.client.refusal("fs/watchMissing", json!({"watchId": -1, "missing": []}));
    assert_eq!(code, -32602);
    assert!(place.watch_missing(2, &["new", "new", "d/new"], None));
}

#[test]
fn a_new_watch_for_missing_paths_replaces_the_previous_one() {
    let place = Place::new();
    assert!(place.watch_missing(1, &["a"], None));
    assert!(place.watch_missing(2, &["b"], None));
    assert!(place.watch_missing(2, &["c"], None));
    place.write("a", "");
    place.write("b", "");
    place.write("c", "");
    place.appeared(2);
    let told = place.client.look(|seen| seen.notifications().count());
    assert_eq!(told, 1);
}

#[test]
fn a_path_that_appears_while_the_watch_is_set_is_not_missed() {
    let place = Place::new();
    for id in 0..100 {
        let uri = place.uri(&format!("m{id}/x"));
        let params = json!({"watchId": id, "missing": [uri], "present": null});
        let request = place.client.send("fs/watchMissing", params);
        place.mkdir(&format!("m{id}/x"));
        if place.client.outcome(&request).expect("an answer")["watching"] == true {
            place.appeared(id);
        }
    }
}
