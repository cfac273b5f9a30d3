//! Trees with something denied in them: they are listed, but neither moved nor removed nor copied.

use super::*;

#[test]
fn a_denied_name_can_be_listed_but_not_inspected() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    let listing =
        confined.done("fs/readDirectory", json!({"path": place.uri("work"), "limit": 99, "details": true}));
    let entry = |name: &str| {
        let mut entries = listing["entries"].as_array().expect("a list").iter();
        entries.find(|entry| entry["fileName"] == name).unwrap_or_else(|| panic!("{name} is listed")).clone()
    };
    assert_eq!((&entry("file")["metadata"]["size"], &entry("file")["isFile"]), (&json!(4), &json!(true)));
    assert_eq!((entry("private").get("metadata"), &entry("private")["isDirectory"]), (None, &json!(true)));
    let alias = entry("alias");
    assert_eq!(
        (&alias["isSymlink"], &alias["isFile"]),
        (&json!(true), &json!(false)),
        "where it leads is denied"
    );
    let names = confined.done("fs/readDirectory", json!({"path": place.uri("work/conf")}));
    assert_eq!(names["entries"].as_array().map(Vec::len), Some(2));

    for follow in [false, true] {
        let options =
            json!({"maxDepth": 9, "maxDirectories": 99, "maxEntries": 99, "followDirectorySymlinks": follow});
        let walk = confined.done("fs/walk", json!({"path": place.uri("work"), "options": options}));
        let text = walk["entries"].to_string();
        assert!(text.contains("/work/private\"") && text.contains("/work/conf/prod.env"), "{walk}");
        assert!(!text.contains("/work/private/key"), "{walk}");
        assert_eq!(text.contains("/work/out/file"), follow, "{walk}");
        assert_eq!(walk["errors"].as_array().map(Vec::len), Some(1), "{walk}");
        assert_eq!(walk["errors"][0]["path"], place.uri("work/private"));
    }
}

#[test]
fn a_tree_with_a_denied_entry_cannot_be_moved_removed_or_copied() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    place.write("work/deep/a/b/c/local.env", "secret");
    place.write("work/deep/a/other", "");
    place.write("work/vault/k.pem", "secret");
    let entries = [
        special("write", "project_roots"),
        pattern("**/*.env"),
        pattern("vault/*.pem"),
        pattern("open/**/x"),
    ];
    let confined = Confined { client: &client, place: &place, sandbox: sandbox(&place, &entries) };
    for (source, name) in
        [("deep", "work/deep/a/b/c/local.env"), ("vault", "work/vault/k.pem"), ("conf", "work/conf/prod.env")]
    {
        let path = place.uri(&format!("work/{source}"));
        let moved = json!({"sourcePath": path, "destinationPath": place.uri("work/moved")});
        let message = confined.denied("fs/rename", moved.clone());
        assert!(message.contains(&place.path(name).display().to_string()), "{message}");
        confined.denied("fs/remove", json!({"path": path}));
        confined.denied("fs/copy", with(moved, json!({"recursive": true})));
        assert_eq!(place.read(name), "secret");
    }
    assert!(place.path("work/deep/a/other").exists(), "nothing is removed if not all can be");
    // What would be denied where it is moved to is not moved there.
    place.write("work/ready/sub/x", "");
    let moved = json!({"sourcePath": place.uri("work/ready"), "destinationPath": place.uri("work/open")});
    confined.denied("fs/rename", moved);
    place.write("work/fine/sub/y", "");
    confined.done(
        "fs/rename",
        json!({"sourcePath": place.uri("work/fine"), "destinationPath": place.uri("work/open")}),
    );
    confined.done("fs/remove", json!({"path": place.uri("work/open")}));
    assert!(!place.path("work/open").exists());
}
