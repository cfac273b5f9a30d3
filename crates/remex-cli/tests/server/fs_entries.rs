//! What paths name, and how that is changed: metadata, links, modes, times, renaming, removing.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use serde_json::{Value, json};

use crate::support::{Client, Place, Server, decode, encode, uri, with};

const NOT_FOUND: (i64, &str) = (-32004, "No such file or directory (os error 2)");
const NOT_A_DIRECTORY: (i64, &str) = (-32603, "Not a directory (os error 20)");
const EXISTS: (i64, &str) = (-32603, "File exists (os error 17)");
const NOT_EMPTY: (i64, &str) = (-32603, "Directory not empty (os error 39)");
const LOOP: (i64, &str) = (-32603, "Too many levels of symbolic links (os error 40)");
const LINK: (i64, &str) = (-32600, "path contains a symbolic link");

/// A file, a directory with a file, links to them, a broken one, a circle of two, and a FIFO.
fn zoo() -> Place {
    let place = Place::new();
    place.write("file", "12345");
    place.write("dir/inner", "");
    place.link("file", "to-file");
    place.link("dir", "to-dir");
    place.link("nowhere", "broken");
    place.link("circle-b", "circle-a");
    place.link("circle-a", "circle-b");
    place.fifo("fifo");
    place
}

/// Asks for something that works, and has nothing to say about it.
fn done(client: &Client, method: &str, params: Value) {
    let what = format!("{method} {params}");
    assert_eq!(client.call(method, params), Ok(json!({})), "{what}");
}

fn refused(client: &Client, method: &str, params: Value, (code, message): (i64, &str)) {
    let what = format!("{method} {params}");
    assert_eq!(client.refusal(method, params), (code, message.to_owned()), "{what}");
}

fn metadata(client: &Client, uri: &str) -> Value {
    client.call("fs/getMetadata", json!({"path": uri})).expect("it has metadata")
}

fn milliseconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(-1, |since| i64::try_from(since.as_millis()).expect("not so late"))
}

#[test]
fn metadata_describes_the_target_and_notes_the_link() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    fs::set_permissions(place.path("file"), PermissionsExt::from_mode(0o4751)).unwrap();
    let own = fs::metadata(place.path("file")).unwrap();
    let file = json!({
        "isDirectory": false, "isFile": true, "isSymlink": false, "size": 5,
        "createdAtMs": own.created().map_or(0, milliseconds),
        "modifiedAtMs": milliseconds(own.modified().unwrap()),
        "kind": "file", "mode": 0o4751, "uid": own.uid(), "gid": own.gid(),
    });
    assert_eq!(metadata(&client, &place.uri("file")), file);
    let linked = with(file.clone(), json!({"isSymlink": true, "linkTarget": "file"}));
    assert_eq!(metadata(&client, &place.uri("to-file")), linked);
    let params = json!({"path": place.uri("file"), "followSymlinks": false});
    assert_eq!(client.call("fs/getMetadata", params), Ok(file));

    let directory = metadata(&client, &place.uri("to-dir"));
    assert_eq!(
        (&directory["isDirectory"], &directory["isFile"], &directory["isSymlink"], &directory["kind"]),
        (&json!(true), &json!(false), &json!(true), &json!("directory"))
    );
}

#[test]
fn special_files_have_metadata_but_are_neither_file_nor_directory() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    let _socket = UnixListener::bind(place.path("socket")).unwrap();
    let device = "file:///dev/null".to_owned();
    for (uri, kind) in [(place.uri("fifo"), "fifo"), (place.uri("socket"), "socket"), (device, "device")] {
        for follow in [true, false] {
            let params = json!({"path": uri, "followSymlinks": follow});
            let metadata = client.call("fs/getMetadata", params).unwrap();
            assert_eq!(
                (&metadata["isDirectory"], &metadata["isFile"], &metadata["isSymlink"], &metadata["kind"]),
                (&json!(false), &json!(false), &json!(false), &json!(kind))
            );
        }
    }
}

#[test]
fn metadata_of_a_missing_path_is_a_clear_error() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    for (name, following, not_following) in [
        ("nothing", NOT_FOUND, NOT_FOUND),
        ("nothing/x", NOT_FOUND, NOT_FOUND),
        ("file/x", NOT_A_DIRECTORY, NOT_A_DIRECTORY),
        ("broken", NOT_FOUND, LINK),
        ("broken/x", NOT_FOUND, NOT_A_DIRECTORY),
        ("circle-a", LOOP, LINK),
        ("circle-a/x", LOOP, NOT_A_DIRECTORY),
    ] {
        let params = json!({"path": place.uri(name)});
        refused(&client, "fs/getMetadata", params.clone(), following);
        refused(&client, "fs/getMetadata", with(params, json!({"followSymlinks": false})), not_following);
    }
    for (name, error) in [("to-file", LINK), ("to-dir", LINK), ("to-dir/inner", NOT_A_DIRECTORY)] {
        let params = json!({"path": place.uri(name), "followSymlinks": false});
        refused(&client, "fs/getMetadata", params, error);
    }
    let long = "x".repeat(256);
    let error = (-32603, "File name too long (os error 36)");
    refused(&client, "fs/getMetadata", json!({"path": place.uri(&long)}), error);
    let told = client.call("fs/getMetadata", json!({"path": place.uri("nothing")})).unwrap_err();
    assert_eq!(told["data"]["kind"], "notFound");
    assert!(told["data"]["hint"].as_str().unwrap().contains("nothing"), "{told}");
}

#[test]
fn paths_resolve_by_their_text_and_by_exact_bytes() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    fs::write(place.path("").join(OsStr::from_bytes(b"\xff %")), "abc").unwrap();
    for (name, size) in [("%FF%20%25", 3), ("to-dir/../file", 5), ("dir/./%69nner/..%2F../file", 5)] {
        assert_eq!(metadata(&client, &place.uri(name))["size"], size, "{name}");
    }
    // The directory that holds the link, not the one above its target.
    symlink("/usr/bin", place.path("away")).unwrap();
    assert_eq!(metadata(&client, &place.uri("away/../file"))["size"], 5);
    for foreign in ["file://server/x", "file:///C:/x"] {
        let text = format!("'{foreign}' is invalid on 'linux'");
        for (method, params) in [
            ("fs/getMetadata", json!({"path": foreign})),
            ("fs/canonicalize", json!({"path": foreign})),
            ("fs/createDirectory", json!({"path": foreign})),
            ("fs/readDirectory", json!({"path": foreign})),
            (
                "fs/walk",
                json!({"path": foreign, "options": {"maxDepth": 1, "maxDirectories": 1, "maxEntries": 1,
                "followDirectorySymlinks": true}}),
            ),
            ("fs/remove", json!({"path": foreign})),
            (
                "fs/copy",
                json!({"sourcePath": place.uri("file"), "destinationPath": foreign, "recursive": true}),
            ),
            ("fs/copy", json!({"sourcePath": foreign, "destinationPath": place.uri("x"), "recursive": true})),
            ("fs/rename", json!({"sourcePath": place.uri("file"), "destinationPath": foreign})),
            ("fs/setPermissions", json!({"path": foreign, "mode": 0})),
            ("fs/setTimes", json!({"path": foreign, "modifiedAtMs": 0})),
            ("fs/symlink", json!({"path": foreign, "target": "x"})),
            ("fs/readLink", json!({"path": foreign})),
        ] {
            refused(&client, method, params, (-32600, &text));
        }
    }
}

#[test]
fn a_canonical_path_has_no_links() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    let canonical = |uri: String| client.call("fs/canonicalize", json!({"path": uri}));
    let root = place.path("").canonicalize().unwrap();
    assert_eq!(canonical(place.uri("to-dir/inner")), Ok(json!({"path": uri(&root.join("dir/inner"))})));
    assert_eq!(canonical(place.uri("to-file")), Ok(json!({"path": uri(&root.join("file"))})));
    assert_eq!(canonical("file:///".to_owned()), Ok(json!({"path": "file:///"})));
    let odd = OsStr::from_bytes(b"a b\xff");
    fs::create_dir(place.path("").join(odd)).unwrap();
    assert_eq!(canonical(place.uri("%61 b%FF")), Ok(json!({"path": uri(&root.join(odd))})));
    for (name, error) in
        [("nothing", NOT_FOUND), ("broken", NOT_FOUND), ("file/x", NOT_A_DIRECTORY), ("circle-a", LOOP)]
    {
        refused(&client, "fs/canonicalize", json!({"path": place.uri(name)}), error);
    }
}

#[test]
fn removing_deletes_links_themselves_and_directories_recursively() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    place.write("dir/deep/er/file", "");
    place.link("../../file", "dir/deep/link");
    place.link(place.path("").to_str().unwrap(), "dir/deep/up");
    for name in ["to-file", "to-dir", "broken", "circle-a", "fifo", "dir"] {
        done(&client, "fs/remove", json!({"path": place.uri(name)}));
    }
    assert_eq!(place.names(""), ["circle-b", "file"]);
    assert_eq!(place.read("file"), "12345");
}

#[test]
fn nonrecursive_removal_refuses_nonempty_directories() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    for follow in [true, false] {
        let params = json!({"path": place.uri("dir"), "recursive": false, "followSymlinks": follow});
        refused(&client, "fs/remove", params, NOT_EMPTY);
    }
    done(&client, "fs/remove", json!({"path": place.uri("to-dir/inner"), "recursive": false}));
    done(&client, "fs/remove", json!({"path": place.uri("dir"), "recursive": false}));
    for name in ["file", "fifo"] {
        let params = json!({"path": place.uri(name), "recursive": false, "followSymlinks": false});
        done(&client, "fs/remove", params);
    }
    assert_eq!(place.names(""), ["broken", "circle-a", "circle-b", "to-dir", "to-file"]);
}

#[test]
fn force_ignores_only_missing_paths() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    for name in ["nothing", "dir/nothing", "nothing/x", "broken/x"] {
        done(&client, "fs/remove", json!({"path": place.uri(name)}));
        done(&client, "fs/remove", json!({"path": place.uri(name), "force": null, "recursive": false}));
        refused(&client, "fs/remove", json!({"path": place.uri(name), "force": false}), NOT_FOUND);
    }
    refused(&client, "fs/remove", json!({"path": place.uri("file/x")}), NOT_A_DIRECTORY);
    refused(&client, "fs/remove", json!({"path": place.uri("circle-a/x")}), LOOP);
    for path in ["file:///", "/", "/tmp/.."] {
        refused(&client, "fs/remove", json!({"path": path}), (-32600, "path must name an entry"));
    }
}

#[test]
fn removal_without_following_links_refuses_paths_through_links() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    let before = place.names("");
    let remove = |name: &str| json!({"path": place.uri(name), "recursive": false, "followSymlinks": false});
    for name in ["to-file", "to-dir", "broken", "circle-a"] {
        refused(&client, "fs/remove", remove(name), LINK);
    }
    refused(&client, "fs/remove", remove("to-dir/inner"), NOT_A_DIRECTORY);
    done(&client, "fs/remove", remove("nothing"));
    for more in [json!({"recursive": true}), json!({"recursive": null})] {
        let text = "recursive no-follow removal is unsupported";
        refused(&client, "fs/remove", with(remove("dir"), more), (-32603, text));
    }
    assert_eq!((place.names(""), place.names("dir")), (before, vec!["inner".to_owned()]));
}

#[test]
fn a_tree_of_ten_thousand_levels_is_copied_and_removed() {
    let (server, place) = (Server::start(), Place::in_memory());
    let client = server.client();
    make_deep(&place.path("deep"), 10_000);
    let copy =
        json!({"sourcePath": place.uri("deep"), "destinationPath": place.uri("copy"), "recursive": true});
    done(&client, "fs/copy", copy);
    assert_eq!(depth(&place.path("copy")), 10_000);
    for name in ["deep", "copy"] {
        done(&client, "fs/remove", json!({"path": place.uri(name)}));
    }
    assert_eq!(place.names(""), [""; 0]);
}

/// Makes a directory, and that many directories inside of each other in it.
fn make_deep(path: &Path, levels: usize) {
    fs::create_dir(path).expect("there is room");
    let mut directory = open_directory(CWD, path);
    for _ in 0..levels {
        mkdirat(&directory, "d", Mode::RWXU).expect("there is room");
        directory = open_directory(&directory, "d");
    }
}

/// Counts directories inside of each other.
fn depth(path: &Path) -> usize {
    let mut directory = open_directory(CWD, path);
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut depth = 0;
    while let Ok(next) = openat(&directory, "d", flags, Mode::empty()) {
        directory = next;
        depth += 1;
    }
    depth
}

fn open_directory(above: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> std::os::fd::OwnedFd {
    openat(above, name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("a directory")
}

#[test]
fn renaming_replaces_atomically_unless_disabled() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    let rename =
        |from: &str, to: &str| json!({"sourcePath": place.uri(from), "destinationPath": place.uri(to)});
    place.write("other", "other");
    let spare = |from, to| with(rename(from, to), json!({"overwrite": false}));
    refused(&client, "fs/rename", spare("file", "other"), EXISTS);
    refused(&client, "fs/rename", spare("file", "broken"), EXISTS);
    assert_eq!(place.read("other"), "other");
    done(&client, "fs/rename", rename("file", "other"));
    assert_eq!(place.read("other"), "12345");
    done(&client, "fs/rename", spare("other", "new"));
    done(&client, "fs/rename", rename("to-dir", "moved"));
    assert_eq!(fs::read_link(place.path("moved")).unwrap(), Path::new("dir"), "a link itself is moved");

    place.make(&["empty", "full/x"]);
    for (from, to, error) in [
        ("nothing", "x", NOT_FOUND),
        ("new", "nothing/x", NOT_FOUND),
        ("new", "empty", (-32603, "Is a directory (os error 21)")),
        ("dir", "new", NOT_A_DIRECTORY),
        ("dir", "full", NOT_EMPTY),
        ("dir", "dir/below", (-32600, "Invalid argument (os error 22)")),
    ] {
        refused(&client, "fs/rename", rename(from, to), error);
    }
    refused(&client, "fs/rename", spare("dir", "dir/below"), (-32600, "Invalid argument (os error 22)"));
    done(&client, "fs/rename", rename("dir", "empty"));
    assert_eq!(place.names("empty"), ["inner"]);
}

#[test]
fn renaming_to_another_file_system_is_refused() {
    let (server, place, memory) = (Server::start(), zoo(), Place::in_memory());
    let client = server.client();
    let is_another =
        fs::metadata(memory.path("")).unwrap().dev() != fs::metadata(place.path("")).unwrap().dev();
    let params = json!({"sourcePath": place.uri("file"), "destinationPath": memory.uri("file")});
    if is_another {
        let error = client.call("fs/rename", params).unwrap_err();
        assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32603), &json!("crossDevice")));
        assert_eq!(place.read("file"), "12345");
    }
}

#[test]
fn permission_bits_are_set_exactly() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    let mode = |name: &str| fs::metadata(place.path(name)).unwrap().mode() & 0o7777;
    for bits in [0o000, 0o6711, 0o1777, 0o7777, 0o640] {
        done(&client, "fs/setPermissions", json!({"path": place.uri("to-file"), "mode": bits}));
        assert_eq!(mode("file"), bits);
        let params = json!({"path": place.uri("dir"), "mode": bits, "followSymlinks": false});
        done(&client, "fs/setPermissions", params);
        assert_eq!(mode("dir"), bits);
    }
    let text = "invalid mode 4096: permission bits are 0 to 4095 (octal 7777)";
    let params = |name: &str, mode: u32| json!({"path": place.uri(name), "mode": mode});
    refused(&client, "fs/setPermissions", params("file", 0o10000), (-32600, text));
    refused(&client, "fs/setPermissions", params("nothing", 0o644), NOT_FOUND);
    refused(&client, "fs/setPermissions", params("broken", 0o644), NOT_FOUND);
    let itself = with(params("to-file", 0), json!({"followSymlinks": false}));
    refused(&client, "fs/setPermissions", itself, LINK);
    assert_eq!(mode("file"), 0o640);
}

#[test]
fn times_can_be_set_separately_or_together() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    let times = |name: &str| {
        let metadata = fs::metadata(place.path(name)).unwrap();
        (metadata.modified().unwrap(), metadata.accessed().unwrap())
    };
    let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(ms);
    let params =
        json!({"path": place.uri("to-file"), "modifiedAtMs": 1_234_567_891_011_i64, "accessedAtMs": 42});
    done(&client, "fs/setTimes", params);
    assert_eq!(times("file"), (at(1_234_567_891_011), at(42)));
    let params = json!({"path": place.uri("file"), "accessedAtMs": 7_001, "followSymlinks": false});
    done(&client, "fs/setTimes", params);
    assert_eq!(times("file"), (at(1_234_567_891_011), at(7_001)));
    done(&client, "fs/setTimes", json!({"path": place.uri("dir"), "modifiedAtMs": -1_500}));
    assert_eq!(times("dir").0, UNIX_EPOCH - Duration::from_millis(1_500));
    assert_eq!(metadata(&client, &place.uri("dir"))["modifiedAtMs"], -1_500);

    let text = "no time is given: fs/setTimes needs `modifiedAtMs`, `accessedAtMs` or both";
    refused(&client, "fs/setTimes", json!({"path": place.uri("file")}), (-32600, text));
    refused(&client, "fs/setTimes", json!({"path": place.uri("broken"), "modifiedAtMs": 1}), NOT_FOUND);
    let params = json!({"path": place.uri("to-file"), "modifiedAtMs": 1, "followSymlinks": false});
    refused(&client, "fs/setTimes", params, LINK);
}

#[test]
fn links_are_created_and_read_byte_exactly() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    done(&client, "fs/symlink", json!({"path": place.uri("new"), "target": "../ü/nowhere"}));
    let read = client.call("fs/readLink", json!({"path": place.uri("new")})).unwrap();
    assert_eq!(read, json!({"target": "../ü/nowhere", "targetBase64": encode("../ü/nowhere")}));
    let odd = json!({"path": place.uri("dir/odd%FE"), "targetBase64": encode(b"\xff/x")});
    done(&client, "fs/symlink", odd);
    let read = client.call("fs/readLink", json!({"path": place.uri("to-dir/odd%FE")})).unwrap();
    assert_eq!((&read["target"], decode(&read["targetBase64"])), (&json!("\u{fffd}/x"), b"\xff/x".to_vec()));

    refused(&client, "fs/symlink", json!({"path": place.uri("file"), "target": "x"}), EXISTS);
    refused(&client, "fs/symlink", json!({"path": place.uri("broken"), "target": "x"}), EXISTS);
    refused(&client, "fs/symlink", json!({"path": place.uri("nothing/x"), "target": "x"}), NOT_FOUND);
    let both = json!({"path": place.uri("x"), "target": "x", "targetBase64": encode("x")});
    let text = "fs/symlink requires exactly one of `target` and `targetBase64`";
    refused(&client, "fs/symlink", both, (-32600, text));
    refused(&client, "fs/symlink", json!({"path": place.uri("x")}), (-32600, text));
    for target in ["", "a\0b"] {
        let text = "the target of a symbolic link must not be empty or contain NUL bytes";
        refused(&client, "fs/symlink", json!({"path": place.uri("x"), "target": target}), (-32600, text));
    }
    refused(&client, "fs/readLink", json!({"path": place.uri("nothing")}), NOT_FOUND);
    let text = format!("path `{}` is not a symbolic link", place.path("file").display());
    refused(&client, "fs/readLink", json!({"path": place.uri("file")}), (-32600, &text));
}

fn sandbox(permissions: &Value) -> Value {
    json!({"permissions": permissions, "windowsSandboxLevel": "disabled", "cwd": "file:///"})
}

fn restricted(entries: &Value) -> Value {
    let file_system = json!({"type": "restricted", "entries": entries});
    sandbox(&json!({"type": "managed", "network": "restricted", "file_system": file_system}))
}

/// Every operation of this page and its neighbours, on a place with `file` and `dir`.
fn operations(place: &Place) -> Vec<(&'static str, Value)> {
    let options =
        json!({"maxDepth": 1, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": true});
    let [file, dir, new] = ["file", "dir", "new"].map(|name| place.uri(name));
    vec![
        ("fs/getMetadata", json!({"path": file})),
        ("fs/canonicalize", json!({"path": file})),
        ("fs/readDirectory", json!({"path": dir})),
        ("fs/walk", json!({"path": dir, "options": options})),
        ("fs/createDirectory", json!({"path": new})),
        ("fs/remove", json!({"path": new})),
        ("fs/copy", json!({"sourcePath": file, "destinationPath": new, "recursive": false})),
        ("fs/setPermissions", json!({"path": new, "mode": 0o600})),
        ("fs/setTimes", json!({"path": new, "modifiedAtMs": 1})),
        ("fs/rename", json!({"sourcePath": new, "destinationPath": place.uri("dir/new")})),
        ("fs/symlink", json!({"path": new, "target": "dir"})),
        ("fs/readLink", json!({"path": new})),
        ("fs/remove", json!({"path": new})),
        ("fs/remove", json!({"path": place.uri("dir/new")})),
    ]
}

#[test]
fn a_sandbox_without_file_restrictions_changes_nothing() {
    let (server, place) = (Server::start(), zoo());
    let client = server.client();
    let everywhere = json!([{"path": {"type": "special", "value": {"kind": "root"}}, "access": "write"}]);
    for sandbox in [
        Value::Null,
        sandbox(&json!({"type": "disabled"})),
        sandbox(&json!({"type": "external", "network": "restricted"})),
        sandbox(
            &json!({"type": "managed", "network": "restricted", "file_system": {"type": "unrestricted"}}),
        ),
        restricted(&everywhere),
    ] {
        for (method, params) in operations(&place) {
            let answer = client.call(method, with(params, json!({"sandbox": sandbox})));
            assert!(answer.is_ok(), "{method} in {sandbox}: {answer:?}");
        }
    }
}

#[test]
fn a_removal_succeeds_while_others_remove_parts_of_the_tree() {
    let (server, place) = (Server::start(), Place::in_memory());
    let client = server.client();
    for round in 0..30 {
        let root = place.path(&format!("tree{round}"));
        for number in 0..100 {
            fs::create_dir_all(root.join(format!("{number:03}/below"))).unwrap();
        }
        let removed = client.send("fs/remove", json!({"path": uri(&root)}));
        for number in (0..100).rev() {
            let _ = fs::remove_dir(root.join(format!("{number:03}/below")));
            let _ = fs::remove_dir(root.join(format!("{number:03}")));
        }
        assert_eq!(client.outcome(&removed), Ok(json!({})));
        assert!(!root.exists(), "round {round}");
    }
}
