//! File requests of credentials with path limits.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
};

use super::*;

/// A directory `in`, where the client may read and write, and a directory `out` beside it.
struct Scene {
    site: TestServer,
    place: TempDir,
}

impl Scene {
    async fn new() -> Self {
        let scene = Scene { site: TestServer::new().await, place: tempfile::tempdir().unwrap() };
        fs::create_dir_all(scene.path("in/d")).unwrap();
        fs::create_dir_all(scene.path("out/d")).unwrap();
        fs::write(scene.path("in/f"), "inside").unwrap();
        fs::write(scene.path("out/f"), "secret").unwrap();
        fs::write(scene.path("out/d/f"), "secret").unwrap();
        symlink("f", scene.path("out/l")).unwrap();
        symlink("../out", scene.path("in/away")).unwrap();
        symlink("../out/f", scene.path("in/away-file")).unwrap();
        symlink("../out/missing", scene.path("in/away-missing")).unwrap();
        symlink("f", scene.path("in/near")).unwrap();
        scene
    }

    fn path(&self, path: &str) -> PathBuf {
        self.place.path().canonicalize().unwrap().join(path)
    }

    async fn client(&self) -> Client {
        let inside = self.path("in").display().to_string();
        self.site.client_as("limited", &format!("files:read={inside} files:write={inside}")).await
    }

    /// Describes everything outside, to see whether anything has changed.
    fn outside(&self) -> Vec<String> {
        fn describe(path: &Path, found: &mut Vec<String>) {
            let metadata = path.symlink_metadata().unwrap();
            let content = if metadata.is_file() { fs::read_to_string(path).unwrap() } else { String::new() };
            found.push(format!(
                "{} {:o} {}.{} {content}",
                path.display(),
                metadata.mode(),
                metadata.mtime(),
                metadata.mtime_nsec()
            ));
            if metadata.is_dir() {
                let mut paths: Vec<_> =
                    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
                paths.sort();
                paths.iter().for_each(|path| describe(path, found));
            }
        }
        let mut found = Vec::new();
        describe(&self.path("out"), &mut found);
        found
    }
}

/// Requests that follow a link as the last component of their path.
fn following(path: &str) -> Vec<(&'static str, Value)> {
    let walk =
        json!({"maxDepth": 3, "maxDirectories": 10, "maxEntries": 10, "followDirectorySymlinks": true});
    let hash = format!("sha256:{}", "0".repeat(64));
    vec![
        ("fs/readFile", json!({"path": path})),
        ("fs/writeFile", json!({"path": path, "dataBase64": "eA=="})),
        ("fs/writeFile", json!({"path": path, "dataBase64": "eA==", "atomic": true})),
        ("fs/writeFile", json!({"path": path, "dataBase64": "eA==", "ifMatch": "absent"})),
        ("fs/writeFile", json!({"path": path, "dataBase64": "eA==", "ifMatch": hash})),
        ("fs/createDirectory", json!({"path": path})),
        ("fs/getMetadata", json!({"path": path})),
        ("fs/canonicalize", json!({"path": path})),
        ("fs/readDirectory", json!({"path": path})),
        ("fs/readDirectory", json!({"path": path, "limit": 10, "details": true})),
        ("fs/walk", json!({"path": path, "options": walk})),
        ("fs/copy", json!({"sourcePath": "IN/f", "destinationPath": path, "recursive": false})),
        ("fs/copy", json!({"sourcePath": "IN/d", "destinationPath": path, "recursive": true})),
        ("fs/setPermissions", json!({"path": path, "mode": 0o777})),
        ("fs/setTimes", json!({"path": path, "modifiedAtMs": 0})),
        ("fs/hash", json!({"path": path})),
        ("fs/search", json!({"path": path, "options": {"pattern": ""}})),
        ("fs/open", json!({"handleId": "h", "path": path, "mode": "read"})),
        ("fs/open", json!({"handleId": "h", "path": path, "mode": "write"})),
        ("fs/open", json!({"handleId": "h", "path": path, "mode": "replace"})),
        ("fs/open", json!({"handleId": "h", "path": path, "mode": "replace", "atomic": true})),
        ("fs/watch", json!({"watchId": 1, "path": path})),
    ]
}

/// Requests about the entry itself, even if it is a link.
fn about_entries(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("fs/createDirectory", json!({"path": path, "recursive": false})),
        ("fs/remove", json!({"path": path})),
        ("fs/remove", json!({"path": path, "recursive": false, "followSymlinks": false})),
        ("fs/copy", json!({"sourcePath": path, "destinationPath": "IN/new", "recursive": true})),
        ("fs/rename", json!({"sourcePath": path, "destinationPath": "IN/new"})),
        ("fs/rename", json!({"sourcePath": "IN/f", "destinationPath": path})),
        ("fs/rename", json!({"sourcePath": "IN/d", "destinationPath": path, "overwrite": false})),
        ("fs/symlink", json!({"path": path, "target": "/"})),
        ("fs/readLink", json!({"path": path})),
        ("fs/open", json!({"handleId": "h", "path": path, "mode": "write", "exclusive": true})),
        ("fs/watchMissing", json!({"watchId": 1, "missing": [path]})),
        ("fs/watchMissing", json!({"watchId": 1, "missing": ["IN/new"], "present": path})),
    ]
}

/// Asks, with `IN` for the directory inside.
async fn ask(scene: &Scene, client: &mut Client, method: &str, params: &Value) -> Result<Value, Value> {
    let params = params.to_string().replace("IN/", &format!("{}/", scene.path("in").display()));
    client.call(method, serde_json::from_str(&params).unwrap()).await
}

/// Asks likewise; returns the kind and the message of the error.
async fn refusal(scene: &Scene, client: &mut Client, method: &str, params: &Value) -> (String, String) {
    match ask(scene, client, method, params).await {
        Ok(answer) => panic!("`{method}` {params} is answered with {answer}"),
        Err(error) => (
            error["data"]["kind"].as_str().unwrap().to_owned(),
            error["message"].as_str().unwrap().to_owned(),
        ),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_request_about_a_path_outside_is_refused_and_changes_nothing() {
    let scene = Scene::new().await;
    let (mut client, before) = (scene.client().await, scene.outside());
    for way in ["out", "in/../out", "in/d/../../out", "in/away", "in/away/d/.."] {
        let mut refusals = Vec::new();
        for name in ["f", "d", "l", "missing", "missing/below"] {
            let path = scene.path(way).join(name).display().to_string();
            let mut all = Vec::new();
            for (method, params) in following(&path).into_iter().chain(about_entries(&path)) {
                if way == "in/away" && method == "fs/watchMissing" {
                    // No link is followed to a missing path, wherever it leads.
                    let answer = ask(&scene, &mut client, method, &params).await.unwrap();
                    assert_eq!(answer, json!({"watching": false}), "{params}");
                    continue;
                }
                let (kind, message) = refusal(&scene, &mut client, method, &params).await;
                if way.contains("away") && params["followSymlinks"] == false {
                    assert_eq!(kind, "notADirectory", "{method} {params}: {message}");
                } else {
                    assert_eq!(kind, "permissionDenied", "{method} {params}: {message}");
                    assert!(message.contains("needs the scope `files:"), "{message}");
                }
                all.push((method, message.replace(&path, "PATH")));
            }
            refusals.push(all);
        }
        assert!(refusals.windows(2).all(|pair| pair[0] == pair[1]), "whether it exists makes no difference");
    }
    for link in ["in/away", "in/away-file", "in/away-missing"] {
        let path = scene.path(link).display().to_string();
        for (method, params) in following(&path) {
            let (kind, message) = refusal(&scene, &mut client, method, &params).await;
            assert_eq!(kind, "permissionDenied", "{method} {params}: {message}");
        }
    }
    assert_eq!(scene.outside(), before);
    assert!(scene.path("in/f").exists() && scene.path("in/d").exists() && !scene.path("in/new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_request_about_a_path_inside_works() {
    let scene = Scene::new().await;
    let mut client = scene.client().await;
    let at = |path: &str| scene.path("in").join(path).display().to_string();
    let walk =
        json!({"maxDepth": 3, "maxDirectories": 10, "maxEntries": 20, "followDirectorySymlinks": true});
    for (method, params) in [
        ("fs/readFile", json!({"path": at("f")})),
        ("fs/readFile", json!({"path": at("d/../near")})),
        ("fs/readFile", json!({"path": at("f"), "followSymlinks": false})),
        ("fs/writeFile", json!({"path": at("w"), "dataBase64": "eA=="})),
        ("fs/writeFile", json!({"path": at("near"), "dataBase64": "eA==", "atomic": true})),
        ("fs/createDirectory", json!({"path": at("a/b/c")})),
        ("fs/createDirectory", json!({"path": at("a/b/c")})),
        ("fs/createDirectory", json!({"path": at("e"), "recursive": false})),
        ("fs/createDirectory", json!({"path": at("a/g/h"), "followSymlinks": false})),
        ("fs/createDirectory", json!({"path": scene.path("in")})),
        ("fs/getMetadata", json!({"path": at("near")})),
        ("fs/getMetadata", json!({"path": at("f"), "followSymlinks": false})),
        ("fs/readDirectory", json!({"path": at("")})),
        ("fs/walk", json!({"path": at(""), "options": walk})),
        ("fs/copy", json!({"sourcePath": at("f"), "destinationPath": at("copy"), "recursive": false})),
        ("fs/copy", json!({"sourcePath": at("near"), "destinationPath": at("link"), "recursive": false})),
        ("fs/copy", json!({"sourcePath": at("a"), "destinationPath": at("new/tree"), "recursive": true})),
        ("fs/rename", json!({"sourcePath": at("copy"), "destinationPath": at("moved")})),
        ("fs/rename", json!({"sourcePath": at("a"), "destinationPath": at("z"), "overwrite": false})),
        ("fs/setPermissions", json!({"path": at("near"), "mode": 0o640})),
        ("fs/setTimes", json!({"path": at("near"), "modifiedAtMs": 5000})),
        ("fs/symlink", json!({"path": at("s"), "target": "/etc/passwd"})),
        ("fs/readLink", json!({"path": at("s")})),
        ("fs/remove", json!({"path": at("s")})),
        ("fs/remove", json!({"path": at("missing/below")})),
        ("fs/remove", json!({"path": at("z")})),
        ("fs/hash", json!({"path": at("moved")})),
        ("fs/search", json!({"path": at("new/tree"), "options": {"pattern": ""}})),
        ("fs/open", json!({"handleId": "r", "path": at("near"), "mode": "read"})),
        ("fs/readBlock", json!({"handleId": "r", "offset": 0, "len": 3})),
        ("fs/open", json!({"handleId": "w", "path": at("w2"), "mode": "replace", "atomic": true})),
        ("fs/writeBlock", json!({"handleId": "w", "offset": 0, "chunk": "eA=="})),
        ("fs/close", json!({"handleId": "w"})),
        (
            "fs/open",
            json!({"handleId": "x", "path": at("x"), "mode": "write", "exclusive": true, "createMode": 0o600}),
        ),
        ("fs/watchMissing", json!({"watchId": 2, "missing": [at("later")]})),
        ("fs/watch", json!({"watchId": 1, "path": at("d")})),
    ] {
        let answer = client.call(method, params.clone()).await;
        assert!(answer.is_ok(), "{method} {params}: {answer:?}");
    }
    let real = client.call("fs/canonicalize", json!({"path": at("d/../near")})).await.unwrap();
    assert_eq!(real["path"], format!("file://{}", at("f")));
    assert_eq!(fs::read_to_string(scene.path("in/f")).unwrap(), "x");
    let metadata = fs::metadata(scene.path("in/f")).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.mtime()), (0o640, 5));
    assert_eq!(fs::read_to_string(scene.path("in/w2")).unwrap(), "x");
    assert!(scene.path("in/new/tree/b/c").is_dir() && !scene.path("in/z").exists());
    fs::write(scene.path("in/d/event"), "").unwrap();
    while !client.notes.iter().any(|note| note["method"] == "fs/changed") {
        let note = client.next().await.expect("the connection lasts until the notification");
        client.notes.push(note);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn links_that_lead_outside_are_listed_like_broken_ones() {
    let scene = Scene::new().await;
    let mut client = scene.client().await;
    let path = scene.path("in");
    let listed = client.call("fs/readDirectory", json!({"path": path})).await.unwrap();
    let mut names: Vec<_> = listed["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["fileName"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["d", "f", "near"]);
    let page = client.call("fs/readDirectory", json!({"path": path, "limit": 10})).await.unwrap();
    let away = page["entries"].as_array().unwrap().iter().find(|entry| entry["fileName"] == "away").unwrap();
    assert_eq!((&away["isSymlink"], &away["isDirectory"]), (&json!(true), &json!(false)));
    let options =
        json!({"maxDepth": 3, "maxDirectories": 10, "maxEntries": 20, "followDirectorySymlinks": true});
    let walked = client.call("fs/walk", json!({"path": path, "options": options})).await.unwrap();
    assert!(!walked.to_string().contains("away"), "{walked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_path_of_a_scope_itself_stays_where_it_is() {
    let scene = Scene::new().await;
    let mut client = scene.client().await;
    let (path, other) = (scene.path("in"), scene.path("in/d/new"));
    for (method, params) in [
        ("fs/remove", json!({"path": path})),
        ("fs/rename", json!({"sourcePath": path, "destinationPath": other})),
        ("fs/rename", json!({"sourcePath": scene.path("in/d"), "destinationPath": path})),
        ("fs/symlink", json!({"path": path, "target": "/etc"})),
    ] {
        let (kind, message) = refusal(&scene, &mut client, method, &params).await;
        assert_eq!(kind, "permissionDenied", "{method}: {message}");
    }
    assert!(scene.path("in/f").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_hash_and_a_copy_need_the_scope_to_read() {
    let scene = Scene::new().await;
    let inside = scene.path("in").display().to_string();
    let mut client = scene.site.client_as("writer", &format!("files:write={inside}")).await;
    let file = scene.path("in/f");
    let hash = format!("sha256:{}", "0".repeat(64));
    for (method, params) in [
        ("fs/writeFile", json!({"path": file, "dataBase64": "eA==", "ifMatch": hash})),
        ("fs/copy", json!({"sourcePath": file, "destinationPath": scene.path("in/c"), "recursive": false})),
        ("fs/open", json!({"handleId": "h", "path": file, "mode": "read"})),
        ("fs/readFile", json!({"path": file})),
    ] {
        let (kind, message) = refusal(&scene, &mut client, method, &params).await;
        assert_eq!(kind, "permissionDenied", "{method}: {message}");
        assert!(message.contains("`files:read`"), "{message}");
    }
    client.call("fs/writeFile", json!({"path": file, "dataBase64": "eA=="})).await.unwrap();
    let mut reader = scene.site.client_as("reader", &format!("files:read={inside}")).await;
    let open = json!({"handleId": "h", "path": file, "mode": "write"});
    assert_eq!(refusal(&scene, &mut reader, "fs/open", &open).await.0, "permissionDenied");
    let read = json!({"cwd": "file:///", "configPaths": [["a"]], "requirementsPaths": []});
    let (kind, message) = refusal(&scene, &mut reader, "environmentConfig/read", &read).await;
    assert_eq!(kind, "permissionDenied", "{message}");
}
