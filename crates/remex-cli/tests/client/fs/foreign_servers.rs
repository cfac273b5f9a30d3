//! Files on servers of the base dialect, and on servers that send invalid listings.

use remex_client::fs::{SkipUnchanged, TreeFailure};

use super::*;
use remex_client::Command;

/// Returns a foreign server that answers as the test says.
fn stranger(answer: impl Fn(&str, &Value) -> Value + Send + Sync + 'static) -> Target {
    let answer = Arc::new(answer);
    Target::custom("a stranger", move || {
        let answer = Arc::clone(&answer);
        async move {
            let (here, there) = tokio::io::duplex(MIB);
            let (reader, writer) = tokio::io::split(here);
            tokio::spawn(async move { answer_all(there, |method, params| answer(method, params)).await });
            Ok(Link::lines(Box::new(reader), Box::new(writer)))
        }
    })
}

async fn answer_all(connection: tokio::io::DuplexStream, answer: impl Fn(&str, &Value) -> Value) {
    let (reader, mut writer) = tokio::io::split(connection);
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let request: Value = serde_json::from_str(&line).unwrap();
        let Some(id) = request.get("id") else { continue };
        let mut message = answer(request["method"].as_str().unwrap(), &request["params"]);
        message["id"] = id.clone();
        if writer.write_all((message.to_string() + "\n").as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Returns a server that lists what the test says in `/there` and nothing elsewhere, with the same content for every file.
fn liar(entries: Value) -> Target {
    let metadata = json!({"isDirectory": true, "isFile": false, "isSymlink": false, "size": 0,
        "createdAtMs": 0, "modifiedAtMs": 0, "kind": "directory", "mode": 0o755});
    stranger(move |method, params| {
        let is_root = params["path"].as_str().is_some_and(|path| path.ends_with("/there"));
        let result = match method {
            "initialize" => json!({"sessionId": "s", "server": {"name": "liar", "version": "1"}}),
            "fs/getMetadata" => metadata.clone(),
            "fs/readDirectory" => json!({"entries": if is_root { entries.clone() } else { json!([]) }}),
            "fs/readFile" => json!({"dataBase64": support::encode("evil")}),
            "fs/readLink" => json!({"target": "..", "targetBase64": support::encode("..")}),
            _ => json!({}),
        };
        json!({"result": result})
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_server_of_the_base_dialect_an_upload_is_written_in_place() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let target = stranger(move |method, params| {
        noted.lock().unwrap().push((method.to_owned(), params["mode"].clone(), params["offset"].clone()));
        match method {
            "initialize" => json!({"result": {"sessionId": "s"}}),
            "fs/getMetadata" => json!({"error": {"code": -32004, "message": "No such file or directory"}}),
            "fs/open" => json!({"result": {"handleId": params["handleId"]}}),
            "fs/writeBlock" | "fs/close" => json!({"result": {}}),
            other => json!({"error": {"code": -32601, "message": format!("no {other} here")}}),
        }
    });
    let client = Client::connect(target).await.unwrap();
    let sent = client.fs().upload(Cursor::new(content(300 << 10)), "/w/file").await.unwrap();
    assert_eq!(sent, 300 << 10);
    client.end().await.unwrap();
    let row = |method: &str, mode: Value, offset: Value| (method.to_owned(), mode, offset);
    let expected = [
        row("initialize", Value::Null, Value::Null),
        row("fs/getMetadata", Value::Null, Value::Null),
        row("fs/open", json!("replace"), Value::Null),
        row("fs/writeBlock", Value::Null, json!(0)),
        row("fs/writeBlock", Value::Null, json!(256 << 10)),
        row("fs/close", Value::Null, Value::Null),
        row("session/end", Value::Null, Value::Null),
    ];
    assert_eq!(*asked.lock().unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_are_not_utf_8_are_not_sent_to_a_server_of_the_base_dialect() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let target = stranger(move |method, _| {
        noted.lock().unwrap().push(method.to_owned());
        match method {
            "initialize" => json!({"result": {"sessionId": "s"}}),
            other => json!({"error": {"code": -32601, "message": format!("no {other} here")}}),
        }
    });
    let client = Client::connect(target).await.unwrap();
    let error = Command::new("cat").arg(OsStr::from_bytes(b"caf\xe9")).start(&client).await.unwrap_err();
    let Error::Usage { message, .. } = &error else { panic!("{error:?}") };
    assert!(message.starts_with("cannot pass `caf\u{fffd}`: it is not UTF-8, "), "{message}");
    assert_eq!(*asked.lock().unwrap(), ["initialize"]);
}

fn entry(name: &str, path: Option<&str>, kind: &str) -> Value {
    let is = |what: &str| kind == what;
    json!({"fileName": name, "isDirectory": is("directory"), "isFile": is("file"), "path": path,
        "isSymlink": is("symlink"),
        "metadata": {"isDirectory": is("directory"), "isFile": is("file"), "isSymlink": is("symlink"), "size": 4,
            "createdAtMs": 0, "modifiedAtMs": 0, "kind": kind, "mode": 0o644}})
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_escape_the_tree_are_refused() {
    let lies = [
        entry("..", None, "directory"),
        entry("../escape", None, "file"),
        entry("/tmp/escape", None, "file"),
        entry("", None, "file"),
        entry(".", None, "directory"),
        entry("escape", Some("file:///elsewhere/escape"), "file"),
        entry("escape", Some("file:///there/.."), "directory"),
        entry("escape", Some("file:///there"), "directory"),
    ];
    for lie in lies {
        let place = Place::new();
        let fs = Client::connect(liar(json!([lie]))).await.unwrap().fs();
        let refused = fs.download_tree("/there", place.path("in")).await;
        assert!(matches!(refused, Err(Error::Protocol { .. })), "{lie}: {refused:?}");
        assert_eq!((place.names(""), place.names("in")), (vec!["in".to_owned()], Vec::new()), "{lie}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downloaded_link_is_not_followed() {
    let link = entry("a", Some("file:///there/a"), "symlink");
    for second in ["directory", "file"] {
        let lie = json!([link, entry("a", None, second)]);
        let place = Place::new();
        let fs = Client::connect(liar(lie)).await.unwrap().fs();
        let outcome = fs.download_tree("/there", place.path("in")).await;
        let failed = outcome.unwrap().failures;
        assert!(failed.iter().all(|failure| failure.path == Path::new("a")), "{failed:?}");
        assert!(!failed.is_empty() || second == "file", "the directory is not made");
        assert_eq!(place.names(""), ["in"], "nothing is written beside the tree");
    }
    // Nor is one that was there before.
    let place = Place::new();
    place.make(&["in", "outside"]);
    place.link("../outside", "in/a");
    let fs = Client::connect(liar(json!([entry("a", None, "directory")]))).await.unwrap().fs();
    let failed = fs.download_tree("/there", place.path("in")).await.unwrap().failures;
    assert!(matches!(failed[..], [TreeFailure { error: Error::Local { .. }, .. }]), "{failed:?}");
    assert_eq!(place.names("outside"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_remote_files_are_reported_and_the_rest_downloaded() {
    let directory = json!({"isDirectory": true, "isFile": false, "isSymlink": false, "size": 0,
        "createdAtMs": 0, "modifiedAtMs": 0, "kind": "directory", "mode": 0o755});
    let file = entry("x", None, "file")["metadata"].clone();
    let target = stranger(move |method, params| {
        let path = params["path"].as_str().unwrap_or_default();
        let refused = |code: i32, message: &str| json!({"error": {"code": code, "message": message}});
        let result = match (method, path.rsplit('/').next().unwrap_or_default()) {
            ("initialize", _) => json!({"sessionId": "s", "server": {"name": "scripted", "version": "1"}}),
            ("fs/readDirectory", "there") => json!({"entries": [
                entry("a", None, "file"), entry("b", None, "directory"), entry("c", None, "directory"),
                entry("gone", None, "file"), entry("z", None, "file")]}),
            ("fs/readDirectory", "b") => return refused(-32603, "permission denied"),
            ("fs/readDirectory", _) => json!({"entries": [entry("inside", None, "file")]}),
            ("fs/getMetadata", "there") => directory.clone(),
            ("fs/getMetadata", _) => file.clone(),
            ("fs/readFile", "gone") => return refused(-32004, "no such file"),
            ("fs/readFile", _) => json!({"dataBase64": support::encode("good")}),
            _ => json!({}),
        };
        json!({"result": result})
    });
    let (fs, place) = (Client::connect(target).await.unwrap().fs(), Place::new());
    let report = fs.download_tree("/there", place.path("in")).await.unwrap();
    let mut failed: Vec<_> = report.failures.iter().map(|failure| failure.path.to_str().unwrap()).collect();
    failed.sort_unstable();
    assert_eq!(failed, ["b", "gone"], "{report:?}");
    assert_eq!((report.files, report.directories), (3, 1));
    assert_eq!(place.names("in"), ["a", "c", "z"]);
    assert_eq!(place.read("in/c/inside"), "good");
    let first = fs.download_tree("/there", place.path("other")).stop_at_first_failure().await;
    assert!(matches!(first, Err(Error::Refused(_))), "{first:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_is_uploaded_to_a_server_of_the_base_dialect_as_far_as_possible() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let target = stranger(move |method, _| {
        noted.lock().unwrap().push(method.to_owned());
        match method {
            "initialize" => json!({"result": {"sessionId": "s"}}),
            "fs/getMetadata" => json!({"error": {"code": -32004, "message": "No such file or directory"}}),
            "fs/createDirectory" | "fs/writeFile" => json!({"result": {}}),
            other => json!({"error": {"code": -32601, "message": format!("no {other} here")}}),
        }
    });
    let place = Place::new();
    place.write("tree/.gitignore", "*.o\n");
    place.write("tree/a/b.o", "");
    place.write("tree/a/c", "content");
    place.link("c", "tree/a/link");
    let fs = Client::connect(target).await.unwrap().fs();
    for skip in [SkipUnchanged::BySizeAndTime, SkipUnchanged::ByContent] {
        let copy = fs.upload_tree(place.path("tree"), "/there").use_gitignore_files().skip_unchanged(skip);
        let report = copy.await.unwrap();
        assert_eq!((report.files, report.directories, report.special, report.excluded), (2, 1, 1, 1));
        assert!(report.is_complete(), "{report:?}");
    }
    let mut asked = asked.lock().unwrap().clone();
    asked.sort();
    asked.dedup();
    assert_eq!(asked, ["fs/createDirectory", "fs/getMetadata", "fs/writeFile", "initialize"]);
}
