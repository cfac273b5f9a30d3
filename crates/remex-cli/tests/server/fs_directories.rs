//! Making directories and listing them, at once or page by page.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

use rustix::fs::{CWD, Mode, OFlags, openat};
use serde_json::{Value, json};

use crate::support::{Client, Place, Server, uri, with};

const NOT_FOUND: (i64, &str) = (-32004, "No such file or directory (os error 2)");
const NOT_A_DIRECTORY: (i64, &str) = (-32603, "Not a directory (os error 20)");
const EXISTS: (i64, &str) = (-32603, "File exists (os error 17)");

fn create(client: &Client, place: &Place, name: &str, more: Value) -> Result<Value, Value> {
    client.call("fs/createDirectory", with(json!({"path": place.uri(name)}), more))
}

fn refused(answer: Result<Value, Value>, (code, message): (i64, &str)) {
    let error = answer.expect_err("it is refused");
    assert_eq!((&error["code"], &error["message"]), (&json!(code), &json!(message)));
}

/// Makes empty files without looking up their directory each time.
fn fill(place: &Place, name: &str, names: impl Iterator<Item = String>) {
    place.make(&[name]);
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, place.path(name), flags, Mode::empty()).expect("a directory");
    for name in names {
        openat(&directory, name, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR)
            .expect("room");
    }
}

fn list(client: &Client, place: &Place, name: &str, more: Value) -> Value {
    client.call("fs/readDirectory", with(json!({"path": place.uri(name)}), more)).expect("it can be listed")
}

/// Returns `fileName`, `isDirectory` and `isFile` of each entry, sorted.
fn entries(listing: &Value) -> Vec<(String, bool, bool)> {
    let mut entries: Vec<_> = listing["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .map(|entry| {
            let is = |what: &str| entry[what].as_bool().expect("a flag");
            (entry["fileName"].as_str().expect("a name").to_owned(), is("isDirectory"), is("isFile"))
        })
        .collect();
    entries.sort();
    entries
}

fn names(listing: &Value) -> Vec<String> {
    let entries = listing["entries"].as_array().expect("entries");
    entries.iter().map(|entry| entry["fileName"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_directory_is_created_with_its_parents_unless_disabled() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    for follow in [json!({}), json!({"followSymlinks": false})] {
        let once = with(json!({"recursive": false}), follow.clone());
        refused(create(&client, &place, "a/b", once.clone()), NOT_FOUND);
        assert_eq!(create(&client, &place, "a", once.clone()), Ok(json!({})));
        refused(create(&client, &place, "a", once), EXISTS);
        for name in ["a/b/c", "a/b/c", "x%20y/%FF"] {
            assert_eq!(create(&client, &place, name, follow.clone()), Ok(json!({})), "{name}");
        }
        assert!(place.path("a/b/c").is_dir());
        assert!(place.path("x y").join(OsStr::from_bytes(b"\xff")).is_dir());
        fs::remove_dir_all(place.path("a")).unwrap();
        fs::remove_dir_all(place.path("x y")).unwrap();
    }
    let everything = json!({"recursive": null, "followSymlinks": null, "sandbox": null});
    assert_eq!(create(&client, &place, "n/u/l/l", everything), Ok(json!({})));
}

#[test]
fn an_existing_file_in_place_of_a_directory_is_an_error() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "");
    place.make(&["dir"]);
    place.link("dir", "to-dir");
    place.link("file", "to-file");
    place.link("nowhere", "broken");
    place.link("circle", "circle");
    let (any, once) = (json!({}), json!({"recursive": false}));
    for (name, recursive, single) in [
        ("file", EXISTS, EXISTS),
        ("file/x", NOT_A_DIRECTORY, NOT_A_DIRECTORY),
        ("to-file", EXISTS, EXISTS),
        ("broken", EXISTS, EXISTS),
        ("broken/x", EXISTS, NOT_FOUND),
    ] {
        refused(create(&client, &place, name, any.clone()), recursive);
        refused(create(&client, &place, name, once.clone()), single);
    }
    let endless = (-32603, "Too many levels of symbolic links (os error 40)");
    refused(create(&client, &place, "circle/x", any.clone()), endless);
    assert_eq!(create(&client, &place, "to-dir", any), Ok(json!({})));
    assert_eq!(create(&client, &place, "to-dir/new", once), Ok(json!({})));

    let (any, once) =
        (json!({"followSymlinks": false}), json!({"followSymlinks": false, "recursive": false}));
    for name in ["file", "to-dir", "to-file", "broken", "circle"] {
        refused(create(&client, &place, name, any.clone()), NOT_A_DIRECTORY);
        refused(create(&client, &place, name, once.clone()), EXISTS);
        refused(create(&client, &place, &format!("{name}/x"), any.clone()), NOT_A_DIRECTORY);
        refused(create(&client, &place, &format!("{name}/x"), once.clone()), NOT_A_DIRECTORY);
    }
    assert_eq!(place.names("dir"), ["new"]);
}

/// A directory with a bit of everything.
fn mixed() -> Place {
    let place = Place::new();
    place.write("d/file", "12345");
    place.write("d/.hidden", "");
    place.make(&["d/sub"]);
    place.fifo("d/fifo");
    place.link("file", "d/to-file");
    place.link("sub", "d/to-sub");
    place.link("fifo", "d/to-fifo");
    place.link("nowhere", "d/broken");
    fs::write(place.path("d").join(OsStr::from_bytes(b"odd\xff")), "").expect("there is room");
    place
}

#[test]
fn a_listing_classifies_links_by_their_target_and_leaves_broken_ones_out() {
    let (server, place) = (Server::start(), mixed());
    let client = server.client();
    place.link("d", "alias");
    for name in ["d", "alias"] {
        let listing = list(&client, &place, name, json!({}));
        let expected = [
            (".hidden", false, true),
            ("fifo", false, false),
            ("file", false, true),
            ("odd\u{fffd}", false, true),
            ("sub", true, false),
            ("to-fifo", false, false),
            ("to-file", false, true),
            ("to-sub", true, false),
        ];
        assert_eq!(entries(&listing), expected.map(|(name, dir, file)| (name.to_owned(), dir, file)));
        let first = listing["entries"][0].as_object().unwrap();
        assert_eq!((first.len(), listing.as_object().unwrap().len()), (3, 1), "nothing else: {listing}");
    }
    assert_eq!(list(&client, &place, "d/sub", json!({})), json!({"entries": []}));
    for (name, error) in [("nothing", NOT_FOUND), ("d/broken", NOT_FOUND), ("d/file", NOT_A_DIRECTORY)] {
        refused(client.call("fs/readDirectory", json!({"path": place.uri(name)})), error);
    }
    refused(client.call("fs/readDirectory", json!({"path": place.uri("d/fifo")})), NOT_A_DIRECTORY);
}

#[test]
fn a_page_has_exact_paths_and_all_entries_in_byte_order() {
    let (server, place) = (Server::start(), mixed());
    let client = server.client();
    let page = list(&client, &place, "d", json!({"limit": 50_000}));
    let sorted = [".hidden", "broken", "fifo", "file", "odd\u{fffd}", "sub", "to-fifo", "to-file", "to-sub"];
    assert_eq!(names(&page), sorted);
    assert_eq!(page.get("nextCursor"), None);
    assert_eq!(
        page["entries"][1],
        json!({"fileName": "broken", "isDirectory": false, "isFile": false, "isSymlink": true,
            "path": place.uri("d/broken")})
    );
    let odd = uri(&place.path("d").join(OsStr::from_bytes(b"odd\xff")));
    assert_eq!(
        page["entries"][4],
        json!({"fileName": "odd\u{fffd}", "isDirectory": false, "isFile": true, "isSymlink": false, "path": odd})
    );
    assert_eq!(client.call("fs/getMetadata", json!({"path": odd})).unwrap()["isFile"], true);
}

#[test]
fn details_describe_the_entry_itself() {
    let (server, place) = (Server::start(), mixed());
    let client = server.client();
    let page = list(&client, &place, "d", json!({"limit": 100, "details": true}));
    let entry = |name: &str| {
        let at = names(&page).iter().position(|other| other == name).unwrap();
        page["entries"][at].clone()
    };
    let params = json!({"path": place.uri("d/file")});
    assert_eq!(entry("file")["metadata"], client.call("fs/getMetadata", params).unwrap());
    for (name, target) in [("to-file", "file"), ("broken", "nowhere")] {
        let metadata = &entry(name)["metadata"];
        let size = u64::try_from(target.len()).unwrap();
        assert_eq!(
            (&metadata["kind"], &metadata["linkTarget"], &metadata["isSymlink"], &metadata["size"]),
            (&json!("symlink"), &json!(target), &json!(true), &json!(size))
        );
    }
    assert_eq!(entry("to-sub")["isDirectory"], true, "classified by the target all the same");
}

#[test]
fn pages_follow_each_other_by_cursor_while_the_directory_changes() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    fill(&place, "d", (0..10).map(|n| format!("f{n}")));
    let first = list(&client, &place, "d", json!({"limit": 4}));
    assert_eq!(names(&first), ["f0", "f1", "f2", "f3"]);
    // The last one listed is gone, one before it is new, one after it too.
    fs::remove_file(place.path("d/f3")).unwrap();
    fill(&place, "d", ["f00", "f35"].map(str::to_owned).into_iter());
    let second = list(&client, &place, "d", json!({"limit": 4, "cursor": first["nextCursor"]}));
    assert_eq!(names(&second), ["f35", "f4", "f5", "f6"]);
    let third = list(&client, &place, "d", json!({"limit": 3, "cursor": second["nextCursor"]}));
    assert_eq!(
        (names(&third), third.get("nextCursor")),
        (["f7", "f8", "f9"].map(str::to_owned).to_vec(), None)
    );
}

#[test]
fn an_impossible_page_is_refused_with_the_reason() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    for (more, text) in [
        (json!({"limit": 0}), "limit 0 is out of range: a page has 1 to 50000 entries"),
        (json!({"limit": 50_001}), "limit 50001 is out of range: a page has 1 to 50000 entries"),
        (json!({"limit": 1, "cursor": "x"}), "invalid `cursor`: use the `nextCursor` of the previous page"),
        (json!({"limit": 1, "cursor": ""}), "invalid `cursor`: use the `nextCursor` of the previous page"),
        (json!({"cursor": "61"}), "`cursor` and `details` require `limit`"),
        (json!({"details": true}), "`cursor` and `details` require `limit`"),
    ] {
        let params = with(json!({"path": place.uri("")}), more);
        assert_eq!(client.refusal("fs/readDirectory", params), (-32600, text.to_owned()));
    }
    let params = json!({"path": place.uri(""), "limit": -1});
    assert_eq!(client.refusal("fs/readDirectory", params).0, -32602);
}

#[test]
fn entries_beyond_the_response_limit_are_counted_and_can_be_paged() {
    let (server, place) = (Server::start(), Place::in_memory());
    let client = server.client();
    fill(&place, "d", (0..50_000).map(|n| format!("{n:06}")));
    assert_eq!(names(&list(&client, &place, "d", json!({}))).len(), 50_000);
    place.link("nowhere", "d/broken");
    assert_eq!(names(&list(&client, &place, "d", json!({}))).len(), 50_000, "a broken link does not count");
    place.write("d/050000", "");
    let error = client.call("fs/readDirectory", json!({"path": place.uri("d")})).unwrap_err();
    assert_eq!(
        (&error["code"], &error["message"], &error["data"]["kind"]),
        (
            &json!(-32603),
            &json!("fs/readDirectory returned 50001 entries; limit is 50000"),
            &json!("limitExceeded")
        )
    );

    fill(&place, "d", (50_001..200_000).map(|n| format!("{n:06}")));
    fs::remove_file(place.path("d/broken")).unwrap();
    let text = "fs/readDirectory returned 200000 entries; limit is 50000".to_owned();
    assert_eq!(client.refusal("fs/readDirectory", json!({"path": place.uri("d")})), (-32603, text));
    let mut seen = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let page = list(&client, &place, "d", json!({"limit": 50_000, "cursor": cursor}));
        assert!(page.to_string().len() < 16 * 1024 * 1024, "a page fits a message easily");
        seen.extend(names(&page));
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert!(seen.into_iter().eq((0..200_000).map(|n| format!("{n:06}"))), "each once, in order");
    let params = json!({"path": place.uri("d")});
    assert_eq!(client.call("fs/remove", params), Ok(json!({})));
}
