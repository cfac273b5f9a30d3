//! Walking trees, within limits.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

use serde_json::{Value, json};

use crate::support::{Client, Place, Server, with};

fn options(more: Value) -> Value {
    let usual = json!({"maxDepth": 64, "maxDirectories": 10_000, "maxEntries": 50_000, "followDirectorySymlinks": false});
    with(usual, more)
}

fn walk(client: &Client, place: &Place, name: &str, more: Value) -> Value {
    let params = json!({"path": place.uri(name), "options": options(more)});
    client.call("fs/walk", params).expect("it can be walked")
}

/// Returns the paths below the place, directories with a slash.
fn listed(place: &Place, reply: &Value) -> Vec<String> {
    let root = place.uri("");
    let entries = reply["entries"].as_array().expect("entries");
    entries
        .iter()
        .map(|entry| {
            let path = entry["path"].as_str().expect("a path");
            let slash = if entry["kind"] == "directory" { "/" } else { "" };
            format!("{}{slash}", path.strip_prefix(&root).expect("it is below the root"))
        })
        .collect()
}

fn owned(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

/// A tree with hidden things, links in all directions, and a FIFO.
fn tree() -> Place {
    let place = Place::new();
    for name in ["w/b", "w/a/f", "w/a/b/g", "w/.h/x", "w/z é/%"] {
        place.write(name, "");
    }
    place.link("a", "w/to-a");
    place.link(".h", "w/to-h");
    place.link("b", "w/to-b");
    place.link("nowhere", "w/broken");
    place.link("..", "w/a/up");
    place.fifo("w/fifo");
    place
}

#[test]
fn a_walk_is_breadth_first_and_sorted() {
    let (server, place) = (Server::start(), tree());
    let client = server.client();
    let reply = walk(&client, &place, "w", json!({}));
    let all =
        ["w/.h/", "w/a/", "w/b", "w/z%20%C3%A9/", "w/.h/x", "w/a/b/", "w/a/f", "w/z%20%C3%A9/%25", "w/a/b/g"];
    assert_eq!(listed(&place, &reply), all);
    assert_eq!((&reply["errors"], &reply["truncated"]), (&json!([]), &json!(false)));
    for (depth, count) in [(0, 4), (1, 8), (2, 9)] {
        let reply = walk(&client, &place, "w", json!({"maxDepth": depth}));
        assert_eq!((listed(&place, &reply), &reply["truncated"]), (owned(&all[..count]), &json!(false)));
    }
}

#[test]
fn links_to_directories_are_followed_on_request_and_each_directory_visited_once() {
    let (server, place) = (Server::start(), tree());
    let client = server.client();
    let follow = json!({"followDirectorySymlinks": true});
    let reply = walk(&client, &place, "w", follow.clone());
    assert_eq!(
        listed(&place, &reply),
        [
            "w/.h/",
            "w/a/",
            "w/b",
            "w/to-a/",
            "w/to-h/",
            "w/z%20%C3%A9/",
            "w/.h/x",
            "w/a/b/",
            "w/a/f",
            "w/a/up/",
            "w/z%20%C3%A9/%25",
            "w/a/b/g",
        ]
    );
    let pruned = walk(&client, &place, "w", with(follow.clone(), json!({"pruneHiddenDirectories": true})));
    let pruned = listed(&place, &pruned);
    assert!(pruned.contains(&"w/.h/".to_owned()) && !pruned.contains(&"w/.h/x".to_owned()));
    assert!(pruned.contains(&"w/to-h/x".to_owned()), "an alias without a dot is entered");
    let hidden = walk(&client, &place, "w/.h", json!({"pruneHiddenDirectories": true}));
    assert_eq!(listed(&place, &hidden), ["w/.h/x"], "the root may be hidden");
    assert_eq!(listed(&place, &walk(&client, &place, "w/to-h", follow)), ["w/to-h/x"]);
}

#[test]
fn a_root_that_is_not_a_directory_has_no_entries() {
    let (server, place) = (Server::start(), tree());
    let client = server.client();
    let nothing = json!({"entries": [], "errors": [], "truncated": false});
    for name in ["w/b", "w/fifo", "w/to-b", "w/to-a"] {
        assert_eq!(walk(&client, &place, name, json!({})), nothing, "{name}");
    }
    for name in ["nothing", "w/broken", "nothing/x"] {
        for follow in [true, false] {
            let options = options(json!({"followDirectorySymlinks": follow}));
            let params = json!({"path": place.uri(name), "options": options});
            let missing = (-32004, "No such file or directory (os error 2)".to_owned());
            assert_eq!(client.refusal("fs/walk", params), missing, "{name}");
        }
    }
}

#[test]
fn a_walk_reports_a_reached_limit() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    for name in ["w/a/1", "w/b/2", "w/c"] {
        place.write(name, "");
    }
    for (limits, count, truncated) in [
        (json!({"maxEntries": 5}), 5, false),
        (json!({"maxEntries": 4}), 4, true),
        (json!({"maxEntries": 3}), 3, true),
        (json!({"maxEntries": 1}), 1, true),
        (json!({"maxDirectories": 3}), 5, false),
        (json!({"maxDirectories": 2}), 4, true),
        (json!({"maxDirectories": 1}), 3, true),
        (json!({"maxDirectories": 1, "maxDepth": 0}), 3, false),
    ] {
        let reply = walk(&client, &place, "w", limits.clone());
        let all = ["w/a/", "w/b/", "w/c", "w/a/1", "w/b/2"];
        assert_eq!(
            (listed(&place, &reply), &reply["truncated"]),
            (owned(&all[..count]), &json!(truncated)),
            "{limits}"
        );
    }
    // An alias of a directory that was read costs no directory.
    place.link("a", "w/d");
    let reply = walk(&client, &place, "w", json!({"maxDirectories": 3, "followDirectorySymlinks": true}));
    assert_eq!(reply["truncated"], false);
}

#[test]
fn impossible_limits_are_refused_first() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let zero = "filesystem walk limits must be greater than zero";
    let high = "filesystem walk limits exceed maximums: depth=64, directories=10000, entries=50000";
    for (limits, text) in [
        (json!({"maxEntries": 0}), zero),
        (json!({"maxDirectories": 0}), zero),
        (json!({"maxDepth": 65}), high),
        (json!({"maxDirectories": 10_001}), high),
        (json!({"maxEntries": 50_001}), high),
        (json!({"maxDepth": u64::MAX}), high),
    ] {
        for path in [place.uri("nothing"), "file://server/x".to_owned()] {
            let params = json!({"path": path, "options": options(limits.clone())});
            assert_eq!(client.refusal("fs/walk", params), (-32600, text.to_owned()), "{limits}");
        }
    }
    for missing in ["maxDepth", "maxDirectories", "maxEntries", "followDirectorySymlinks"] {
        let mut options = options(json!({}));
        options.as_object_mut().unwrap().remove(missing);
        let (code, text) = client.refusal("fs/walk", json!({"path": place.uri(""), "options": options}));
        assert_eq!((code, text.contains(&format!("missing field `{missing}`"))), (-32602, true), "{text}");
    }
}

#[test]
fn a_walk_ends_at_about_four_mebibytes() {
    let (server, place) = (Server::start(), Place::in_memory());
    let client = server.client();
    let long = "x".repeat(200);
    for directory in 0..20 {
        for file in 0..1000 {
            place.write(&format!("w/{directory}/{file:04}{long}"), "");
        }
    }
    let reply = walk(&client, &place, "w", json!({}));
    assert_eq!(reply["truncated"], true);
    let cost: usize = reply["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["path"].as_str().unwrap().len() + 64)
        .sum();
    let most = 4 * 1024 * 1024;
    assert!(cost <= most && cost > most - 1024, "{cost} of {most} bytes");
}

#[test]
fn unnameable_and_unreadable_entries_are_reported_without_ending_the_walk() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("w/a/f", "");
    place.write("w/z", "");
    let odd = place.path("w").join(OsStr::from_bytes(b"odd\xff"));
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("inside"), "").unwrap();
    let reply = walk(&client, &place, "w", json!({}));
    assert_eq!(listed(&place, &reply), ["w/a/", "w/z", "w/a/f"]);
    let error = json!({"path": place.uri("w/odd%EF%BF%BD"), "message": "the name is not UTF-8"});
    assert_eq!((&reply["errors"], &reply["truncated"]), (&json!([error]), &json!(false)));
    assert_eq!(listed(&place, &walk(&client, &place, "w/odd%FF", json!({}))), ["w/odd%FF/inside"]);
}
