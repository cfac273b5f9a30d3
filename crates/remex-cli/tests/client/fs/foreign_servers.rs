//! Files on servers of the base dialect, and on servers that send invalid listings.

use super::*;

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

/// Returns a server that lists what the test says, and has the same content for every file.
fn liar(entries: Value) -> Target {
    let metadata = json!({"isDirectory": true, "isFile": false, "isSymlink": false, "size": 0,
        "createdAtMs": 0, "modifiedAtMs": 0, "kind": "directory", "mode": 0o755});
    stranger(move |method, _| {
        let result = match method {
            "initialize" => json!({"sessionId": "s", "server": {"name": "liar", "version": "1"}}),
            "fs/getMetadata" => metadata.clone(),
            "fs/readDirectory" => json!({"entries": entries}),
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
    let sent = client.fs().upload(Cursor::new(content(300 << 10)), "/w/file", |_| {}).await.unwrap();
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
async fn a_server_of_the_base_dialect_is_not_asked_to_pass_what_is_not_utf_8() {
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
    let error = client.command("cat").arg(OsStr::from_bytes(b"caf\xe9")).start().await.unwrap_err();
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
async fn names_that_lead_elsewhere_are_refused() {
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
        let refused = fs.download_tree("/there", place.path("in"), |_| {}).await;
        assert!(matches!(refused, Err(Error::Protocol { .. })), "{lie}: {refused:?}");
        assert_eq!((place.names(""), place.names("in")), (vec!["in".to_owned()], Vec::new()), "{lie}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_came_down_is_not_followed() {
    let link = entry("a", Some("file:///there/a"), "symlink");
    for second in ["directory", "file"] {
        let lie = json!([link, entry("a", None, second)]);
        let place = Place::new();
        let fs = Client::connect(liar(lie)).await.unwrap().fs();
        let outcome = fs.download_tree("/there", place.path("in"), |_| {}).await;
        assert_eq!(outcome.is_err(), second == "directory", "{outcome:?}");
        assert_eq!(place.names(""), ["in"], "nothing is written beside the tree");
    }
    // Nor is one that was there before.
    let place = Place::new();
    place.make(&["in", "outside"]);
    place.link("../outside", "in/a");
    let fs = Client::connect(liar(json!([entry("a", None, "directory")]))).await.unwrap().fs();
    assert!(matches!(fs.download_tree("/there", place.path("in"), |_| {}).await, Err(Error::Local { .. })));
    assert_eq!(place.names("outside"), Vec::<String>::new());
}
