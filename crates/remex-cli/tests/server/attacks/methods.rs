//! A request for every method, with what it needs and what it would do.

use std::{
    collections::BTreeSet,
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::support::{Client, Place, with};

/// What an attacker asks for.
pub(super) struct Attempt {
    pub(super) method: &'static str,
    pub(super) params: Value,
    /// The scope that it needs; none if every credential allows it.
    pub(super) scope: Option<&'static str>,
}

/// What attempts would change if they succeeded.
pub(super) struct Target {
    place: Place,
    web: TcpListener,
}

impl Target {
    pub(super) fn new() -> Self {
        let place = Place::new();
        place.write("file", "untouched");
        place.make(&["directory"]);
        let web = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        web.set_nonblocking(true).expect("a socket has modes");
        Target { place, web }
    }

    /// Fails the test if anything has happened.
    pub(super) fn assert_untouched(&self) {
        assert_eq!(self.place.names(""), ["directory", "file"]);
        assert_eq!(self.place.names("directory"), [""; 0]);
        assert_eq!(self.place.read("file"), "untouched");
        let mode = fs::metadata(self.place.path("file")).expect("it is there");
        assert_ne!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o777, 0o777);
        let error = self.web.accept().map(|(_, peer)| peer).expect_err("no request was sent");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    /// Returns an attempt for every method, and several where what it needs depends on its parameters.
    ///
    /// They are about the process `p`, the handle `h`, the watch 1 and the files of this target.
    pub(super) fn attempts(&self) -> Vec<Attempt> {
        let mut all = self.about_processes();
        all.extend(self.about_files());
        let port = self.web.local_addr().expect("a listener has an address").port();
        let url = format!("http://127.0.0.1:{port}/");
        // Nothing listens there: a request that is sent by mistake must not wait.
        let request =
            json!({"method": "GET", "url": url, "requestId": "r", "headers": [], "timeoutMs": 1000});
        all.push(attempt("http/request", "http", request));
        for (method, params) in [
            ("initialize", json!({"clientName": "attacker"})),
            ("environment/info", Value::Null),
            ("environment/status", Value::Null),
            ("fs/close", json!({"handleId": "h"})),
        ] {
            all.push(Attempt { method, params, scope: None });
        }
        all
    }

    fn about_processes(&self) -> Vec<Attempt> {
        let touch = ["/usr/bin/touch".into(), self.path("started").display().to_string()];
        let start = json!({"processId": "new", "argv": touch, "cwd": "/", "env": {}, "tty": false});
        let mut all = vec![attempt("process/start", "processes", start)];
        for (method, scope, more) in [
            ("process/read", "processes:read", json!({})),
            ("process/write", "processes", json!({"chunk": "eA=="})),
            ("process/signal", "processes", json!({"signal": "SIGKILL"})),
            ("process/terminate", "processes", json!({})),
            ("process/restart", "processes", json!({})),
            ("process/closeStdin", "processes", json!({})),
            ("process/release", "processes", json!({})),
            ("process/forget", "processes", json!({})),
            ("process/resize", "processes", json!({"rows": 1, "cols": 1})),
            ("process/wait", "processes:read", json!({})),
            ("process/snapshot", "processes:read", json!({})),
            ("process/seek", "processes:read", json!({"to": {"offset": 0}})),
        ] {
            all.push(attempt(method, scope, with(json!({"processId": "p"}), more)));
        }
        for (method, scope, params) in [
            ("process/list", "processes:read", json!({})),
            ("process/list", "admin", json!({"scope": "all"})),
            ("process/collect", "processes", json!({})),
            ("process/collect", "admin", json!({"scope": "all"})),
            ("session/list", "processes:read", json!({})),
            ("session/list", "admin", json!({"scope": "all"})),
            ("session/end", "processes", json!({"sessionId": "s"})),
            ("session/observe", "processes:read", json!({"sessionId": "s"})),
            ("session/unobserve", "processes:read", json!({"sessionId": "s"})),
        ] {
            all.push(attempt(method, scope, params));
        }
        all
    }

    fn about_files(&self) -> Vec<Attempt> {
        let (file, directory, new) = (self.path("file"), self.path("directory"), self.path("directory/new"));
        let walk =
            json!({"maxDepth": 3, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": false});
        let hash = format!("sha256:{}", "0".repeat(64));
        let copy = || json!({"sourcePath": file, "destinationPath": new, "recursive": false});
        let open = |mode: &str, path: &Path| json!({"handleId": "h", "path": path, "mode": mode});
        let of = |method, scope, params| attempt(method, scope, params);
        let (read, write) = ("files:read", "files:write");
        vec![
            of("fs/readFile", read, json!({"path": file})),
            of("fs/writeFile", write, json!({"path": file, "dataBase64": "eA=="})),
            of("fs/writeFile", read, json!({"path": file, "dataBase64": "eA==", "ifMatch": hash})),
            of("fs/createDirectory", write, json!({"path": new})),
            of("fs/getMetadata", read, json!({"path": file})),
            of("fs/canonicalize", read, json!({"path": file})),
            of("fs/readDirectory", read, json!({"path": directory})),
            of("fs/walk", read, json!({"path": directory, "options": walk})),
            of("fs/remove", write, json!({"path": file})),
            of("fs/copy", read, copy()),
            of("fs/copy", write, copy()),
            of("fs/open", read, open("read", &file)),
            of("fs/open", write, open("write", &new)),
            of("fs/open", write, open("replace", &file)),
            of("fs/readBlock", read, json!({"handleId": "h", "offset": 0, "len": 1})),
            of("fs/writeBlock", write, json!({"handleId": "h", "offset": 0, "chunk": "eA=="})),
            of("fs/watchMissing", read, json!({"watchId": 1, "missing": [new]})),
            of("fs/watch", read, json!({"watchId": 1, "path": directory})),
            of("fs/unwatch", read, json!({"watchId": 1})),
            of("fs/rename", write, json!({"sourcePath": file, "destinationPath": new})),
            of("fs/setPermissions", write, json!({"path": file, "mode": 0o777})),
            of("fs/setTimes", write, json!({"path": file, "modifiedAtMs": 0})),
            of("fs/symlink", write, json!({"path": new, "target": "/"})),
            of("fs/readLink", read, json!({"path": file})),
            of("fs/hash", read, json!({"path": file})),
            of("fs/search", read, json!({"path": directory, "options": {"pattern": "."}})),
            of(
                "environmentConfig/read",
                read,
                json!({"cwd": "file:///", "configPaths": [["a"]], "requirementsPaths": []}),
            ),
            of("capabilityRoots/discoverV1", read, json!({"roots": [{"id": "r", "path": directory}]})),
            of("capabilities/discoverV2", read, json!({"cwd": "file:///"})),
        ]
    }
}

fn attempt(method: &'static str, scope: &'static str, params: Value) -> Attempt {
    Attempt { method, params, scope: Some(scope) }
}

/// Fails the test unless there is an attempt for every method of the server, as it lists them itself.
pub(super) fn assert_complete(client: &Client, attempts: &[Attempt]) {
    let error = client.call("no/such", json!({})).expect_err("there is no such method");
    let hint = error["data"]["hint"].as_str().expect("the error has a hint");
    let listed = hint.strip_prefix("the methods are ").unwrap_or_else(|| panic!("{hint}"));
    let methods: BTreeSet<_> = listed.split(", ").collect();
    let attempted: BTreeSet<_> = attempts.iter().map(|attempt| attempt.method).collect();
    assert_eq!(attempted, methods, "each method has an attempt here");
}
