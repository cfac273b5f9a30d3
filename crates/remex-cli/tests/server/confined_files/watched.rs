//! Watches with a sandbox.

use std::{collections::BTreeSet, fs};

use serde_json::json;

use super::{Confined, at, pattern, profile, sandbox, special, workspace};
use crate::support::{Client, Place, Server};

/// Waits until a watch has told about a path, and returns all paths that it has told about, relative to the place.
fn told(client: &Client, place: &Place, last: &str) -> BTreeSet<String> {
    let last = place.uri(last);
    client.wait(&format!("a change of {last}"), |seen| {
        let reports = seen.notifications().filter(|note| note["method"] == "fs/changed");
        let changes =
            reports.flat_map(|note| note["params"]["changes"].as_array().cloned().unwrap_or_default());
        let paths: BTreeSet<String> =
            changes.filter_map(|change| change["path"].as_str().map(str::to_owned)).collect();
        let relative = |path: &String| path.strip_prefix(&place.uri("")).unwrap_or(path).to_owned();
        paths.contains(&last).then(|| paths.iter().map(relative).collect())
    })
}

#[test]
fn a_watch_reports_nothing_about_denied_paths() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    confined.denied("fs/watch", json!({"watchId": 1, "path": place.uri("work/private")}));
    confined.done("fs/watch", json!({"watchId": 1, "path": place.uri("work")}));
    place.write("work/private/key", "changed");
    place.write("work/private/new/deep", "");
    place.write("work/conf/prod.env", "changed");
    place.write("work/conf/more.env", "");
    place.write("work/fresh/a.env", "");
    place.write("work/fresh/b", "");
    place.write("work/.git/config", "changed");
    fs::remove_file(place.path("work/conf/prod.env")).expect("a file");
    place.write("work/last", "");
    let told = told(&client, &place, "work/last");
    assert!(told.contains("work/.git/config"), "{told:?}");
    assert!(!told.iter().any(|path| path.contains("private/") || path.ends_with(".env")), "{told:?}");
}

#[test]
fn a_watch_enforces_profile_paths_that_appear_later() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.make(&["work"]);
    let mut secret = at("deny", &place.uri("work/secret"));
    secret["missing_path_behavior"] = json!("skip");
    let sandbox = sandbox(&place, &[special("read", "root"), secret, pattern("*.key")]);
    let confined = Confined { client: &client, place: &place, sandbox };
    confined.done("fs/watch", json!({"watchId": 1, "path": place.uri("work")}));
    place.write("work/secret/file", "");
    place.write("work/a.key", "");
    place.write("work/first", "");
    told(&client, &place, "work/first");
    place.write("work/secret/file", "changed");
    place.write("work/last", "");
    let told = told(&client, &place, "work/last");
    assert!(!told.iter().any(|path| path.contains("secret/") || path.ends_with(".key")), "{told:?}");
}
