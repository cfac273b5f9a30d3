//! Whole files: read, written, replaced in one step, hashed.

use std::{
    fs::{self, File},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
        net::UnixListener,
        process::CommandExt as _,
    },
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{Client, Place, Server, decode, encode, with};

fn write(client: &Client, uri: &str, content: &str, more: Value) -> Result<Value, Value> {
    client.call("fs/writeFile", with(json!({"path": uri, "dataBase64": encode(content)}), more))
}

fn read(client: &Client, uri: &str) -> Vec<u8> {
    decode(&client.call("fs/readFile", json!({"path": uri})).expect("the file can be read")["dataBase64"])
}

fn hash(content: impl AsRef<[u8]>) -> String {
    let digest = Sha256::digest(content.as_ref());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

fn make_fifo(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a FIFO can be made");
}

#[test]
fn arbitrary_bytes_are_written_and_read_back() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let every: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    for (name, content) in [("empty", &[][..]), ("small", b"hi\n"), ("large", &every)] {
        let params = json!({"path": place.uri(name), "dataBase64": encode(content), "sandbox": null});
        assert_eq!(client.call("fs/writeFile", params), Ok(json!({})));
        assert_eq!(fs::read(place.path(name)).unwrap(), content, "{name}");
        assert!(read(&client, &place.uri(name)) == content, "{name}");
    }
}

#[test]
fn every_spelling_of_a_path_names_the_file() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("d/ü x%.txt", "ü");
    symlink(place.path("d"), place.path("link")).unwrap();
    let plain = place.path("d/ü x%.txt").to_str().unwrap().to_owned();
    let root = place.uri("");
    for path in [
        format!("{root}d/%C3%BC%20x%25.txt"),
        format!("{root}d/ü x%25.txt"),
        format!("{root}/d//./gone/../%C3%BC%20x%25.txt"),
        format!("{root}link/%c3%bc%20x%25%2Etxt"),
        format!("{root}link/../d/%C3%BC%20x%25.txt"),
        plain,
    ] {
        assert_eq!(read(&client, &path), "ü".as_bytes(), "{path}");
    }
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    fs::write(place.path("").join(name), "raw").unwrap();
    assert_eq!(read(&client, &place.uri("%FF%fe")), b"raw");
}

#[test]
fn foreign_paths_are_refused_with_the_reason() {
    let server = Server::start();
    let client = server.client();
    for (path, code, message) in [
        ("file://server/x", -32600, "'file://server/x' is invalid on 'linux'"),
        ("file:///C:/x", -32600, "'file:///C:/x' is invalid on 'linux'"),
        ("x", -32602, "invalid URI: relative URL without a base"),
        ("http://a/b", -32602, "unsupported path URI scheme `http`"),
        ("file:///a?b", -32602, "query parameters are not allowed in path URIs"),
        ("file:///a#b", -32602, "fragments are not allowed in path URIs"),
        ("file:///a%00", -32602, "'file:///a%00' is invalid on 'linux'"),
    ] {
        let refusal = client.refusal("fs/readFile", json!({"path": path}));
        assert_eq!(refusal, (code, message.to_owned()));
    }
}

#[test]
fn a_failed_read_states_the_cause() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "x");
    fs::create_dir(place.path("directory")).unwrap();
    make_fifo(&place.path("fifo"));
    let _socket = UnixListener::bind(place.path("socket")).unwrap();
    symlink("loop", place.path("loop")).unwrap();
    symlink("file", place.path("link")).unwrap();
    symlink("directory", place.path("way")).unwrap();
    let not_a_file = |name: &str| format!("path `{}` is not a file", place.path(name).display());
    let looping = "Too many levels of symbolic links (os error 40)".to_owned();
    let missing = "No such file or directory (os error 2)".to_owned();
    let not_a_directory = "Not a directory (os error 20)".to_owned();
    for (name, follow, code, message) in [
        ("missing", true, -32004, missing.clone()),
        ("missing/x", true, -32004, missing.clone()),
        ("missing", false, -32004, missing),
        ("file/x", true, -32603, not_a_directory.clone()),
        ("directory", true, -32600, not_a_file("directory")),
        ("fifo", true, -32600, not_a_file("fifo")),
        ("socket", true, -32603, "No such device or address (os error 6)".to_owned()),
        ("loop", true, -32603, looping.clone()),
        ("link", false, -32603, looping),
        ("way/x", false, -32603, not_a_directory),
        ("directory", false, -32600, "path is not a regular file".to_owned()),
        ("fifo", false, -32600, "path is not a regular file".to_owned()),
    ] {
        let params = json!({"path": place.uri(name), "followSymlinks": follow});
        assert_eq!(client.refusal("fs/readFile", params), (code, message), "{name}, following: {follow}");
    }
    let device = client.refusal("fs/readFile", json!({"path": "file:///dev/zero"}));
    assert_eq!(device, (-32600, "path `/dev/zero` is not a file".to_owned()));
}

#[test]
fn an_error_has_a_code_for_programs_and_the_path_for_people() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let error = client.call("fs/readFile", json!({"path": place.uri("gone")})).unwrap_err();
    assert_eq!(error["data"]["kind"], "notFound");
    let hint = error["data"]["hint"].as_str().unwrap();
    assert!(hint.contains(place.path("gone").to_str().unwrap()), "{hint}");
}

#[test]
fn a_file_whose_size_is_unknown_is_read_to_its_end() {
    let server = Server::start();
    let client = server.client();
    assert_eq!(read(&client, "file:///proc/version"), fs::read("/proc/version").unwrap());
}

#[test]
fn the_error_for_a_large_file_recommends_blocks() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    File::create(place.path("big")).unwrap().set_len((512 << 20) + 1).unwrap();
    let error = client.call("fs/readFile", json!({"path": place.uri("big")})).unwrap_err();
    assert_eq!(error["code"], -32600);
    assert_eq!(error["message"], "file is too large to read: limit is 536870912 bytes");
    assert!(error["data"]["hint"].as_str().unwrap().contains("fs/readBlock"));
}

#[test]
fn writing_keeps_the_inode_the_mode_and_the_links() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let path = place.write("file", "a much longer content");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(&path, place.path("hard")).unwrap();
    symlink("file", place.path("soft")).unwrap();
    let before = fs::metadata(&path).unwrap();
    write(&client, &place.uri("soft"), "new", json!({})).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!((after.ino(), after.mode(), after.nlink()), (before.ino(), before.mode(), 2));
    assert_eq!((place.read("hard"), place.read("file")), ("new".to_owned(), "new".to_owned()));
    assert!(fs::symlink_metadata(place.path("soft")).unwrap().is_symlink());
}

#[test]
fn a_dangling_link_is_followed_to_where_it_points() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    symlink("target", place.path("plain")).unwrap();
    symlink("other", place.path("atomic")).unwrap();
    write(&client, &place.uri("plain"), "1", json!({})).unwrap();
    write(&client, &place.uri("atomic"), "2", json!({"atomic": true})).unwrap();
    assert_eq!((place.read("target"), place.read("other")), ("1".to_owned(), "2".to_owned()));
    assert_eq!(place.names(""), ["atomic", "other", "plain", "target"]);
}

#[test]
fn a_failed_write_states_the_cause_and_changes_nothing() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "old");
    fs::create_dir(place.path("directory")).unwrap();
    make_fifo(&place.path("fifo"));
    symlink("file", place.path("link")).unwrap();
    symlink("directory", place.path("way")).unwrap();
    symlink("loop", place.path("loop")).unwrap();
    for atomic in [false, true] {
        for (name, follow, code, message) in [
            ("directory", true, -32603, "Is a directory (os error 21)"),
            ("missing/x", true, -32004, "No such file or directory (os error 2)"),
            ("file/x", true, -32603, "Not a directory (os error 20)"),
            ("fifo", true, -32600, "is not a file"),
            ("fifo", false, -32600, "path is not a regular file"),
            ("loop", true, -32603, "Too many levels of symbolic links (os error 40)"),
            ("link", false, -32603, "Too many levels of symbolic links (os error 40)"),
            ("way/x", false, -32603, "Not a directory (os error 20)"),
        ] {
            let more = json!({"atomic": atomic, "followSymlinks": follow});
            let error = write(&client, &place.uri(name), "new", more).unwrap_err();
            let context = format!("{name}, atomic: {atomic}, following: {follow}: {error}");
            assert_eq!(error["code"], code, "{context}");
            assert!(error["message"].as_str().unwrap().contains(message), "{context}");
        }
    }
    for wrong in ["aGk", "a-_=", "%"] {
        let params = json!({"path": place.uri("file"), "dataBase64": wrong});
        let (code, message) = client.refusal("fs/writeFile", params);
        assert_eq!(code, -32600);
        assert!(message.starts_with("fs/writeFile requires valid base64 dataBase64: "), "{message}");
    }
    assert_eq!(place.read("file"), "old");
    assert_eq!(place.names(""), ["directory", "fifo", "file", "link", "loop", "way"]);
    assert_eq!(place.names("directory"), [""; 0]);
}

#[test]
fn devices_cannot_be_written() {
    let server = Server::start();
    let client = server.client();
    let params = json!({"path": "file:///dev/null", "dataBase64": encode("x")});
    assert_eq!(client.refusal("fs/writeFile", params).0, -32600);
}

#[test]
fn a_full_disk_is_reported_and_an_atomic_write_leaves_the_old_file() {
    let place = Place::new();
    place.write("file", "old");
    // A limit on the size of files stands in for a full disk: 8 blocks of 512 bytes.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -f 8; exec \"$0\" serve", env!("CARGO_BIN_EXE_remex")]);
    command.stdin(Stdio::null());
    let server = Server::launch(command, 1);
    let client = server.client();
    let long = "x".repeat(5000);
    let error = write(&client, &place.uri("file"), &long, json!({"atomic": true})).unwrap_err();
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32603), &json!("noSpace")), "{error}");
    assert_eq!((place.read("file"), place.names("")), ("old".to_owned(), vec!["file".to_owned()]));
    let error = write(&client, &place.uri("file"), &long, json!({})).unwrap_err();
    assert_eq!(error["message"], "File too large (os error 27)");
    client.shell("p", "trap '' XFSZ; kill -XFSZ $$; echo alive");
    assert_eq!(client.collect("p").text(), "alive\n");
}

#[test]
fn an_atomic_write_keeps_mode_and_link() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let path = place.write("file", "old");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
    symlink("file", place.path("link")).unwrap();
    let mut reader = File::open(&path).unwrap();
    let before = fs::metadata(&path).unwrap();
    write(&client, &place.uri("link"), "new", json!({"atomic": true})).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_ne!(after.ino(), before.ino());
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    assert_eq!(
        std::io::read_to_string(&mut reader).unwrap(),
        "old",
        "who reads the old one reads it to the end"
    );
    assert_eq!(
        (place.read("file"), place.names("")),
        ("new".to_owned(), vec!["file".to_owned(), "link".to_owned()])
    );
}

#[test]
fn a_conflicting_write_is_an_error() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    for atomic in [false, true] {
        let name = format!("file-{atomic}");
        let uri = place.uri(&name);
        let at = |if_match: &str| json!({"atomic": atomic, "ifMatch": if_match});
        let first = write(&client, &uri, "one", at("absent")).unwrap();
        assert_eq!(first, json!({"hash": hash("one")}));
        let second = write(&client, &uri, "two", at(&hash("one"))).unwrap();
        assert_eq!(second, json!({"hash": hash("two")}));
        for stale in [hash("one"), "absent".to_owned()] {
            let error = write(&client, &uri, "three", at(&stale)).unwrap_err();
            assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32600), &json!("contentChanged")));
            assert!(
                error["message"].as_str().unwrap().contains(place.path(&name).to_str().unwrap()),
                "{error}"
            );
        }
        assert_eq!(place.read(&name), "two");
        fs::remove_file(place.path(&name)).unwrap();
        let error = write(&client, &uri, "three", at(&hash("two"))).unwrap_err();
        assert_eq!(error["data"]["kind"], "contentChanged");
        assert!(!place.path(&name).exists());
    }
    let params = json!({"path": place.uri("x"), "dataBase64": "", "ifMatch": "md5:1"});
    assert_eq!(client.refusal("fs/writeFile", params).0, -32602);
}

#[test]
fn one_of_many_conditional_writes_wins() {
    let (server, place) = (Server::start(), Place::new());
    let clients: Vec<_> = (0..8).map(|_| server.client()).collect();
    place.write("file", "base");
    let asked: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(number, client)| {
            let content = encode(format!("{number}"));
            let params = json!({"path": place.uri("file"), "dataBase64": content, "ifMatch": hash("base")});
            client.send("fs/writeFile", params)
        })
        .collect();
    let won: Vec<_> = clients
        .iter()
        .zip(&asked)
        .enumerate()
        .filter(|(_, (client, id))| client.outcome(id).is_ok())
        .map(|(number, _)| number.to_string())
        .collect();
    assert_eq!(won, [place.read("file")]);
}

#[test]
fn a_hash_covers_the_whole_file_or_a_range() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let content: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    place.write("file", &content);
    let hashed =
        |more: Value| client.call("fs/hash", with(json!({"path": place.uri("file")}), more)).unwrap();
    let size = content.len();
    assert_eq!(hashed(json!({})), json!({"hash": hash(&content), "bytes": size, "size": size}));
    let part = json!({"offset": 1000, "len": 500});
    assert_eq!(hashed(part), json!({"hash": hash(&content[1000..1500]), "bytes": 500, "size": size}));
    let tail = json!({"offset": size - 10, "len": 500});
    assert_eq!(hashed(tail), json!({"hash": hash(&content[size - 10..]), "bytes": 10, "size": size}));
    let beyond = json!({"offset": size + 1, "len": null});
    assert_eq!(hashed(beyond), json!({"hash": hash(""), "bytes": 0, "size": size}));
    let error =
        client.call("fs/hash", json!({"path": place.uri("file"), "offset": 1_u64 << 63})).unwrap_err();
    assert_eq!(error["code"], -32600);
    assert_eq!(client.refusal("fs/hash", json!({"path": place.uri("")})).0, -32600);
}

/// Starts a server whose user is not all-powerful.
pub(crate) fn unprivileged(place: &Place) -> Server {
    // The program may be in a directory that the other user cannot enter.
    let program = place.path("remex");
    // Copied by another process: what other tests start meanwhile could inherit our descriptor, and a file that is
    // open for writing cannot be executed.
    let copied =
        Command::new("cp").args([env!("CARGO_BIN_EXE_remex").as_ref(), program.as_os_str()]).status();
    assert!(copied.expect("cp is installed").success(), "a program can be copied");
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("the place is ours");
    let mut command = Command::new(program);
    command.arg("serve").current_dir("/").stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.args(["--allow-user", "root"]).uid(65534).gid(65534);
    }
    Server::launch(command, 1)
}

#[test]
fn missing_permissions_of_the_server_are_reported_as_such() {
    let place = Place::new();
    place.write("secret", "x");
    place.write("closed/file", "x");
    place.write("fixed/file", "x");
    for (name, mode) in [("secret", 0o000), ("closed", 0o000), ("fixed", 0o555)] {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let server = unprivileged(&place);
    let client = server.client();
    let at = |name: &str| json!({"path": place.uri(name)});
    let content = json!({"dataBase64": ""});
    let walk = json!({"maxDepth": 1, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": false});
    for (method, params) in [
        ("fs/readFile", at("secret")),
        ("fs/readFile", at("closed/file")),
        ("fs/hash", at("secret")),
        ("fs/open", with(at("secret"), json!({"handleId": "h"}))),
        ("fs/open", with(at("fixed/new"), json!({"handleId": "h", "mode": "replace", "atomic": true}))),
        ("fs/writeFile", with(at("secret"), content.clone())),
        ("fs/writeFile", with(at("fixed/new"), content.clone())),
        ("fs/writeFile", with(at("fixed/file"), with(content, json!({"atomic": true})))),
        ("fs/createDirectory", at("fixed/new")),
        ("fs/getMetadata", at("closed/file")),
        ("fs/canonicalize", at("closed/file")),
        ("fs/readDirectory", at("closed")),
        ("fs/remove", with(at("fixed/file"), json!({"recursive": false}))),
        ("fs/symlink", with(at("fixed/link"), json!({"target": "file"}))),
        (
            "fs/copy",
            json!({"sourcePath": place.uri("secret"), "destinationPath": "file:///tmp/x", "recursive": false}),
        ),
        (
            "fs/rename",
            json!({"sourcePath": place.uri("fixed/file"), "destinationPath": place.uri("fixed/x")}),
        ),
        ("fs/watch", with(at("closed/file"), json!({"watchId": 1}))),
    ] {
        let what = format!("{method} {params}");
        let error = client.call(method, params).expect_err(&what);
        assert_eq!(
            (&error["code"], &error["data"]["kind"]),
            (&json!(-32600), &json!("permissionDenied")),
            "{what}"
        );
        assert_eq!(error["message"], "Permission denied (os error 13)", "{what}");
    }
    let walked = client.call("fs/walk", with(at(""), json!({"options": walk}))).unwrap();
    let closed = json!([{"path": place.uri("closed"), "message": "Permission denied (os error 13)"}]);
    assert_eq!(walked["errors"], closed);
    assert_eq!(client.call("fs/readFile", at("fixed/file")), Ok(json!({"dataBase64": encode("x")})));
    for name in ["closed", "fixed"] {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    assert_eq!(
        (place.names("fixed"), place.names("closed")),
        (vec!["file".to_owned()], vec!["file".to_owned()])
    );
}
