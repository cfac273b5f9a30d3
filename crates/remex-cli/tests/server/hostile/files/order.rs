//! The order of file requests: no client waits for the requests of another one.

use std::{
    fs::{self, File},
    path::Path,
    thread,
    time::Instant,
};

use serde_json::{Value, json};

use crate::support::{Client, HungFs, Interrupts, PATIENCE, Place, Server, encode, with};

/// Long enough to be hashed for minutes.
const HUGE: u64 = 60 << 30;

/// Asks for the hash of a file that takes minutes, and waits until that has begun.
fn hash_something_huge(client: &Client, server: &Server, place: &Place, name: &str) -> Value {
    place.make(&["d"]);
    File::create(place.path(name)).and_then(|file| file.set_len(HUGE)).expect("a sparse file costs nothing");
    let id = client.send("fs/hash", json!({"path": place.uri(name)}));
    // The requests of this session come in order, and only who has the file open can be hashing it.
    wait_until_open(server, &place.path(name));
    id
}

fn wait_until_open(server: &Server, path: &Path) {
    let deadline = Instant::now() + PATIENCE;
    let descriptors = format!("/proc/{}/fd", server.pid());
    let is_open = || {
        let Ok(descriptors) = fs::read_dir(&descriptors) else { return false };
        descriptors.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == path))
    };
    while !is_open() {
        assert!(Instant::now() < deadline, "the server does not open `{}`", path.display());
        thread::yield_now();
    }
}

#[test]
fn a_long_hash_of_one_client_blocks_no_other() {
    let (server, place) = (Server::start(), Place::new());
    let (hashing, other, third) = (server.client(), server.client(), server.client());
    let hash = hash_something_huge(&hashing, &server, &place, "d/huge");
    // None of these has anything to do with the hash, and each used to wait for it, and those behind it too.
    for (method, params) in [
        ("fs/createDirectory", json!({"path": place.uri("d")})),
        ("fs/createDirectory", json!({"path": "file:///"})),
        ("fs/setPermissions", json!({"path": place.uri("d"), "mode": 0o700})),
        ("fs/rename", json!({"sourcePath": place.uri("d"), "destinationPath": place.uri("e")})),
        ("fs/rename", json!({"sourcePath": place.uri("e"), "destinationPath": place.uri("d")})),
        ("fs/writeFile", json!({"path": place.uri("d/small"), "dataBase64": encode("x")})),
        ("fs/remove", json!({"path": place.uri("d")})),
    ] {
        other.call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"));
        let root = third.call("fs/getMetadata", json!({"path": place.uri("")}));
        assert_eq!(root.expect("the root is there")["isDirectory"], true, "after {method}");
    }
    hashing.look(|seen| assert!(!seen.has_reply(&hash), "the hash takes longer than all of this"));
}

#[test]
fn a_client_can_create_and_write_files_while_it_hashes() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let hash = hash_something_huge(&client, &server, &place, "d/huge");
    for path in [place.uri("d"), place.uri(""), "file:///".to_owned()] {
        assert_eq!(client.call("fs/createDirectory", json!({"path": path})), Ok(json!({})));
    }
    let write = json!({"path": place.uri("d/small"), "dataBase64": encode("x")});
    assert_eq!(client.call("fs/writeFile", write), Ok(json!({})));
    client.look(|seen| assert!(!seen.has_reply(&hash), "the hash takes longer than all of this"));
}

#[test]
fn a_resumed_client_waits_for_its_earlier_requests_and_others_do_not() {
    let Some(hung) = HungFs::mount(Interrupts::Obeyed) else { return };
    let (server, place) = (Server::start(), Place::new());
    place.write("file", "x");
    let (first, other) = (server.connect(), server.client());
    let session = first.initialize()["sessionId"].as_str().expect("a session has an id").to_owned();
    // By its text it is about the file, and it hangs on the way there.
    let up = "/..".repeat(hung.path("x").components().count());
    let detour = format!("{}{up}{}", hung.path("x").display(), place.path("file").display());
    first.send("fs/setPermissions", json!({"path": detour, "mode": 0o700}));
    hung.wait_until_hanging(1);
    first.cut();
    let again = server.connect();
    again.resume(&session);
    let file = json!({"path": place.uri("file")});
    let late = again.send("fs/getMetadata", file.clone());
    assert_eq!(other.call("fs/getMetadata", file).expect("it is there")["isFile"], true);
    again.call("fs/getMetadata", json!({"path": "file:///proc"})).expect("what does not overlap goes on");
    again.look(|seen| assert!(!seen.has_reply(&late), "its turn comes when the first request is over"));
    drop(hung);
    assert_eq!(again.outcome(&late).expect("it is still there")["isFile"], true);
}

#[test]
fn a_thousand_requests_behind_a_slow_one_are_answered_in_order() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.connect();
    client.initialize_with(json!({"clientName": "black box", "capabilities": ["cancel"]}));
    let hash = hash_something_huge(&client, &server, &place, "d/huge");
    let write =
        |number: usize| json!({"path": place.uri("d/huge"), "dataBase64": encode(number.to_string())});
    let waiting: Vec<_> = (0..1000).map(|number| client.send("fs/writeFile", write(number))).collect();
    for id in waiting.iter().step_by(2).chain([&hash]) {
        client.notify("request/cancel", json!({"id": id}));
    }
    for (number, id) in waiting.iter().enumerate() {
        let outcome = client.outcome(id);
        assert_eq!(outcome.is_ok(), number % 2 == 1, "{number}: {outcome:?}");
    }
    assert_eq!(place.read("d/huge"), "999", "the last one that was not cancelled came last");
    let refused = client.call("fs/writeFile", with(write(0), json!({"ifMatch": "absent"})));
    assert_eq!(refused.expect_err("something is there")["data"]["kind"], "contentChanged");
}

#[test]
fn a_message_full_of_paths_is_cheap_to_handle() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let hash = hash_something_huge(&client, &server, &place, "d/huge");
    // None of these can be done before the hash, and whoever asks for the directory comes after all of them.
    for number in 0..500 {
        let path = place.uri(&format!("d/huge/{number}"));
        client.send("fs/writeFile", json!({"path": path, "dataBase64": ""}));
    }
    let (mut watch, path) = (json!({"watchId": 1, "missing": [], "present": null}), place.uri("d/huge"));
    watch["missing"] = vec![path; 250_000].into();
    assert_eq!(client.call("fs/watchMissing", watch), Ok(json!({"watching": false})));
    client.look(|seen| assert!(!seen.has_reply(&hash), "the hash takes longer than all of this"));
}
