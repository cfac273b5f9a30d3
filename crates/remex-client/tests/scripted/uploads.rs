//! Uploads to a server whose answers come in an unlucky order.

use std::pin::pin;

use serde_json::json;

use crate::{server::Server, soon};

#[tokio::test]
async fn a_repeated_write_does_not_change_the_time_of_an_uploaded_file() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "content").unwrap();
    let welcome = json!({"sessionId": "s", "server": {"name": "remex", "version": "1"}});
    let (client, mut server) = Server::connect_with(welcome).await;
    let (fs, mut writes, mut modified_at, mut renamed) = (client.fs(), 0, None, None);
    let upload = async { fs.upload_tree(directory.path(), "/up").await };
    let mut upload = pin!(soon("the upload", upload));
    let report = loop {
        let message = tokio::select! {
            report = &mut upload => break report.unwrap(),
            message = server.next() => message,
        };
        let (Some(id), params) = (message.get("id"), &message["params"]) else { continue };
        match message["method"].as_str().unwrap() {
            "fs/getMetadata" => {
                server.send(json!({"id": id, "error": {"code": -32004, "message": "no such file"}})).await;
                continue;
            }
            "fs/canonicalize" => {
                server.answer(id, json!({"path": params["path"]})).await;
                continue;
            }
            "fs/writeFile" => {
                (writes, modified_at) = (writes + 1, None);
                if writes == 1 {
                    continue;
                }
            }
            "fs/setTimes" => modified_at = params["modifiedAtMs"].as_i64(),
            "fs/rename" => renamed = Some(modified_at),
            _ => {}
        }
        server.answer(id, json!({})).await;
        if message["method"] == "fs/setTimes" && client.disconnects() == 0 {
            // The answer to the write, which came first, is lost.
            server.hang_up();
            server.reconnect().await;
        }
    };
    assert_eq!((report.files, report.failures), (1, vec![]));
    assert_eq!((writes, client.disconnects()), (2, 1));
    let renamed_with = renamed.expect("the temporary file was renamed");
    assert!(renamed_with.is_some(), "the second write changed the time, and nothing set it again");
}
