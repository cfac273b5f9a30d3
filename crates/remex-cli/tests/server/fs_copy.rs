//! Copying files, links and trees.

use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt},
        net::UnixListener,
    },
    path::Path,
};

use serde_json::{Value, json};

use crate::support::{Client, Place, Server};

const INTO_ITSELF: (i64, &str) =
    (-32600, "fs/copy cannot copy a directory to itself or one of its descendants");

fn copy(client: &Client, place: &Place, from: &str, to: &str) -> Result<Value, Value> {
    let params = json!({"sourcePath": place.uri(from), "destinationPath": place.uri(to), "recursive": true});
    client.call("fs/copy", params)
}

fn copied(client: &Client, place: &Place, from: &str, to: &str) {
    assert_eq!(copy(client, place, from, to), Ok(json!({})), "{from} to {to}");
}

fn refused(client: &Client, place: &Place, from: &str, to: &str, (code, message): (i64, &str)) {
    let error = copy(client, place, from, to).expect_err("it is refused");
    assert_eq!((&error["code"], &error["message"]), (&json!(code), &json!(message)), "{from} to {to}");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

#[test]
fn a_file_is_copied_with_its_content_and_mode() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let content: Vec<u8> = (0..5_000_000).map(u32::to_le_bytes).collect::<Vec<_>>().into_flattened();
    place.write("large", &content);
    fs::set_permissions(place.path("large"), PermissionsExt::from_mode(0o4710)).unwrap();
    copied(&client, &place, "large", "copy");
    assert!(fs::read(place.path("copy")).unwrap() == content);
    assert_eq!(mode(&place.path("copy")), 0o4710);

    place.write("longer", "something longer");
    place.write("short", "short");
    fs::hard_link(place.path("longer"), place.path("same")).unwrap();
    fs::set_permissions(place.path("short"), PermissionsExt::from_mode(0o604)).unwrap();
    copied(&client, &place, "short", "longer");
    assert_eq!((place.read("longer"), place.read("same")), ("short".into(), "short".into()), "in place");
    assert_eq!(mode(&place.path("same")), 0o604);

    place.link("dangling", "link");
    copied(&client, &place, "short", "link");
    assert_eq!(place.read("dangling"), "short", "a link in the destination is followed");
    let size = json!({"sourcePath": "file:///proc/self/status", "destinationPath": place.uri("status"),
        "recursive": false});
    assert_eq!(client.call("fs/copy", size), Ok(json!({})));
    assert!(place.read("status").starts_with("Name:"), "files without a size have content too");
}

#[test]
fn copying_a_file_onto_itself_changes_nothing() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("d/file", "precious");
    place.link("file", "d/link");
    place.link("d", "alias");
    fs::hard_link(place.path("d/file"), place.path("hard")).unwrap();
    for to in ["d/file", "d/link", "alias/file", "hard", "alias/link"] {
        copied(&client, &place, "d/file", to);
        assert_eq!(place.read("d/file"), "precious", "{to}");
    }
    assert_eq!(place.names("d"), ["file", "link"]);
}

#[test]
fn special_files_are_refused_at_once() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "x");
    place.fifo("fifo");
    place.link("fifo", "link");
    place.make(&["dir"]);
    let _socket = UnixListener::bind(place.path("socket")).unwrap();
    for special in ["fifo", "socket"] {
        let text = "fs/copy only supports regular files, directories, and symlinks";
        refused(&client, &place, special, "new", (-32600, text));
        let text = format!("path `{}` is not a file", place.path(special).display());
        refused(&client, &place, "file", special, (-32600, &text));
    }
    let text = format!("path `{}` is not a file", place.path("link").display());
    refused(&client, &place, "file", "link", (-32600, &text));
    // With a reader an open would succeed; still nothing may be written to it.
    let _reader = OpenOptions::new().read(true).write(true).open(place.path("fifo")).unwrap();
    refused(&client, &place, "file", "link", (-32600, &text));
    for device in ["/dev/null", "/dev/full"] {
        let params = json!({"sourcePath": place.uri("file"), "destinationPath": device, "recursive": false});
        assert_eq!(client.refusal("fs/copy", params), (-32600, format!("path `{device}` is not a file")));
    }
    refused(&client, &place, "file", "dir", (-32603, "Is a directory (os error 21)"));
    refused(&client, &place, "nothing", "new", (-32004, "No such file or directory (os error 2)"));
    refused(&client, &place, "file", "nothing/new", (-32004, "No such file or directory (os error 2)"));
    refused(&client, &place, "file", "file/new", (-32603, "Not a directory (os error 20)"));
    assert_eq!(place.names(""), ["dir", "fifo", "file", "link", "socket"]);
}

#[test]
fn a_link_is_copied_as_a_link() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "x");
    place.make(&["dir"]);
    for (target, name) in [("file", "a"), ("dir", "b"), ("nowhere", "c"), ("d", "d")] {
        place.link(target, name);
        let copy = format!("dir/{name}");
        copied(&client, &place, name, &copy);
        assert_eq!(fs::read_link(place.path(&copy)).unwrap(), Path::new(target));
        refused(&client, &place, name, &copy, (-32603, "File exists (os error 17)"));
    }
    refused(&client, &place, "a", "dir", (-32603, "File exists (os error 17)"));
}

#[test]
fn a_directory_is_merged_into_an_existing_one() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    for name in ["src/a", "src/sub/b", "src/sub/sub/c"] {
        place.write(name, name);
    }
    place.make(&["src/empty", "elsewhere"]);
    place.link("a", "src/link");
    place.link("nowhere", "src/broken");
    place.fifo("src/fifo");
    fs::write(place.path("src/sub").join(OsStr::from_bytes(b"\xff")), "ff").unwrap();
    place.write("dst/kept", "kept");
    place.write("dst/a", "old");
    // A link to a directory counts as one in the destination.
    place.link("../elsewhere", "dst/sub");
    let once =
        json!({"sourcePath": place.uri("src"), "destinationPath": place.uri("dst"), "recursive": false});
    let text = "fs/copy requires recursive: true when sourcePath is a directory".to_owned();
    assert_eq!(client.refusal("fs/copy", once), (-32600, text));
    copied(&client, &place, "src", "dst");
    assert_eq!(place.names("dst"), ["a", "broken", "empty", "kept", "link", "sub"]);
    assert_eq!(place.names("elsewhere"), ["b", "sub", "\u{fffd}"]);
    assert_eq!((place.read("dst/a"), place.read("dst/sub/sub/c")), ("src/a".into(), "src/sub/sub/c".into()));
    refused(&client, &place, "src", "dst", (-32603, "File exists (os error 17)"));

    copied(&client, &place, "src", "missing/on/the/way");
    assert_eq!(place.names("missing/on/the/way"), ["a", "broken", "empty", "link", "sub"]);
    place.write("file", "");
    refused(&client, &place, "src", "file", (-32603, "File exists (os error 17)"));
    refused(&client, &place, "src", "file/x", (-32603, "Not a directory (os error 20)"));
    place.write("clash/sub", "a file");
    refused(&client, &place, "src", "clash", (-32603, "File exists (os error 17)"));
}

#[test]
fn a_directory_is_never_copied_into_itself() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("src/sub/file", "x");
    place.link("src", "alias");
    place.link(".", "here");
    for to in
        ["src", "src/new", "src/sub", "src/a/b/c", "alias", "alias/x", "here/src/x", "src/sub/../../src/y"]
    {
        refused(&client, &place, "src", to, INTO_ITSELF);
        refused(&client, &place, "here/src", to, INTO_ITSELF);
    }
    assert_eq!((place.names("src"), place.names("src/sub")), (vec!["sub".into()], vec!["file".into()]));
    // Not even by a link that is met on the way.
    place.make(&["dst", "src/sub/inner"]);
    place.link("../src/sub/inner", "dst/sub");
    refused(&client, &place, "src", "dst", INTO_ITSELF);
    assert_eq!(place.read("src/sub/file"), "x");
    copied(&client, &place, "src", "src-more");
}

#[test]
fn a_deep_tree_is_copied_through_a_link_in_the_destination() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let deep = "d/".repeat(100);
    place.write(&format!("src/sub/{deep}file"), "deep");
    place.write("src/a/file", "after the way back");
    place.make(&["dst", "else/where"]);
    place.link("../else/where", "dst/sub");
    copied(&client, &place, "src", "dst");
    assert_eq!(place.read(&format!("else/where/{deep}file")), "deep");
    assert_eq!(place.read("dst/a/file"), "after the way back");
}
