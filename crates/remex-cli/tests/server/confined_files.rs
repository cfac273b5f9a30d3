//! File requests that ask for a sandbox: what its profile does not allow does not happen.

mod floor;
mod table;
mod trees;
mod watched;

use std::{fs, os::unix::fs::symlink, path::Path};

use serde_json::{Value, json};

use crate::{
    fs_files::unprivileged,
    support::{Client, Guarded, Place, Server, decode, encode, token_of, uri, with},
};

/// Returns a context with these entries, whose workspace is `work` in a place.
fn sandbox(place: &Place, entries: &[Value]) -> Value {
    let file_system = json!({"type": "restricted", "entries": entries});
    json!({
        "permissions": {"type": "managed", "network": "restricted", "file_system": file_system},
        "windowsSandboxLevel": "disabled",
        "workspaceRoots": [place.uri("work")],
    })
}

fn at(access: &str, path: &str) -> Value {
    json!({"path": {"type": "path", "path": path}, "access": access})
}

fn special(access: &str, kind: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

fn pattern(pattern: &str) -> Value {
    json!({"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"})
}

/// An entry that protects what is in the workspace, if it exists.
fn protected(subpath: &str) -> Value {
    let value = json!({"kind": "project_roots", "subpath": subpath});
    json!({"path": {"type": "special", "value": value}, "access": "read", "missing_path_behavior": "skip"})
}

/// A workspace with protected, denied and other files, and a file beside it.
fn workspace() -> Place {
    let place = Place::new();
    place.write("work/file", "text");
    place.write("work/dir/inner", "inner");
    place.write("work/.git/config", "config");
    place.write("work/private/key", "secret");
    place.write("work/conf/prod.env", "secret");
    place.write("work/conf/plain", "plain");
    place.write("outside/file", "outside");
    place.link("../outside", "work/out");
    place.link("private/key", "work/alias");
    place
}

/// Everything can be read but two places, the workspace written but for `.git`.
fn profile(place: &Place) -> Value {
    sandbox(
        place,
        &[
            special("read", "root"),
            special("write", "project_roots"),
            protected(".git"),
            at("deny", &place.uri("work/private")),
            pattern("**/*.env"),
        ],
    )
}

struct Confined<'a> {
    client: &'a Client,
    place: &'a Place,
    sandbox: Value,
}

impl Confined<'_> {
    fn call(&self, method: &str, params: Value) -> Result<Value, Value> {
        self.client.call(method, with(params, json!({"sandbox": self.sandbox})))
    }

    fn done(&self, method: &str, params: Value) -> Value {
        let what = format!("{method} {params}");
        self.call(method, params).unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// Asks for something that the profile does not allow; returns the message.
    fn denied(&self, method: &str, params: Value) -> String {
        let what = format!("{method} {params}");
        let error = self.call(method, params).expect_err(&what);
        assert_eq!(
            (&error["code"], &error["data"]["kind"]),
            (&json!(-32600), &json!("permissionDenied")),
            "{what}: {error}"
        );
        assert!(error["data"]["hint"].is_string(), "{error}");
        error["message"].as_str().expect("an error has a message").to_owned()
    }

    fn read(&self, name: &str) -> String {
        let answer = self.done("fs/readFile", json!({"path": self.place.uri(name)}));
        String::from_utf8(decode(&answer["dataBase64"])).expect("text")
    }

    fn write(&self, name: &str) -> Value {
        json!({"path": self.place.uri(name), "dataBase64": encode("new")})
    }
}

#[test]
fn permitted_requests_work_as_without_a_profile() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    let (file, dir) = (place.uri("work/file"), place.uri("work/dir"));

    assert_eq!(confined.read("work/file"), "text");
    assert_eq!(confined.read("work/out/file"), "outside", "a link leads to what can be read");
    assert_eq!(confined.read("work/.git/config"), "config");
    confined.done("fs/writeFile", confined.write("work/file"));
    confined.done("fs/writeFile", with(confined.write("work/file"), json!({"atomic": true})));
    confined.done("fs/createDirectory", json!({"path": place.uri("work/a/b"), "recursive": true}));
    confined.done("fs/createDirectory", json!({"path": place.uri("work/.git"), "recursive": true}));
    confined.done("fs/writeFile", confined.write("work/a/b/c"));
    confined.done(
        "fs/copy",
        json!({"sourcePath": dir, "destinationPath": place.uri("work/copy"), "recursive": true}),
    );
    confined.done("fs/copy", json!({"sourcePath": place.uri("outside/file"), "destinationPath": place.uri("work/got"), "recursive": false}));
    confined.done(
        "fs/rename",
        json!({"sourcePath": place.uri("work/copy"), "destinationPath": place.uri("work/moved")}),
    );
    confined.done("fs/symlink", json!({"path": place.uri("work/link"), "target": "file"}));
    confined.done("fs/setPermissions", json!({"path": file, "mode": 0o600}));
    confined.done("fs/setTimes", json!({"path": file, "modifiedAtMs": 1000}));
    assert_eq!(
        confined.done("fs/readLink", json!({"path": place.uri("work/alias")}))["target"],
        "private/key"
    );
    assert_eq!(confined.done("fs/canonicalize", json!({"path": place.uri("work/link")}))["path"], file);
    assert_eq!(confined.done("fs/getMetadata", json!({"path": file}))["size"], 3);
    assert_eq!(confined.done("fs/hash", json!({"path": file}))["size"], 3);
    let found = confined
        .done("fs/search", json!({"path": place.uri("work"), "options": {"pattern": "secret|plain"}}));
    assert_eq!(found["files"][0]["path"], place.uri("work/conf/plain"));
    let denied = found["errors"].as_array().expect("what is denied is named").iter();
    let denied: Vec<_> = denied.map(|error| error["path"].as_str().unwrap()).collect();
    assert_eq!(denied, [place.uri("work/conf/prod.env"), place.uri("work/private")]);
    assert_eq!(found["files"].as_array().map(Vec::len), Some(1), "{found}");
    confined.done("fs/remove", json!({"path": place.uri("work/a")}));
    confined.done("fs/remove", json!({"path": place.uri("work/missing")}));
    assert_eq!((place.read("work/moved/inner"), place.read("work/got")), ("inner".into(), "outside".into()));
    assert!(!place.path("work/a").exists());

    let missing = confined.call("fs/writeFile", confined.write("work/none/file")).unwrap_err();
    assert_eq!(missing["code"], -32004, "patches depend on this code");
}

#[test]
fn nothing_else_can_be_read() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    for name in ["work/private/key", "work/alias", "work/conf/prod.env", "work/private/missing"] {
        let path = place.uri(name);
        for method in ["fs/readFile", "fs/hash", "fs/canonicalize", "fs/getMetadata"] {
            confined.denied(method, json!({"path": path}));
        }
        confined.denied("fs/open", json!({"handleId": "h", "path": path}));
        let copy =
            json!({"sourcePath": path, "destinationPath": place.uri("work/stolen"), "recursive": true});
        if name != "work/alias" {
            confined.denied("fs/copy", copy);
        }
    }
    for method in ["fs/readDirectory", "fs/canonicalize", "fs/getMetadata"] {
        confined.denied(method, json!({"path": place.uri("work/private")}));
    }
    confined.denied("fs/readLink", json!({"path": place.uri("work/private/link")}));
    let options =
        json!({"maxDepth": 9, "maxDirectories": 99, "maxEntries": 99, "followDirectorySymlinks": true});
    confined.denied("fs/walk", json!({"path": place.uri("work/private"), "options": options}));
    assert!(!place.path("work/stolen").exists());

    let denied = |name: &str| confined.denied("fs/readFile", json!({"path": place.uri(name)}));
    let path = |name: &str| place.path(name).display().to_string();
    let (key, private) = (path("work/private/key"), path("work/private"));
    assert_eq!(
        denied("work/private/key"),
        format!("cannot read `{key}`: the sandbox profile denies `{private}`")
    );
    assert_eq!(
        denied("work/alias"),
        format!(
            "cannot read `{}`, which leads to `{private}`: the sandbox profile denies `{private}`",
            path("work/alias")
        )
    );
    assert_eq!(
        denied("work/conf/prod.env"),
        format!(
            "cannot read `{}`: the pattern `{}` in the sandbox profile denies it",
            path("work/conf/prod.env"),
            path("work/**/*.env")
        )
    );
}

/// Returns the path, mode, time of change and content of everything in a directory.
fn listing(directory: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt as _;
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(path) = waiting.pop() {
        let metadata = path.symlink_metadata().expect("it was listed");
        if metadata.is_dir() {
            waiting.extend(
                fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()),
            );
        }
        let content =
            if metadata.is_file() { fs::read_to_string(&path).expect("text") } else { String::new() };
        found.push(format!("{} {:o} {} {content}", path.display(), metadata.mode(), metadata.mtime()));
    }
    found.sort();
    found
}

#[test]
fn nothing_else_can_be_changed() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    let before = listing(&place.path(""));
    for name in [
        "work/.git/config",
        "outside/file",
        "work/out/file",
        "work/private/key",
        "work/conf/prod.env",
        "work/alias",
    ] {
        let path = place.uri(name);
        confined.denied("fs/writeFile", confined.write(name));
        confined.denied("fs/writeFile", with(confined.write(name), json!({"atomic": true})));
        confined.denied("fs/open", json!({"handleId": "h", "path": path, "mode": "replace"}));
        confined.denied("fs/open", json!({"handleId": "h", "path": path, "mode": "replace", "atomic": true}));
        confined.denied("fs/open", json!({"handleId": "h", "path": path, "mode": "write"}));
        confined.denied("fs/setPermissions", json!({"path": path, "mode": 0o777}));
        confined.denied("fs/setTimes", json!({"path": path, "modifiedAtMs": 1}));
        let source = place.uri("work/file");
        confined
            .denied("fs/copy", json!({"sourcePath": source, "destinationPath": path, "recursive": false}));
        if name != "work/alias" {
            confined.denied("fs/remove", json!({"path": path}));
            confined.denied("fs/rename", json!({"sourcePath": path, "destinationPath": place.uri("work/x")}));
            confined.denied("fs/rename", json!({"sourcePath": source, "destinationPath": path}));
            confined.denied("fs/symlink", json!({"path": path, "target": "x"}));
        }
    }
    for name in ["work/.git/new", "outside/new", "work/out/new", "work/private/new", "work/new.env", "new"] {
        let path = place.uri(name);
        confined.denied("fs/writeFile", confined.write(name));
        confined.denied("fs/createDirectory", json!({"path": path, "recursive": false}));
        confined.denied("fs/createDirectory", json!({"path": path, "recursive": true}));
        confined.denied("fs/symlink", json!({"path": path, "target": "x"}));
        confined.denied("fs/open", json!({"handleId": "h", "path": path, "mode": "write"}));
        let source = place.uri("work/dir");
        confined.denied("fs/copy", json!({"sourcePath": source, "destinationPath": path, "recursive": true}));
        confined.denied("fs/rename", json!({"sourcePath": source, "destinationPath": path}));
    }
    for name in ["work", "work/.git", "work/private"] {
        confined.denied("fs/remove", json!({"path": place.uri(name)}));
        confined.denied(
            "fs/rename",
            json!({"sourcePath": place.uri(name), "destinationPath": place.uri("work/y")}),
        );
    }
    assert_eq!(listing(&place.path("")), before);

    let denied = |name: &str| confined.denied("fs/writeFile", confined.write(name));
    let path = |name: &str| place.path(name).display().to_string();
    assert_eq!(
        denied("work/.git/config"),
        format!(
            "cannot write `{}`: the sandbox profile only allows `{}` to be read",
            path("work/.git/config"),
            path("work/.git")
        )
    );
}

#[test]
fn a_copy_does_not_overwrite_what_is_protected() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    place.write("source/.git/config", "evil");
    place.write("source/file", "copied");
    let entries = [special("read", "root"), special("write", "project_roots"), protected(".git")];
    let confined = Confined { client: &client, place: &place, sandbox: sandbox(&place, &entries) };
    let copy =
        json!({"sourcePath": place.uri("source"), "destinationPath": place.uri("work"), "recursive": true});
    confined.denied("fs/copy", copy);
    assert_eq!(place.read("work/.git/config"), "config");
}

#[test]
fn a_file_that_may_be_written_alone_is_not_replaced() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    let entries = [special("read", "root"), at("write", &place.uri("outside/file"))];
    let confined = Confined { client: &client, place: &place, sandbox: sandbox(&place, &entries) };
    confined.done("fs/writeFile", confined.write("outside/file"));
    let message =
        confined.denied("fs/writeFile", with(confined.write("outside/file"), json!({"atomic": true})));
    assert!(message.ends_with("the sandbox profile does not allow its directory to be changed"), "{message}");
    confined.denied("fs/remove", json!({"path": place.uri("outside/file")}));
    confined.denied(
        "fs/rename",
        json!({"sourcePath": place.uri("outside/file"), "destinationPath": place.uri("outside/x")}),
    );
    assert_eq!(place.names("outside"), ["file"]);
}

#[test]
fn a_protected_name_cannot_be_created_by_any_request() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.make(&["work/sub", "work/made/hooks"]);
    place.write("work/file", "text");
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    for name in ["work/.git", "work/sub/.git"] {
        let (path, below) = (place.uri(name), place.uri(&format!("{name}/hooks")));
        confined.denied("fs/createDirectory", json!({"path": path}));
        confined.denied("fs/createDirectory", json!({"path": below, "recursive": true}));
        confined.denied("fs/writeFile", confined.write(name));
        confined.denied("fs/writeFile", with(confined.write(name), json!({"atomic": true})));
        confined.denied("fs/symlink", json!({"path": path, "target": "made"}));
        for source in ["work/made", "work/file"] {
            let source = place.uri(source);
            confined.denied("fs/rename", json!({"sourcePath": source, "destinationPath": path}));
            confined
                .denied("fs/copy", json!({"sourcePath": source, "destinationPath": path, "recursive": true}));
        }
        confined.denied("fs/open", json!({"handleId": "w", "path": path, "mode": "replace"}));
    }
    assert_eq!(place.names("work"), ["file", "made", "sub"]);
    assert_eq!(place.names("work/sub"), Vec::<String>::new());
}

#[test]
fn a_protected_path_is_protected_from_the_request_after_it_appears() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.make(&["work"]);
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    for _ in 0..3 {
        confined.denied("fs/createDirectory", json!({"path": place.uri("work/.git")}));
        place.make(&["work/.git"]);
        confined.denied("fs/writeFile", confined.write("work/.git/config"));
        fs::remove_dir(place.path("work/.git")).expect("a directory");
        confined.done("fs/writeFile", confined.write("work/file"));
        // A root that becomes a link grants nothing where the link leads: a confined program may have made it.
        place.make(&["other"]);
        fs::rename(place.path("work"), place.path("aside")).expect("a directory");
        place.link("other", "work");
        for name in ["other/file", "work/file", "aside/file"] {
            let error = confined.call("fs/writeFile", confined.write(name)).unwrap_err();
            assert_eq!(error["data"]["kind"], "sandboxUnavailable", "{error}");
            let hint = error["data"]["hint"].as_str().expect("a hint");
            assert!(hint.contains(&*place.path("work").to_string_lossy()), "{hint}");
            assert!(hint.contains(&*place.path("other").to_string_lossy()), "{hint}");
        }
        fs::remove_file(place.path("work")).expect("a link");
        fs::rename(place.path("aside"), place.path("work")).expect("a directory");
        confined.denied("fs/writeFile", confined.write("other/file"));
    }
}

#[test]
fn handles_are_confined_when_they_are_opened() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    confined.done("fs/open", json!({"handleId": "r", "path": place.uri("work/.git/config"), "mode": "read"}));
    let block =
        client.call("fs/readBlock", json!({"handleId": "r", "offset": 0, "len": 100})).expect("a block");
    assert_eq!(decode(&block["chunk"]), b"config");
    for (id, more) in [("a", json!({"atomic": true})), ("p", json!({}))] {
        let open = json!({"handleId": id, "path": place.uri(&format!("work/{id}")), "mode": "replace"});
        confined.done("fs/open", with(open, more));
        client
            .call("fs/writeBlock", json!({"handleId": id, "offset": 0, "chunk": encode("text")}))
            .expect("written");
        client.call("fs/close", json!({"handleId": id})).expect("closed");
        assert_eq!(place.read(&format!("work/{id}")), "text");
    }
    confined.denied("fs/open", json!({"handleId": "x", "path": place.uri("work/private/key")}));
    let unknown = client.call("fs/readBlock", json!({"handleId": "x", "offset": 0, "len": 1})).unwrap_err();
    assert_eq!(unknown["code"], -32004, "a refused handle does not exist");
    let exclusive =
        json!({"handleId": "x", "path": place.uri("outside/new"), "mode": "write", "exclusive": true});
    confined.denied("fs/open", exclusive);
}

#[test]
fn large_file_transfers_are_confined_too() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    place.write("work/large", vec![b'x'; 4 << 20]);
    place.write("work/private/large", vec![b'x'; 4 << 20]);
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    assert_eq!(confined.read("work/large").len(), 4 << 20);
    confined.denied("fs/readFile", json!({"path": place.uri("work/private/large")}));
}

#[test]
fn the_server_itself_is_out_of_reach() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    let entries = [special("write", "root"), at("read", &place.uri("outside"))];
    let confined = Confined { client: &client, place: &place, sandbox: sandbox(&place, &entries) };
    let process = server.pid();
    for path in [
        "/proc/self/environ".to_owned(),
        "/proc/self/mem".to_owned(),
        "/proc/thread-self/mem".to_owned(),
        format!("/proc/{process}/environ"),
        format!("/proc/{process}/root/etc/passwd/../../proc/self/status"),
        "/proc/sys/kernel/core_pattern".to_owned(),
    ] {
        let path = uri(Path::new(&path));
        confined.denied("fs/readFile", json!({"path": path}));
        confined.denied("fs/open", json!({"handleId": "h", "path": path, "mode": "write"}));
    }
    confined.denied("fs/readDirectory", json!({"path": "file:///proc/self/fd"}));
    let outside = format!("/proc/self/root{}", place.path("outside/file").display());
    assert_eq!(
        confined.done("fs/canonicalize", json!({"path": uri(Path::new(&outside))}))["path"],
        place.uri("outside/file")
    );
    confined.denied("fs/setTimes", json!({"path": uri(Path::new(&outside)), "modifiedAtMs": 1}));
}

#[test]
fn no_program_gets_the_privileges_of_another_user() {
    use std::os::unix::fs::PermissionsExt as _;
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    let mode = |name: &str| fs::metadata(place.path(name)).expect("a file").permissions().mode() & 0o7777;
    fs::set_permissions(place.path("outside/file"), fs::Permissions::from_mode(0o6755)).expect("a mode");
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    for bits in [0o4755, 0o2755] {
        confined.denied("fs/setPermissions", json!({"path": place.uri("work/file"), "mode": bits}));
    }
    confined.done("fs/setPermissions", json!({"path": place.uri("work/file"), "mode": 0o1700}));
    let copy = |name: &str, to: &str, recursive: bool| json!({"sourcePath": place.uri(name), "destinationPath": place.uri(to), "recursive": recursive});
    confined.done("fs/copy", copy("outside/file", "work/copy", false));
    confined.done("fs/copy", copy("outside", "work/tree", true));
    assert_eq!((mode("work/file"), mode("work/copy"), mode("work/tree/file")), (0o1700, 0o755, 0o755));
    client.call("fs/copy", copy("outside/file", "work/copy", false)).expect("without a sandbox it is a copy");
    assert_eq!(mode("work/copy"), 0o6755);
}

#[test]
fn a_profile_that_cannot_be_applied_is_refused_and_nothing_happens() {
    let (server, place) = (Server::start(), workspace());
    let client = server.client();
    symlink("../outside", place.path("work/.git2")).expect("a link");
    for (entries, kind, reason) in [
        (
            vec![special("write", "root"), special("deny", "unknown")],
            "sandboxUnavailable",
            "its path is unknown",
        ),
        (vec![special("read", "root"), pattern("../x")], "invalidParams", "`..`"),
        (
            vec![at("write", &place.uri("work")), at("write", &place.uri("work/out"))],
            "sandboxUnavailable",
            "which the same profile makes writable",
        ),
    ] {
        let confined = Confined { client: &client, place: &place, sandbox: sandbox(&place, &entries) };
        let error = confined.call("fs/writeFile", confined.write("work/file")).unwrap_err();
        assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32602), &json!(kind)), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert_eq!(place.read("work/file"), "text");
}

#[test]
fn a_credential_and_a_profile_confine_together() {
    let place = workspace();
    let line = format!(
        "{} name=alice scope=files:read={work},files:write={work}/dir,files:write={work}/conf\n",
        token_of("alice"),
        work = place.path("work").display()
    );
    let server = Guarded::with_tokens(&line);
    let client = server.client(&token_of("alice"));
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    assert_eq!(confined.read("work/file"), "text");
    confined.done("fs/writeFile", confined.write("work/dir/inner"));
    let message = confined.denied("fs/writeFile", confined.write("work/file"));
    assert!(message.contains("files:write="), "the credential refuses it: {message}");
    let message = confined.denied("fs/readFile", json!({"path": place.uri("outside/file")}));
    assert!(message.contains("files:read="), "the credential refuses it: {message}");
    let message = confined.denied("fs/writeFile", confined.write("work/conf/prod.env"));
    assert!(message.contains("sandbox profile"), "the profile refuses it: {message}");
    let message = confined.denied("fs/readFile", json!({"path": place.uri("work/private/key")}));
    assert!(message.contains("sandbox profile"), "the profile refuses it: {message}");
}

#[test]
fn a_server_of_an_ordinary_user_confines_files_too() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = workspace();
    let server = unprivileged(&place);
    for name in ["work", "work/dir", "work/.git", "work/private", "work/conf", "outside"] {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o777)).expect("a mode");
    }
    let client = server.client();
    let confined = Confined { client: &client, place: &place, sandbox: profile(&place) };
    assert_eq!(confined.read("work/.git/config"), "config");
    confined.done("fs/writeFile", confined.write("work/new"));
    for name in ["work/.git/new", "work/private/new", "work/new.env", "outside/new"] {
        let message = confined.denied("fs/writeFile", confined.write(name));
        assert!(message.contains("sandbox profile"), "{message}");
    }
}
